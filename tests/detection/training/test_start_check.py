"""What `tests/pipelines/runs/test_start_check.py` does not test: several replicas, the detector for validation."""

import pytest
import tensorflow as tf

from detection.training.start_check import check_start
from schemas.errors import ConfigError
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_run import CATEGORIES, tiny_config


def test_a_batch_that_does_not_divide_is_refused(two_replicas: tf.distribute.Strategy) -> None:
    tiny_detector.register()
    config = tiny_config("model={name: tiny}", "train.batch_size=3")
    with pytest.raises(ConfigError, match=r"train\.batch_size = 3 does not divide evenly among 2 replicas"):
        check_start(config, categories=CATEGORIES, strategy=two_replicas)
    detector = check_start(tiny_config("model={name: tiny}"), categories=CATEGORIES, strategy=two_replicas)
    assert detector.num_classes == len(CATEGORIES)
