"""Checkpoints of the Object Detection API, imported: the function of the original, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.inference.restore import load_trained
from detection.interop.od_api.checkpoints.faster_rcnn import FasterRcnnFormat
from detection.models.faster_rcnn.model import FasterRcnn
from detection.models.registry import build_detector
from detection.ops.boxes import decode_yxyx
from detection.weights.imported_model import ImportedModel, import_model, write_model
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.config.section import value_at
from schemas.errors import ConfigError, DataError
from tests.detection.interop.automl.checkpoints import Weights, save, save_objects
from tests.detection.interop.od_api.original_faster_rcnn import (
    ANCHORS,
    CROP,
    FILTERS,
    SHORT,
    UNITS,
    OdApi,
    anchors_of_level,
    decoded,
    save_slim,
    short_resnet,
)

SIDE, CLASSES = 64, 2
PIXELS = np.random.default_rng(0).uniform(0, 255, (1, SIDE, SIDE, 3)).astype(np.float32)


def config_of(*assignments: str, name: str = "faster-rcnn-r50") -> Config:
    return load_config(None, [f"model.name={name}", f"model.image_size={SIDE}", *assignments])


def loaded(model: ImportedModel, folder: Path) -> FasterRcnn:
    folder.mkdir()
    write_model(model, folder)
    detector = load_trained(folder).detector
    assert isinstance(detector, FasterRcnn)
    return detector


def inputs_of(detector: FasterRcnn) -> Any:
    return tf.constant((PIXELS - np.array(detector.pixel_mean)) / np.array(detector.pixel_std), tf.float32)


def levels_of(detector: FasterRcnn) -> list[Any]:
    """The features of the backbone."""
    config = detector.config
    pixels = (PIXELS - np.array(config.pixel_mean)) / np.array(config.pixel_std)
    return detector.backbone(tf.constant(pixels, tf.float32))


@pytest.fixture(scope="module", autouse=True)
def _short_resnet() -> Iterator[None]:
    with short_resnet():
        yield


@pytest.fixture(scope="module")
def original() -> OdApi:
    network = OdApi(classes=CLASSES, seed=9)
    network.construct()
    return network


@pytest.fixture(scope="module")
def checkpoint(original: OdApi, tmp_path_factory: pytest.TempPathFactory) -> str:
    return original.write(tmp_path_factory.mktemp("training") / "ckpt-26")


@pytest.fixture(scope="module")
def imported(checkpoint: str) -> ImportedModel:
    return import_model(FasterRcnnFormat, Path(checkpoint).parent, config_of())


@pytest.fixture(scope="module")
def detector(imported: ImportedModel, tmp_path_factory: pytest.TempPathFactory) -> FasterRcnn:
    return loaded(imported, tmp_path_factory.mktemp("model") / "model")


def test_backbone_and_pyramid_are_the_original_s(original: OdApi, detector: FasterRcnn) -> None:
    levels = original.backbone(tf.constant(PIXELS))
    features = original.pyramid(levels)
    for ours, theirs in zip(levels_of(detector)[1:], levels, strict=True):
        assert (theirs.numpy() == 6.0).any(), "some are limited"
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
    pyramid = detector(inputs_of(detector)).features
    assert [feature.shape[1:] for feature in pyramid] == [(side, side, FILTERS) for side in (16, 8, 4, 2, 1)]
    for ours, theirs in zip(pyramid, features, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


def _assert_same_proposals(original: OdApi, detector: FasterRcnn) -> None:
    outputs, start = detector(inputs_of(detector)).rpn, 0
    unclipped = detector.config.changed({"anchors": {"crossing": "keep"}}).anchors_yxyx()
    theirs = original.rpn(original.pyramid(original.backbone(tf.constant(PIXELS))))
    for level, (logits, deltas, (classes, encoded)) in enumerate(
        zip(outputs.logits, outputs.deltas, theirs, strict=True), 2
    ):
        anchors = anchors_of_level(level, *logits.shape[1:3])
        ours = detector.anchors[start : start + len(anchors)]
        own_order = unclipped[start : start + len(anchors)]
        start += len(anchors)
        order, wanted = (np.lexsort(np.round(boxes, 2).T) for boxes in (own_order, anchors))
        anchors = np.clip(anchors, 0.0, SIDE)
        np.testing.assert_allclose(ours[order], anchors[wanted], atol=1e-3)
        boxes = decode_yxyx(tf.reshape(deltas, [1, -1, 4]), ours[np.newaxis], max_log_size=4.0)[0].numpy()
        expected = decoded(encoded.numpy(), anchors)
        np.testing.assert_allclose(boxes[order], expected[wanted], rtol=1e-3, atol=1e-2)
        probabilities = tf.nn.softmax(classes)[:, 1].numpy()
        np.testing.assert_allclose(tf.sigmoid(logits).numpy().ravel()[order], probabilities[wanted], atol=1e-4)
        assert np.ptp(probabilities) > 0.05
    assert start == len(detector.anchors)


def test_proposals_are_the_original_s(original: OdApi, detector: FasterRcnn) -> None:
    _assert_same_proposals(original, detector)


def _assert_same_box_head(original: OdApi, detector: FasterRcnn) -> None:
    rois = np.random.default_rng(1).normal(size=(5, CROP, CROP, FILTERS)).astype(np.float32)
    classes, encoded = original.box_head(tf.constant(rois))
    ours = detector.box_head(rois[np.newaxis])
    np.testing.assert_allclose(ours.class_logits[0], classes, rtol=1e-4, atol=1e-4)
    boxes = tf.constant([[10.0, 20.0, 40.0, 60.0]] * 5)
    for column in range(CLASSES):
        deltas = ours.box_deltas[:, :, 0 if detector.config.box_head.class_agnostic else column + 1]
        factors = detector.config.box_head.code_factors
        got = decode_yxyx(deltas, boxes[tf.newaxis], scale_factors=factors, max_log_size=4.0)[0]
        wanted = encoded.numpy()[:, min(column, encoded.shape[1] - 1)]
        np.testing.assert_allclose(got, decoded(wanted, boxes.numpy()), rtol=1e-4, atol=1e-3)


def test_box_head_is_the_original_s(original: OdApi, detector: FasterRcnn) -> None:
    _assert_same_box_head(original, detector)


def test_batch_norms_of_the_heads_are_folded(tmp_path: Path) -> None:
    network = OdApi(classes=CLASSES, feature_norm=True, head_norms=True, one_box=True)
    network.construct()
    model = import_model(FasterRcnnFormat, network.write(tmp_path / "ckpt-1"), config_of())
    assert model.unused == ()
    detector = loaded(model, tmp_path / "model")
    _assert_same_proposals(network, detector)
    _assert_same_box_head(network, detector)
    assert detector.config.box_head.class_agnostic


def test_the_settings_of_the_original(imported: ImportedModel, original: OdApi) -> None:
    overrides = imported.config.model.overrides
    assert (overrides["backbone"], overrides["dialect"], overrides["activation"]) == (
        {"layout": "od-api"},
        "od-api",
        "relu6",
    )
    sizes = [value_at(overrides, key) for key in ("neck.filters", "rpn.filters", "box_head.roi_size")]
    assert sizes == [FILTERS, 12, CROP]
    assert (imported.step, imported.unused, imported.missing) == (25000, (), ())
    assert imported.differences == ()
    assert overrides["roi"]["canonical_level"] == 5
    assert build_detector("faster-rcnn-r50", num_classes=CLASSES, overrides=overrides).rpn.scores[0].filters == ANCHORS


def test_masks_start_from_random_weights(tmp_path: Path, original: OdApi) -> None:
    masks = {"SecondStageBoxPredictor/MaskPredictor_conv2d_0/kernel": np.zeros((3, 3, UNITS, 4), np.float32)}
    prefix = save(tmp_path / "ckpt", original.variables | masks)
    model = import_model(FasterRcnnFormat, prefix, config_of(name="mask-rcnn-r50"))
    assert model.unused == tuple(masks)
    assert {path.partition("/")[0] for path in model.missing} == {"mask_head"}
    assert model.differences[0].startswith("the mask head starts from random weights")
    folder = tmp_path / "model"
    folder.mkdir()
    write_model(model, folder)
    with pytest.raises(DataError, match=r"mask_head/.* it is missing\. .* if its import\.json lists missing"):
        load_trained(folder)


def test_settings_of_the_call_win(checkpoint: str) -> None:
    overrides = "model.overrides={activation: relu, anchors: {num_scales: 1, aspect_ratios: [0.5, 0.6, 0.7, 1, 2, 3]}}"
    model = import_model(FasterRcnnFormat, checkpoint, config_of(overrides)).config.model
    anchors = model.overrides["anchors"]
    assert (model.overrides["activation"], anchors["num_scales"], anchors["scale"]) == ("relu", 1, 4.0)


def test_levels_and_layouts_of_the_call(checkpoint: str, detector: FasterRcnn) -> None:
    fewer = import_model(FasterRcnnFormat, checkpoint, config_of("model.overrides.min_level=3"))
    assert {"FeatureMaps/top_down/projection_1/kernel", "RPNConv/kernel"} & set(fewer.unused) == {
        "FeatureMaps/top_down/projection_1/kernel"
    }
    kept = {variable.path: variable.numpy() for variable in detector.variables}
    assert all(np.array_equal(kept[path], value) for path, value in fewer.raw.items())
    with pytest.raises(ConfigError, match=r"model\.overrides\.dialect = standard: the original's variables require od"):
        import_model(FasterRcnnFormat, checkpoint, config_of("model.overrides.dialect=standard"))
    with pytest.raises(DataError, match="2 missing: dense_2/kernel, dense_2/bias"):
        import_model(FasterRcnnFormat, checkpoint, config_of("model.overrides.box_head.layers=3"))


def _is_trained(name: str) -> bool:
    return "moving_" not in name


def test_ema_weights_are_folded_with_the_statistics(tmp_path: Path, original: OdApi, imported: ImportedModel) -> None:
    """The original averages trained variables alone, in slots of its optimizer."""
    others = OdApi(classes=CLASSES, seed=8).construct()
    ema = {name: value for name, value in others.items() if _is_trained(name)}
    model = import_model(
        FasterRcnnFormat, save_objects(tmp_path / "ckpt", original.variables, ema, ["momentum"]), config_of()
    )
    both = import_model(FasterRcnnFormat, save(tmp_path / "both", original.variables | ema), config_of())
    assert {path for path in model.raw if "moving_" not in path} == set(model.ema)
    for path, value in model.raw.items():
        np.testing.assert_array_equal(value, imported.raw[path])
    for path, value in model.ema.items():
        np.testing.assert_array_equal(value, both.raw[path])
        assert np.abs(value - model.raw[path]).max() > 1e-3 or path.startswith("box_head/box/")


@pytest.fixture(scope="module")
def one_level() -> OdApi:
    network = OdApi(epsilon=1e-5, limit=np.inf)
    network.construct_one_level()
    return network


def _with_backbone(model: ImportedModel) -> FasterRcnn:
    assert model.categories is None
    assert {path.partition("/")[0] for path in model.missing} == {"fpn", "rpn", "box_head"}
    assert model.differences[0].startswith("only the ResNet is imported")
    config = model.config.model
    detector = build_detector(config.name, num_classes=1, image_size=SIDE, overrides=config.overrides)
    assert isinstance(detector, FasterRcnn)
    for variable in detector.backbone_variables:
        variable.assign(model.raw[variable.path])
    return detector


def test_one_feature_level_gives_its_backbone_alone(tmp_path: Path, one_level: OdApi) -> None:
    model = import_model(FasterRcnnFormat, one_level.write(tmp_path / "ckpt-0"), config_of())
    assert len(model.unused) == 5
    assert all(name.startswith(("FirstStageBoxPredictor/", "RPNConv/", "SecondStage")) for name in model.unused)
    detector = _with_backbone(model)
    for ours, theirs in zip(levels_of(detector)[1:], one_level.backbone(tf.constant(PIXELS)), strict=True):
        assert theirs.numpy().max() > 6.0
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


def test_a_checkpoint_of_tf1_with_slim_s_strides(tmp_path: Path, one_level: OdApi) -> None:
    backbone = {name: value for name, value in one_level.variables.items() if name.startswith("conv")}
    ema = {name: value + np.float32(0.01) for name, value in backbone.items() if _is_trained(name)}
    model = import_model(FasterRcnnFormat, save_slim(tmp_path / "model.ckpt-200000", backbone, ema), config_of())
    layers = 1 + sum(3 * blocks + 1 for blocks in SHORT)
    assert (model.step, len(model.raw), len(model.ema)) == (200000, layers * 5, layers * 3)
    assert sorted(model.unused) == ["Conv/biases", "Conv/weights", "SecondStageBoxPredictor/ClassPredictor/biases"]
    np.testing.assert_array_equal(model.ema["resnet-50/stem/conv2d/kernel"], ema["conv1_conv/kernel"])
    detector = _with_backbone(model)
    levels = levels_of(detector)
    features = one_level.slim_features(tf.constant(PIXELS))
    np.testing.assert_allclose(levels[3], features, rtol=1e-3, atol=1e-3)
    last = one_level.slim_stage(features[:, ::2, ::2], 5, stride=1)
    np.testing.assert_allclose(levels[4], last, rtol=1e-3, atol=1e-3)


def _changed(weights: Weights, *, without: str = "", **others: np.ndarray) -> Weights:
    return {name: value for name, value in weights.items() if name != without} | others


def test_variables_that_do_not_match_are_named(tmp_path: Path, original: OdApi, checkpoint: str) -> None:
    lost, other = "FeatureMaps/top_down/smoothing_2_batchnorm/moving_mean", "dense_4/bias"
    weights = _changed(original.variables, without=lost) | {
        other: np.zeros(5, np.float32),
        "x/y": np.zeros(2, np.float32),
    }
    with pytest.raises(
        DataError,
        match=rf"1 missing: smoothing_2_batchnorm/moving_mean; 1 with another shape: {other} \[5\] instead of \[16\]; "
        "1 without a counterpart: x/y",
    ):
        import_model(FasterRcnnFormat, save(tmp_path / "changed", weights), config_of())
    weights = _changed(original.variables, without="dense_3/kernel")
    weights = _changed(weights, without="dense_4/kernel")
    with pytest.raises(DataError, match=r"a Faster R-CNN with an FPN, but dense_0/kernel is missing or has another"):
        import_model(FasterRcnnFormat, save(tmp_path / "without", weights), config_of())
    with pytest.raises(DataError, match=r"the RPN has 6 anchors per cell, but the configuration 3\. Pass anchor_scale"):
        import_model(FasterRcnnFormat, checkpoint, config_of("model.overrides.anchors.num_scales=1"))
    with pytest.raises(DataError, match=r"has no EMA weights\. Set --weights=raw or auto"):
        import_model(FasterRcnnFormat, checkpoint, config_of(), weights="ema")
