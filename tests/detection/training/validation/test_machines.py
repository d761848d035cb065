"""Several machines validate: they share the images, and all stop at the same step."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from detection.coco.summary import metrics_to_json
from detection.models.registry import detector_from_config
from detection.training.auto.kept_images import training_records
from detection.training.build_run import detector_evaluator_from_config
from detection.training.checkpoints.files import checkpoint_path
from detection.training.validation.history import read_history
from schemas.artifacts import CHECKPOINTS, CONFIG_YAML, HISTORY_JSON, LOGS, SAVED_MODEL, VALIDATION
from schemas.config.config_io import load_config
from schemas.metrics import metrics_of_report
from tests.detection.training import tiny_detector
from tests.detection.training.cluster_run import log_of, together
from tests.detection.training.evaluation_records import write_coco_shards
from tests.detection.training.tiny_run import CATEGORIES


@pytest.mark.extended
def test_two_machines_stop_early_together(tmp_path: Path) -> None:
    """A rise of 1 there never is, so that the second evaluation ends the run; its metrics are those of one machine."""
    shards, _ = write_coco_shards(tmp_path / "records", 16)
    keys = ["train.validation={every: 5, patience: 1, min_delta: 1.0, fraction: 0.3}"]
    with together() as train:
        train(tmp_path, shards, keys)
    output = tmp_path / "run"
    history = read_history(output / VALIDATION / HISTORY_JSON)
    assert [entry.step for entry in history] == [5, 10]
    events = EventAccumulator(str(output / LOGS / VALIDATION))
    events.Reload()
    tiny_detector.register()
    config = load_config(output / CONFIG_YAML, [])
    detector = detector_from_config(config.model, CATEGORIES, precision=config.train.precision)
    kept = training_records(config, shards=shards, validation_shards=())[1].validation
    assert kept is not None
    alone = detector_evaluator_from_config(config, kept, categories=CATEGORIES, detector=detector)
    for entry in history:
        evaluation = alone(checkpoint_path(output / CHECKPOINTS, entry.step))
        assert metrics_of_report(metrics_to_json(*evaluation.metrics)) == entry.metrics
        losses = {event.step: tf.make_ndarray(event.tensor_proto) for event in events.Tensors("Loss/total_loss")}
        assert losses[entry.step] == np.float32(evaluation.losses["loss"]) > 0.0
    assert sorted(path.name for path in (output / CHECKPOINTS).glob("*.index")) == ["ckpt-10.index", "ckpt-5.index"]
    assert (output / SAVED_MODEL).is_dir()
    assert "stopping early" in log_of(tmp_path, 0)
    assert "on validation" not in log_of(tmp_path, 1)
    told = "of 16 training images are kept to choose the checkpoint"
    assert all(told in log_of(tmp_path, number) for number in range(2))
