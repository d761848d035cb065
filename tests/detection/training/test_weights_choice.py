"""`model.weights`: resolved when a training begins, recorded, and never changed by a resume."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detection.datasets.coco_categories import COCO_CATEGORIES
from detection.models.efficientdet.config import EFFICIENTDETS
from detection.models.registry import build_detector
from detection.pretrained.publications import COCO_DETECTORS
from detection.training.build_step import initialize_from_config, state_from_config
from detection.training.resolve import assumed
from detection.training.weights_choice import with_weights
from detection.weights.automl import automl_name
from schemas.artifacts import CHECKPOINTS, CONFIG_YAML
from schemas.config.config import Config
from schemas.config.config_io import load_config
from tests.detection.pretrained.publisher import Publisher, published_detector, running_publisher
from tests.detection.weights.automl_checkpoints import Weights, save_named

NANO, PATH = "efficientdet-nano", "/efficientdet-nano.tar.gz"


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    """Says that it publishes a very small detector, and does not yet."""
    monkeypatch.delenv("COCOFLOW_OFFLINE")
    small = EFFICIENTDETS[NANO].model_copy(update={"fpn_filters": 16, "fpn_cells": 1, "head_layers": 1})
    monkeypatch.setitem(EFFICIENTDETS, NANO, small)
    with running_publisher() as running:
        publication = COCO_DETECTORS["efficientdet-d0"]._replace(name=NANO, origin=running.url + PATH)
        monkeypatch.setitem(COCO_DETECTORS, NANO, publication)
        yield running


def _publish(publisher: Publisher, folder: Path) -> Weights:
    """Publishes random weights for COCO's 90 ids; returns them by google/automl's names."""
    detector = build_detector(NANO, num_classes=90)
    random = np.random.default_rng(0)
    values = {
        automl_name(variable.path): random.uniform(0.1, 0.3, variable.shape).astype(np.float32)
        for variable in detector.variables
    }
    publisher.files[PATH] = published_detector(NANO, Path(save_named(folder / "ckpt", values)))
    return values


def _config(folder: Path, *assignments: str) -> Config:
    small = ("model.image_size=64", "train.batch_size=2", "train.steps=1", "train.strategy=one_device")
    cache = f"model.weights_cache={folder / 'cache'}"
    return load_config(None, [f"model.name={NANO}", cache, *small, *assignments])


def _resolved(config: Config, output: Path, base_model: str | None = None) -> str:
    strategy = tf.distribute.get_strategy()
    return with_weights(config, output=output, base_model=base_model, strategy=strategy).model.weights


def _begun(output: Path, weights: str) -> Path:
    """The output folder of a training that has a checkpoint."""
    (output / CHECKPOINTS).mkdir(parents=True)
    (output / CHECKPOINTS / "ckpt-1.index").touch()
    (output / CONFIG_YAML).write_text(f"model: {{weights: {weights}}}")
    return output


@pytest.mark.parametrize("weights", ["coco", "imagenet", "none"])
def test_a_resumed_run_keeps_its_choice(publisher: Publisher, tmp_path: Path, weights: str) -> None:
    assert _resolved(_config(tmp_path), _begun(tmp_path / "out", weights)) == weights
    assert publisher.asked == []


def test_a_run_that_an_earlier_version_began_asks_nobody(publisher: Publisher, tmp_path: Path) -> None:
    assert _resolved(_config(tmp_path), _begun(tmp_path / "out", "auto")) == "auto"
    (tmp_path / "out" / CONFIG_YAML).unlink()
    assert _resolved(_config(tmp_path), tmp_path / "out") == "auto"
    assert publisher.asked == []


def test_what_the_user_names_stays(publisher: Publisher, tmp_path: Path) -> None:
    assert _resolved(_config(tmp_path, "model.weights=coco"), tmp_path / "out") == "coco"
    assert _resolved(_config(tmp_path, "model.backbone_weights=imagenet"), tmp_path / "out") == "auto"
    assert _resolved(_config(tmp_path, "train.init.checkpoint=somewhere"), tmp_path / "out") == "auto"
    assert _resolved(_config(tmp_path), tmp_path / "out", base_model="model") == "auto"
    assert publisher.asked == []


@pytest.mark.slow
def test_a_published_detector_is_trained_on_with_its_class_outputs(
    publisher: Publisher, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = _publish(publisher, tmp_path / "published")
    zebra = next(number for number, name in COCO_CATEGORIES.items() if name == "zebra")
    categories = [{"id": 1, "name": "gnu"}, {"id": 2, "name": "zebra"}]
    config = assumed(_config(tmp_path, "model.weights=coco"), replicas=1)
    strategy = tf.distribute.get_strategy()
    state = state_from_config(config, [{}] * 2, strategy=strategy)
    report = initialize_from_config(config, state, categories, strategy=strategy, start_step=0, base_model=None)
    assert report is not None
    assert report.warm_start is not None
    assert (report.fresh, report.warm_start.new_categories) == ((), ("gnu",))
    assert report.published is not None
    assert report.published["origin"] == publisher.url + PATH
    values = {automl_name(variable.path): variable.numpy() for variable in state.model.variables}
    ours = values.pop("class_net/class-predict/bias").reshape(-1, 2)
    np.testing.assert_array_equal(ours[:, 1], theirs["class_net/class-predict/bias"].reshape(-1, 90)[:, zebra - 1])
    np.testing.assert_allclose(ours[:, 0], -np.log(99), rtol=1e-6, err_msg="the prior of a new class")
    for name, value in values.items():
        if "class-predict/pointwise_kernel" not in name:
            np.testing.assert_array_equal(value, theirs[name])
