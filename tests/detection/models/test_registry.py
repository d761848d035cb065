from typing import Any

import pytest
import tensorflow as tf

from detection.models.efficientdet.model import EfficientDet
from detection.models.registry import build_detector, detector_config, detector_from_config, detector_names
from detection.types import Resizing
from schemas import detectors
from schemas.config.config import ModelConfig
from schemas.config.input_size import ResizeConfig
from schemas.errors import ConfigError


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'efficientdet-d00': no such detector\. The nearest is efficientdet-d0\."):
        build_detector("efficientdet-d00", num_classes=3)


def test_the_names_known_without_tensorflow_are_those_of_the_registry() -> None:
    assert sorted(detectors.DETECTORS) == sorted(detector_names())


def test_a_name_unlike_any_other_is_refused_with_all() -> None:
    with pytest.raises(ConfigError, match=r"'yolov8': no such detector\. There are: .*-d0, .*mask-rcnn-r50"):
        build_detector("yolov8", num_classes=3)


def test_an_unknown_override_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"model\.overrides\.fpn_cell: no such field\. The nearest is neck\.cells\."):
        build_detector("efficientdet-nano", num_classes=3, overrides={"fpn_cell": 1})


def test_a_value_of_the_wrong_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.overrides\.neck\.filters = 'many': "):
        build_detector("efficientdet-nano", num_classes=3, overrides={"neck": {"filters": "many"}})


def test_an_unknown_backbone_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"model\.overrides\.backbone\.name = 'resnet': no such backbone\. Choose from"
    ):
        build_detector("efficientdet-nano", num_classes=3, overrides={"backbone": {"name": "resnet"}})


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ({"min_level": 5, "max_level": 5}, "levels 5 to 5: specify at least two levels"),
        ({"min_level": 6, "max_level": 8}, "levels 6 to 8 do not fit efficientnet-nano: include its deepest level, 5"),
        ({"max_level": 4}, "levels 3 to 4 do not fit efficientnet-nano: include its deepest level, 5"),
    ],
)
def test_levels_that_do_not_fit_are_refused(levels: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_detector("efficientdet-nano", num_classes=3, overrides=levels)


def test_overrides_act() -> None:
    detector = build_detector(
        "efficientdet-nano",
        num_classes=3,
        image_size=96,
        overrides={"neck": {"filters": 16}, "pixel_mean": [1, 2, 3]},
        postprocess={"score_threshold": 0.25, "max_detections": 7},
    )
    assert isinstance(detector, EfficientDet)
    assert detector.image_size == (96, 96)
    assert detector.pixel_mean == (1.0, 2.0, 3.0)
    assert detector.fpn.cells[-1].variables[-1].shape == (16,)
    assert detector.config.postprocess.score_threshold == 0.25
    assert detector.config.postprocess.max_detections == 7


@pytest.mark.parametrize(
    ("image_size", "resize", "expected", "fills"),
    [
        ((48, 64), {}, (48, 64), Resizing((48, 64))),
        (None, {}, (128, 128), Resizing((128, 128))),
        (None, {"mode": "short_side", "short_side": 50, "long_side": 90}, (90, 90), None),
        ((60, 90), {"mode": "short_side", "short_side": 50, "long_side": 90, "pad_to_multiple": 32}, (64, 96), None),
        (60, {"mode": "stretch", "pad_to_multiple": 64}, (64, 64), Resizing((60, 60), "stretch")),
    ],
)
def test_the_input_is_what_image_size_and_resize_say(
    image_size: Any, resize: dict[str, Any], expected: tuple[int, int], fills: Resizing | None
) -> None:
    small = {"neck": {"filters": 8, "cells": 1}, "head": {"layers": 1}}
    model = ModelConfig(name="efficientdet-nano", image_size=image_size, resize=ResizeConfig(**resize), overrides=small)
    detector = detector_from_config(model, [{}] * 2)
    assert detector.image_size == expected
    if fills is None:
        fills = Resizing(image_size or expected, "short_side", 50, 90)
    assert (detector.resizing.size, detector.resizing.mode) == (fills.size, fills.mode)
    if fills.mode == "short_side":
        assert detector.resizing == fills
    outputs = detector(tf.zeros([1, *expected, 3]))
    cells = sum(level.shape[1] * level.shape[2] for level in outputs.class_logits)
    assert len(detector.anchors) == 9 * cells


def test_an_input_too_small_for_the_sides_is_refused() -> None:
    resize = ResizeConfig(mode="short_side", short_side=50, long_side=90)
    with pytest.raises(ConfigError, match=r"model\.image_size = \[64, 64\] is too small for resize\.short_side = 50"):
        build_detector("efficientdet-nano", num_classes=2, image_size=64, resize=resize)
    with pytest.raises(ConfigError, match=r"model\.image_size = \[40, 90\] is too small"):
        build_detector("efficientdet-nano", num_classes=2, overrides={"image_size": (40, 90)}, resize=resize)


def test_an_unknown_or_invalid_option_of_the_post_processing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.postprocess\.score: no such field\. The nearest is score_threshold"):
        build_detector("efficientdet-nano", num_classes=3, postprocess={"score": 0.1})
    with pytest.raises(ConfigError, match=r"model\.postprocess\.score_threshold = 2: Input should be less than"):
        build_detector("efficientdet-nano", num_classes=3, postprocess={"score_threshold": 2})
    with pytest.raises(ConfigError, match=r"model\.postprocess\.max_detections = 2147483648: Input should be less"):
        build_detector("efficientdet-nano", num_classes=3, postprocess={"max_detections": 2**31})
    with pytest.raises(ConfigError, match=r"model\.overrides\.postprocess: set its fields in"):
        build_detector("efficientdet-nano", num_classes=3, overrides={"postprocess": {}})


def test_the_configuration_of_an_older_export_keeps_its_options() -> None:
    older = {"score_threshold": 0.001, "iou_threshold": 0.5, "max_detections": 100, "pre_nms_top_k": 1000}
    config = detector_config("efficientdet-nano", postprocess=older)
    newer = detector_config("efficientdet-nano", postprocess={"pre_nms_top_k": 1000})
    assert config == newer != detector_config("efficientdet-nano")


def test_names_are_unique() -> None:
    assert len(set(detector_names())) == len(detector_names())
    assert "efficientdet-d7x" in detector_names()


def test_a_detector_of_keypoints_needs_categories_with_keypoints() -> None:
    with pytest.raises(ConfigError, match=r"centernet-nano-kpts learns keypoints, but no category has keypoints"):
        build_detector("centernet-nano-kpts", num_classes=2, keypoints=[(), ()])
