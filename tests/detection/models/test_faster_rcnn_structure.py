"""Parameter counts, shapes, frozen variables and refused options of the two-stage family."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.models.backbones.resnet import RESNETS
from detection.models.faster_rcnn.config import FasterRcnnConfig
from detection.models.faster_rcnn.model import FasterRcnn
from detection.models.faster_rcnn.targets import anchor_assignment
from detection.models.layers.batch_norm import BatchNormalization
from detection.models.registry import build_detector, detector_names
from detection.training.engine.variable_selection import decayed_variables, freeze_variables
from detection.types import Labels
from schemas.errors import ConfigError

Oracles = dict[str, dict[str, Any]]

# Small heads, where the test is about the backbone.
SMALL: dict[str, Any] = {"neck": {"filters": 4}, "box_head": {"units": 4}}
C4 = {"architecture": "c4", "min_level": 4, "max_level": 4, "include_mask": False}


def _elements(variables: Any) -> int:
    return sum(int(np.prod(variable.shape)) for variable in variables)


def _build(name: str, *, num_classes: int = 3, **overrides: Any) -> FasterRcnn:
    detector = build_detector(name, num_classes=num_classes, overrides=overrides)
    assert isinstance(detector, FasterRcnn)
    return detector


@pytest.fixture(scope="module")
def r50() -> FasterRcnn:
    return _build("mask-rcnn-r50", num_classes=90)


def test_parameter_counts_of_r50(r50: FasterRcnn, oracles: Oracles) -> None:
    expected = oracles["maskrcnn.params.r50_fpn"]["expected"]
    assert _elements(r50.variables) == expected["total_with_bn_stats"]
    assert _elements(r50.trainable_variables) == expected["trainable_after_freezing_stem_and_conv2"]
    assert len(r50.trainable_variables) == expected["trainable_tensors_after_freeze"]
    parts: dict[str, Any] = {"fpn": r50.fpn, "rpn": r50.rpn, "box_head": r50.box_head, "mask_head": r50.mask_head}
    assert {name: _elements(part.variables) for name, part in parts.items()} == {name: expected[name] for name in parts}
    statistics = expected["total_with_bn_stats"] - expected["trainable_before_freeze"]
    assert _elements(r50.backbone.variables) == expected["backbone"] + statistics
    scales = [variable for variable in r50.backbone.variables if variable.path.endswith(("gamma", "beta"))]
    assert _elements(scales) == expected["bn_gamma_beta_backbone"]


@pytest.mark.extended
def test_parameter_counts_of_r101(oracles: Oracles) -> None:
    expected = oracles["maskrcnn.params.r101_fpn"]["expected"]
    detector = _build("mask-rcnn-r101", num_classes=90)
    assert _elements(detector.variables) == expected["total_with_bn_stats"]
    assert _elements(detector.trainable_variables) == expected["trainable_after_freeze"]
    statistics = _elements(variable for variable in detector.variables if "moving_" in variable.path)
    assert _elements(detector.variables) - statistics == expected["trainable_before_freeze"]


def test_what_trains_and_what_decays_are_the_originals(r50: FasterRcnn, oracles: Oracles) -> None:
    """The engine's own rules; they find no statistics to move, as batch norm does not train."""
    expected = oracles["maskrcnn.params.r50_fpn"]["expected"]
    changing = freeze_variables(r50)
    assert _elements(changing.trainable) == expected["trainable_after_freezing_stem_and_conv2"]
    assert changing.statistics == ()
    decayed = decayed_variables(changing.trainable)
    assert (len(decayed), _elements(decayed)) == (expected["l2_tensors"], expected["l2_elements"])


def test_anchors_are_the_originals(r50: FasterRcnn, oracles: Oracles) -> None:
    expected = oracles["anchors.maskrcnn"]["expected"]
    assert len(r50.anchors) == expected["count_1024"]
    np.testing.assert_allclose(r50.anchors[:3], expected["first3"], atol=1e-3)
    small = _build("faster-rcnn-r18", image_size=(128, 128), **SMALL)
    assert len(small.anchors) == expected["count_128"]
    np.testing.assert_allclose(small.anchors[-3:], expected["last3_128"], atol=1e-3)


def test_shapes_are_the_originals(r50: FasterRcnn, oracles: Oracles) -> None:
    expected = oracles["maskrcnn.shapes.1024"]["expected"]
    outputs = tf.function(r50).get_concrete_function(tf.TensorSpec([1, 1024, 1024, 3])).structured_outputs
    assert [feature.shape.as_list()[1:] for feature in outputs.features] == list(expected["fpn"].values())
    assert {logits.shape[3] for logits in outputs.rpn.logits} == {expected["rpn_scores_last_dim"]}
    assert {deltas.shape[3] for deltas in outputs.rpn.deltas} == {expected["rpn_boxes_last_dim"]}
    config = r50.config
    assert [config.box_head.roi_size] * 2 == expected["box_roi"][:2]
    assert [config.mask_head.roi_size] * 2 == expected["mask_roi"][:2]
    assert int(config.roi.sampling.count * config.roi.sampling.positive_fraction) == expected["max_fg_masks"]
    names = list(r50.named_outputs(outputs))
    assert names == [f"rpn_{kind}_p{level}" for kind in ("score", "box") for level in range(2, 7)]


def test_defaults_are_the_originals(oracles: Oracles) -> None:
    config, sampling = FasterRcnnConfig(), oracles["roi.sampling"]
    assert config.roi.sampling.count == sampling["inputs"]["batch_size_per_im"]
    assert config.roi.sampling.positive_fraction == sampling["inputs"]["fg_fraction"]
    assert config.rules.max_log_size == pytest.approx(oracles["coder.maskrcnn_plus1"]["expected"]["clip"])
    assert config.rules.rpn_huber_delta == pytest.approx(1 / 9)
    assert (config.box_head.code_factors, config.box_head.huber_delta) == ((10.0, 10.0, 5.0, 5.0), 1.0)


@pytest.mark.parametrize(
    ("backbone", "prefixes"),
    [
        ("resnet-18", {"stem", "conv2_1", "conv2_2"}),
        ("resnet-34", {"stem", "conv2_1", "conv2_2", "conv2_3"}),
        ("mnasnet-small", {"stem", "blocks_0", "blocks_1"}),
    ],
)
def test_the_first_stages_are_frozen_by_default(backbone: str, prefixes: set[str]) -> None:
    """Of shallow ResNets, too, where the original's numbers of layers reached further."""
    detector = _build("faster-rcnn-r50", backbone={"name": backbone}, **SMALL)
    trains = {variable.path for variable in detector.trainable_variables}
    frozen = {
        variable.path.split("/")[1]
        for variable in detector.backbone.variables
        if variable.path not in trains and "moving_" not in variable.path
    }
    assert frozen == prefixes
    assert not {path.split("/")[1] for path in trains if path.startswith(backbone)} & prefixes


def test_frozen_and_fixed_parts_compute_in_training_what_they_do_in_inference() -> None:
    images = tf.random.stateless_normal([2, 64, 64, 3], [0, 0])
    detector = _build("faster-rcnn-r18", image_size=(64, 64), **SMALL)
    before = detector.get_weights()
    for ours, theirs in zip(detector(images, training=True).features, detector(images).features, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for old, new in zip(before, detector.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_batch_norm_trains_outside_of_the_frozen_stages() -> None:
    backbone = {"train_batch_norm": True, "frozen_stages": 1}
    detector = _build("faster-rcnn-r18", image_size=(64, 64), backbone=backbone, **SMALL)
    layers = [layer for layer in detector.backbone._flatten_layers() if isinstance(layer, BatchNormalization)]
    before = {layer.moving_mean.path: layer.moving_mean.numpy() for layer in layers}
    detector(tf.random.stateless_normal([2, 64, 64, 3], [0, 0]), training=True)
    moved = {
        layer.moving_mean.path
        for layer in layers
        if (layer.moving_mean.numpy() != before[layer.moving_mean.path]).any()
    }
    assert moved == {path for path in before if "/stem/" not in path}
    assert {variable.path for variable in freeze_variables(detector).statistics if "mean" in variable.path} == moved


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"backbone": {"name": "resnet"}}, r"backbone\.name = 'resnet': no such backbone\. Choose from resnet-18"),
        ({"max_level": 4}, "levels 2 to 4 do not fit resnet-50: include its deepest level, 5"),
        ({"min_level": 6}, "levels 6 to 6 do not fit"),
        ({"backbone": {"frozen_stages": 6}}, "frozen_stages = 6: resnet-50 has 5 stages"),
        ({"anchors": {"scale": (8.0, 8.0)}}, r"anchors\.scale has 2 values for the 5 levels 2 to 6"),
        ({"rpn": {"matcher": {"negative_iou": 0.8}}}, r"rpn\.matcher: negative_iou = 0\.8 is above positive"),
        ({"roi": {"background_iou": (0.5, 0.1)}}, r"roi: background_iou = \[0\.5, 0\.1\] must be 0 <= low < high <= 1"),
        (
            {"backbone": {"name": "efficientnet-nano"}, "activation": "relu6"},
            r"activation = relu6 does nothing with backbone\.name = efficientnet-nano and dialect = standard",
        ),
        (
            {"architecture": "c4"},
            r"architecture = c4 needs min_level = max_level = 4, include_mask = false and no box_",
        ),
        (
            C4 | {"backbone": {"name": "efficientnet-nano"}},
            r"architecture = c4 needs a ResNet, not backbone\.name = efficientnet-nano",
        ),
        (C4 | {"box_head": {"units": 8}}, "units = 8 does nothing with architecture = c4"),
        ({"dialect": "od-api", "roi": {"align_samples": 2}}, "align_samples = 2 does nothing with"),
    ],
)
def test_options_that_do_not_fit_are_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _build("mask-rcnn-r50", **overrides)


def test_conv5_of_c4_runs_on_rois_and_trains() -> None:
    detector = _build("faster-rcnn-r50-c4", backbone={"name": "resnet-18"}, image_size=(64, 96))
    outputs = detector(tf.random.stateless_normal([2, 64, 96, 3], [0, 0]))
    assert [feature.shape for feature in outputs.features] == [(2, 4, 6, 256)]
    rois = tf.constant([[[0.0, 0.0, 40.0, 50.0]] * 3] * 2)
    assert detector._box_features(outputs, rois).shape == (2, 3, 4, 4, 512)
    trained = {variable.path.split("/")[1] for variable in detector.trainable_variables}
    assert {"conv3_1", "conv4_2", "conv5_1", "conv5_2"} < trained
    assert not {"stem", "conv2_1"} & trained


def test_anchors_across_the_border_are_clipped_and_may_have_no_loss() -> None:
    kept, clipped, ignored = (
        FasterRcnnConfig().changed({"image_size": (64, 64), "anchors": {"crossing": crossing}})
        for crossing in ("keep", "clip", "ignore")
    )
    anchors = kept.anchors_yxyx()
    inside = (anchors[:, :2] >= 0).all(axis=1) & (anchors[:, 2:] <= 64).all(axis=1)
    assert 0 < inside.sum() < len(anchors)
    for config in (clipped, ignored):
        np.testing.assert_allclose(config.anchors_yxyx(), np.clip(anchors, 0, 64))
    assert not kept.ignored_anchors.any()
    assert not clipped.ignored_anchors.any()
    np.testing.assert_array_equal(ignored.ignored_anchors, ~inside)
    boxes = tf.constant([[[0.0, 0.0, 40.0, 30.0]]])  # at the border, so that its best anchors cross it
    labels = Labels(boxes=boxes, classes=tf.zeros([1, 1], tf.int32), valid=tf.ones([1, 1], tf.bool))
    assignment = anchor_assignment(ignored, ignored.anchors_yxyx(), labels)
    assert assignment.ignored is not None
    assert assignment.ignored.numpy()[0, ~inside].all()
    assert assignment.positive.numpy()[0, inside].any(), "the best one of the others"
    assert not assignment.positive.numpy()[0, ~inside].any()


def test_an_output_of_masks_needs_masks() -> None:
    with pytest.raises(ConfigError, match="mask_output = pasted does nothing without masks"):
        build_detector("faster-rcnn-nano", num_classes=3, postprocess={"mask_output": "pasted"})
    pasted = build_detector("mask-rcnn-nano", num_classes=3, postprocess={"mask_output": "pasted"})
    assert (pasted.capabilities.mask_size, pasted.capabilities.mask_output) == (56, "pasted")
    for without in (_build("faster-rcnn-nano"), _build("mask-rcnn-nano", include_mask=False)):
        assert without.capabilities.mask_size == 0


def test_presets_are_of_every_resnet_that_keras_or_the_original_has() -> None:
    for kind in ("faster", "mask"):
        names = {name.removeprefix(f"{kind}-rcnn-") for name in detector_names() if name.startswith(f"{kind}-rcnn-")}
        one_level = {f"r{depth}-c4" for depth in (50, 101, 152)} if kind == "faster" else set()
        assert names == {"nano", *(f"r{depth}" for depth in (18, 34, 50, 101, 152)), *one_level}
    assert {int(name.removeprefix("resnet-")) for name in RESNETS} == {18, 34, 50, 101, 152, 200}
