"""`model.weights`: resolved when a training begins, recorded, and never changed by a resume."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detection.datasets.annotations.coco_categories import COCO_CATEGORIES
from detection.interop.automl.checkpoint import automl_name
from detection.models.efficientdet.config import EFFICIENTDETS
from detection.models.registry import build_detector
from detection.training.auto.weights_choice import with_weights
from detection.training.build_step import initialize_from_config, state_from_config
from detection.training.checkpoints.manager import Checkpoints
from detection.training.resolve import assumed
from detection.training.start_check import check_start
from detection.weights.publications import COCO_DETECTORS
from schemas.artifacts import CHECKPOINTS, CONFIG_YAML
from schemas.config.config import Config
from schemas.config.config_io import load_config, to_yaml
from schemas.config.section import value_at
from tests.detection.interop.automl.checkpoints import Weights, save_named
from tests.detection.pretrained.publisher import Publisher, published_detector, running_publisher

CATEGORIES = [{"id": 1, "name": "gnu"}, {"id": 2, "name": "zebra"}]
NANO, PATH = "efficientdet-nano", "/efficientdet-nano.tar.gz"


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    """Says that it publishes a very small detector, and does not yet."""
    monkeypatch.delenv("COCOFLOW_OFFLINE")
    small = EFFICIENTDETS[NANO].changed({"neck": {"filters": 16, "cells": 1}, "head": {"layers": 1}})
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


def test_imagenet_weights_freeze_the_first_stages_of_a_new_run(tmp_path: Path) -> None:
    def frozen(config: Config, output: Path, base_model: str | None = None) -> int | None:
        resolved = with_weights(config, output=output, base_model=base_model, strategy=tf.distribute.get_strategy())
        return value_at(resolved.model.overrides, "backbone.frozen_stages")

    config = _config(tmp_path, "model.weights=imagenet")
    assert frozen(config, tmp_path / "new") == 4
    assert frozen(config, tmp_path / "new", base_model="model") is None
    assert frozen(_config(tmp_path, "model.weights=none"), tmp_path / "new") is None
    asked = _config(tmp_path, "model.weights=imagenet", "model.overrides.backbone.frozen_stages=1")
    assert frozen(asked, tmp_path) == 1
    begun = _begun(tmp_path / "earlier", "imagenet")
    assert frozen(config, begun) == 0
    (begun / CONFIG_YAML).write_text("model: {weights: imagenet, overrides: {backbone: {frozen_stages: 2}}}")
    assert frozen(config, begun) == 2


def test_what_the_user_names_stays(publisher: Publisher, tmp_path: Path) -> None:
    assert _resolved(_config(tmp_path, "model.weights=coco"), tmp_path / "out") == "coco"
    assert _resolved(_config(tmp_path, "model.backbone_weights=imagenet"), tmp_path / "out") == "auto"
    assert _resolved(_config(tmp_path, "train.init.checkpoint=somewhere"), tmp_path / "out") == "auto"
    assert _resolved(_config(tmp_path), tmp_path / "out", base_model="model") == "auto"
    assert publisher.asked == []


SMALL_RCNN = (
    "train.batch_size=1",
    "model.image_size=64",
    "model.overrides={neck: {filters: 16}, max_level: 5, box_head: {units: 16}, roi: {sampling: {count: 8}}}",
    "model.overrides.rpn.train.post_nms_top_k=20",
)


def _small(name: str, *assignments: str) -> Config:
    return load_config(None, [*SMALL_RCNN, f"model.name={name}", "train.steps=1", *assignments])


@pytest.mark.parametrize("name", ["faster-rcnn-r50", "faster-rcnn-r18"])
def test_from_random_weights_nothing_of_the_preset_is_frozen(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    strategy = tf.distribute.get_strategy()
    asked = _small(name)
    config = with_weights(asked, output=tmp_path / "out", base_model=None, strategy=strategy)
    added = {"backbone": {"frozen_stages": 0, "train_batch_norm": True}}
    assert config.model.overrides == {**asked.model.overrides, **added}
    # The same once a checkpoint is there, whatever can be fetched by then.
    begun = _begun(tmp_path / "begun", "none")
    assert with_weights(asked, output=begun, base_model=None, strategy=strategy).model == config.model
    [said] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"{name} starts from random weights, so its backbone is not frozen" in said
    assert '{"backbone": {"frozen_stages": 0, "train_batch_norm": true}}' in said
    assert ("`cocoflow weights fetch resnet-50`" in said) == (name == "faster-rcnn-r50")


def test_what_the_user_freezes_and_what_is_loaded_stays_frozen(tmp_path: Path) -> None:
    strategy = tf.distribute.get_strategy()
    for assignments, base_model, frozen in (
        (["model.weights=none", "model.overrides.backbone.frozen_stages=1"], None, 1),
        (["model.weights=none"], "model", None),
        (["model.weights=imagenet"], None, None),
        (["train.init.checkpoint=somewhere"], None, None),
    ):
        config = _small("faster-rcnn-r50", *assignments)
        got = with_weights(config, output=tmp_path / "out", base_model=base_model, strategy=strategy)
        assert value_at(got.model.overrides, "backbone.frozen_stages") == frozen, assignments


@pytest.mark.slow
def test_a_training_from_random_weights_is_resumed_with_the_same_variables(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint has slots of the variables that train alone: with frozen stages, it would not fit."""
    strategy = tf.distribute.get_strategy()
    asked = _small("faster-rcnn-r18", "model.weights=none")
    config = with_weights(asked, output=tmp_path, base_model=None, strategy=strategy)
    state = state_from_config(assumed(config, replicas=1), CATEGORIES, strategy=strategy)
    caplog.clear()
    initialize_from_config(config, state, CATEGORIES, strategy=strategy, start_step=0, base_model=None)
    assert caplog.messages == []
    backbone = {variable.path for variable in state.model.backbone_variables if variable.path.endswith("kernel")}
    assert backbone <= {variable.path for variable in state.trainable}
    checkpoints = Checkpoints(state, tmp_path / CHECKPOINTS, keep=1)
    checkpoints.restore_latest()
    checkpoints.save(1)
    (tmp_path / CONFIG_YAML).write_text(to_yaml(config))
    check_start(_small("faster-rcnn-r18"), categories=CATEGORIES, checkpoints=tmp_path / CHECKPOINTS)


@pytest.mark.slow
def test_a_published_detector_is_trained_on_with_its_class_outputs(
    publisher: Publisher, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = _publish(publisher, tmp_path / "published")
    zebra = next(number for number, name in COCO_CATEGORIES.items() if name == "zebra")
    config = assumed(_config(tmp_path, "model.weights=coco"), replicas=1)
    strategy = tf.distribute.get_strategy()
    state = state_from_config(config, [{}] * 2, strategy=strategy)
    report = initialize_from_config(config, state, CATEGORIES, strategy=strategy, start_step=0, base_model=None)
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
