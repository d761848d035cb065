"""Parameters of an evaluation: COCO's own where nothing is said, errors for what has no meaning."""

from typing import Any

import numpy as np
import pytest
from pycocotools.cocoeval import Params

from detection.coco.keypoint_sigmas import fit_keypoints
from detection.coco.params import IOU_TYPES, make_params
from schemas.errors import ConfigError


@pytest.mark.parametrize("iou_type", IOU_TYPES)
def test_defaults_are_those_of_pycocotools(iou_type: str) -> None:
    params, expected = make_params(iou_type), Params(iouType=iou_type)
    assert params.max_dets == tuple(expected.maxDets)
    assert list(params.area_ranges) == expected.areaRngLbl
    assert [list(limits) for limits in params.area_ranges.values()] == expected.areaRng
    np.testing.assert_array_equal(params.iou_thresholds, expected.iouThrs)
    if iou_type == "keypoints":
        np.testing.assert_array_equal(fit_keypoints(params, [{"id": 1}]).sigmas_of[1], expected.kpt_oks_sigmas)


def test_lvis_counts_300_detections() -> None:
    assert make_params(lvis=True).max_dets == (300,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"iou_type": "box"}, "iou_type 'box': choose one of bbox, segm, keypoints"),
        ({"max_dets": (1, 100)}, r"max_dets \(1, 100\): bbox takes 3 ascending"),
        ({"max_dets": (100, 10, 1)}, "ascending"),
        ({"max_dets": (0, 10, 100)}, "positive"),
        ({"max_dets": (5, 20), "iou_type": "keypoints"}, "keypoints takes 1 ascending"),
        ({"max_dets": (1, 10, 100), "iou_type": "keypoints"}, r"keypoints takes 1 ascending .*such as \(20,\)"),
        ({"max_dets": (5, 20), "lvis": True}, r"lvis takes 1 ascending positive number\(s\), such as \(300,\)"),
        ({"max_dets": (1, 10, 10**30)}, r"bbox takes 3 ascending .* up to 1000000000"),
        ({"max_dets": (1, 10, 2**63)}, "up to 1000000000"),
        ({"max_dets": (1.0, 10, 100)}, "bbox takes 3 ascending"),
        ({"iou_thresholds": [0.5, 1.5]}, "above 0 and up to 1"),
        ({"iou_thresholds": []}, "above 0 and up to 1"),
        ({"area_ranges": {"small": (0, 1)}}, "a range named 'all'"),
        ({"area_ranges": {"all": (0, 1), "odd": (5, 4)}}, "area_ranges: odd is from 5 to 4; specify 0 <= min"),
        ({"area_ranges": {"all": (0, float("nan"))}}, "all is from 0 to nan"),
        ({"area_ranges": {"all": (0, 9), "whole": (0.0, 9.0)}}, "two have the same limits. Remove one of them"),
        ({"oks_sigmas": [0.1]}, "oks_sigmas: only for keypoints, but the IoU type is bbox"),
        ({"oks_sigmas": [0.1, 0.0], "iou_type": "keypoints"}, r"oks_sigmas \(0.1, 0.0\): specify a positive number"),
        ({"oks_sigmas": [], "iou_type": "keypoints"}, "specify a positive number per keypoint"),
        ({"lvis": True, "iou_type": "keypoints"}, "lvis: LVIS compares boxes or masks"),
        ({"lvis": True, "use_cats": False}, "lvis: LVIS compares boxes or masks, category by category"),
    ],
)
def test_errors_of_parameters(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_params(**arguments)
