"""From the configuration and the records to repeat factors and class weights."""

import numpy as np
import pytest

from detection.input_pipeline.record_reader import RecordReader
from detection.models.detector import Detector
from detection.models.registry import detector_from_config
from detection.training.build_balance import ClassBalance, balance_from_config
from detection.training.build_input import input_options_from_config
from schemas.errors import ConfigError
from tests.detection.synthetic import example, write_shards
from tests.detection.training.tiny_detector import TinyConfig
from tests.detection.training.tiny_run import CATEGORIES, tiny_config

IMAGE = np.zeros((8, 8, 3), np.uint8)
RARE = "train.sampling={name: repeat_factor, threshold: 0.5}"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> RecordReader:
    """Eight images with one object of category 3, one of them with three of category 40, too."""
    kinds = [[3]] * 7 + [[3, 40, 40, 40]]
    records = [example(IMAGE, [[1, 1, 5, 5]] * len(ids), ids) for ids in kinds]
    return RecordReader(write_shards(tmp_path_factory.mktemp("records"), records, shards=1))


def _balance(reader: RecordReader, *assignments: str) -> ClassBalance:
    return balance_from_config(tiny_config(*assignments).train, reader, CATEGORIES)


def test_by_default_nothing_is_read(reader: RecordReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detection.training.build_balance.read_classes", None)
    assert _balance(reader) == (None, None, 8)


def test_repeat_factors_make_an_epoch_longer(reader: RecordReader, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "cocoflow.trainer"):
        balance = _balance(reader, RARE)
    assert balance.repeat_factors is not None
    np.testing.assert_allclose(balance.repeat_factors, [1.0] * 7 + [2.0])
    assert (balance.class_weights, balance.epoch_size) == (None, 9)
    assert "1 of 8 images are repeated, up to 2.0 times; an epoch has 9 images" in caplog.text


@pytest.mark.parametrize(
    ("kind", "expected"), [("inverse_frequency", 8 / 3), ("inverse_sqrt_frequency", (8 / 3) ** 0.5)]
)
def test_inverse_frequencies_by_class(reader: RecordReader, kind: str, expected: float) -> None:
    """Eight objects of the first category, none of the second, three of the third."""
    weights = _balance(reader, f"train.class_weights={kind}").class_weights
    assert weights is not None
    np.testing.assert_allclose(weights[2] / weights[0], expected, rtol=1e-6)
    np.testing.assert_allclose((8 * weights[0] + 3 * weights[2]) / 11, 1.0, rtol=1e-6)
    assert weights[1] == 1.0


def test_named_weights_are_taken_as_they_are(reader: RecordReader) -> None:
    balance = _balance(reader, "train.class_weights={kind 7: 2.5, kind 40: 0}", RARE)
    assert balance.class_weights is not None
    assert balance.class_weights.tolist() == [1.0, 2.5, 0.0]
    assert balance.repeat_factors is not None


def test_an_unknown_category_is_refused_with_the_nearest(reader: RecordReader) -> None:
    with pytest.raises(ConfigError, match=r"train\.class_weights\.kind 44: .*no category.* nearest is kind 40\."):
        _balance(reader, "train.class_weights={kind 44: 2}")


def test_a_detector_that_cannot_weight_is_refused() -> None:
    config = tiny_config("train.class_weights={kind 7: 2}")
    detector = detector_from_config(config.model, CATEGORIES)
    input_options_from_config(config, detector, CATEGORIES)
    other = Detector(config=TinyConfig(), num_classes=3, name="other")
    with pytest.raises(ConfigError, match=r"train\.object_weights: efficientdet-nano does not support weighted losses"):
        input_options_from_config(tiny_config("train.object_weights=true"), other, CATEGORIES)
    with pytest.raises(ConfigError, match=r"train\.class_weights: efficientdet-nano does not support weighted losses"):
        input_options_from_config(config, other, CATEGORIES)
