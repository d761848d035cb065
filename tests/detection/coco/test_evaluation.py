"""`evaluate` against pycocotools, oracle numbers and its own promises."""

import copy
from typing import Any

import numpy as np
import pytest

from detection.coco import CocoMetrics, evaluate
from detection.coco.metrics import UNDEFINED
from detection.coco.params import AREA_RANGES
from tests.detection.coco.generated_cases import generate, pycocotools_eval

ARRAYS = ("precision", "recall", "scores")


def assert_equal(metrics: CocoMetrics, reference: Any) -> None:
    np.testing.assert_allclose(metrics.stats, reference.stats, rtol=0, atol=1e-12)
    for name in ARRAYS:
        np.testing.assert_allclose(getattr(metrics, name), reference.eval[name], rtol=0, atol=1e-12)


def test_max_dets_reach_the_metrics_where_pycocotools_gives_up() -> None:
    ground_truth, detections = generate(3)
    reference = pycocotools_eval(ground_truth, detections, maxDets=[1, 2, 4])
    metrics = evaluate(ground_truth, detections, max_dets=(1, 2, 4))
    np.testing.assert_allclose(metrics.stats[1:], reference.stats[1:], atol=1e-12)
    assert reference.stats[0] == -1
    precision = reference.eval["precision"][:, :, :, 0, 2]
    assert metrics.by_name["AP"] == pytest.approx(precision[precision > -1].mean(), abs=1e-12)


def test_arrays_of_rows_equal_entries() -> None:
    ground_truth, detections = generate(5)
    rows = np.array([[d["image_id"], *d["bbox"], d["score"], d["category_id"]] for d in detections])
    np.testing.assert_array_equal(evaluate(ground_truth, rows).stats, evaluate(ground_truth, detections).stats)


def test_what_is_given_stays() -> None:
    ground_truth, detections = generate(6)
    before = copy.deepcopy((ground_truth, detections))
    evaluate(ground_truth, detections)
    assert (ground_truth, detections) == before


def test_no_detections_give_zero_where_there_is_ground_truth() -> None:
    ground_truth, _ = generate(0)
    metrics = evaluate(ground_truth, [])
    assert metrics.by_name["AP"] == 0.0
    assert metrics.by_name["AR100"] == 0.0


def test_no_ground_truth_is_undefined() -> None:
    ground_truth, detections = generate(0)
    assert set(evaluate({**ground_truth, "annotations": []}, detections).stats) == {UNDEFINED}


def test_per_category_equals_the_mean_of_its_slice() -> None:
    ground_truth, detections = generate(1)
    reference = pycocotools_eval(ground_truth, detections).eval["precision"]
    entries = evaluate(ground_truth, detections).per_category
    assert [entry["id"] for entry in entries] == [2, 7, 31, 90]
    assert entries[2] == {"id": 31, "name": "category 31", "AP": -1.0, "AP50": -1.0}
    assert entries[1]["AP"] == pytest.approx(reference[:, :, 1, 0, 2].mean(), abs=1e-12)
    assert entries[1]["AP50"] == pytest.approx(reference[0, :, 1, 0, 2].mean(), abs=1e-12)


def test_own_thresholds_and_areas() -> None:
    ground_truth, detections = generate(2)
    plain = evaluate(ground_truth, detections)
    metrics = evaluate(
        ground_truth, detections, iou_thresholds=[0.5], area_ranges={"all": (0, 1e10), "small": (0, 32**2)}
    )
    assert metrics.by_name["AP"] == metrics.by_name["AP50"] == plain.by_name["AP50"]
    assert metrics.by_name["AP75"] == metrics.by_name["APl"] == UNDEFINED
    assert metrics.precision.shape == (1, 101, 4, 2, 3)


def test_area_ranges_of_other_names_have_metrics_of_their_own() -> None:
    ground_truth, detections = generate(2)
    plain = evaluate(ground_truth, detections)
    tiny = evaluate(ground_truth, detections, area_ranges={"all": (0, 1e10), "small": (0, 700)}).by_name
    metrics = evaluate(ground_truth, detections, area_ranges={**AREA_RANGES, "tiny": (0, 700)})
    assert metrics.by_name == {**plain.by_name, "AP_tiny": tiny["APs"], "AR_tiny": tiny["ARs"]}
    assert tiny["APs"] != plain.by_name["APs"]
    np.testing.assert_array_equal(metrics.stats, plain.stats)
    keypoints = evaluate(ground_truth, detections, "keypoints", area_ranges={"all": (0, 1e10), "small": (0, 32**2)})
    assert list(keypoints.by_name)[-2:] == ["AP_small", "AR_small"]
    assert len(keypoints.stats) == 10


def test_recalls_are_named_by_their_detections() -> None:
    metrics = evaluate(*generate(2), max_dets=(2, 5, 7))
    assert [name for name in metrics.by_name if name.startswith("AR")] == ["AR2", "AR5", "AR7", "ARs", "ARm", "ARl"]
    assert metrics.by_name["AR5"] == metrics.stats[7]


def test_what_annotations_may_leave_out() -> None:
    ground_truth, detections = generate(4)
    for annotation in ground_truth["annotations"]:
        annotation["area"] = annotation["bbox"][2] * annotation["bbox"][3]
    short = copy.deepcopy(ground_truth)
    for annotation in short["annotations"]:
        del annotation["area"]
        annotation["is_crowd"] = annotation.pop("iscrowd")
    assert_equal(evaluate(short, detections), pycocotools_eval(ground_truth, detections))


def test_objects_without_keypoints_are_ignored() -> None:
    ground_truth, detections = generate(4)
    for annotation in ground_truth["annotations"][::2]:
        annotation.update(keypoints=[0] * 51, num_keypoints=0)
    short = copy.deepcopy(ground_truth)
    for annotation in short["annotations"][::2]:
        del annotation["keypoints"], annotation["num_keypoints"]
    del short["annotations"][1]["num_keypoints"]
    assert_equal(evaluate(short, detections, "keypoints"), pycocotools_eval(ground_truth, detections, "keypoints"))


def test_an_annotation_with_id_0_can_be_matched() -> None:
    ground_truth = _ground_truth()
    ground_truth["annotations"][0]["id"] = 0
    assert evaluate(ground_truth, _detections()).by_name["AP"] == pytest.approx(1.0)


def test_oracle_cases(oracles: dict[str, dict[str, Any]]) -> None:
    expected = oracles["coco.small_cases"]["expected"]
    for name, (boxes, scored) in _oracle_cases().items():
        ground_truth = {
            "images": [{"id": 1, "width": 640, "height": 640}],
            "annotations": [
                {"id": i, "image_id": 1, "bbox": box, "area": box[2] * box[3], "category_id": c, "iscrowd": crowd}
                for i, (box, c, crowd) in enumerate(boxes, 1)
            ],
            "categories": [{"id": 1, "name": "one"}, {"id": 2, "name": "two"}],
        }
        detections = [{"image_id": 1, "category_id": 1, "bbox": box, "score": score} for box, score in scored]
        np.testing.assert_allclose(evaluate(ground_truth, detections).stats, expected[name], atol=1e-5, err_msg=name)
    assert set(expected) == set(_oracle_cases())


def _oracle_cases() -> dict[str, tuple[list[Any], list[Any]]]:
    a, b = [100, 100, 100, 100], [300, 300, 100, 100]
    far = [500, 500, 50, 50]
    small, medium, large = [10, 10, 20, 20], [100, 100, 50, 50], [300, 300, 200, 200]
    crowd = [300, 300, 200, 200]
    return {
        "perfect_single": ([(a, 1, 0)], [(a, 0.9)]),
        "iou_0.75_single": ([(a, 1, 0)], [([100, 100, 100, 75], 0.9)]),
        "iou_0.7499": ([(a, 1, 0)], [([100, 100, 100, 74.99], 0.9)]),
        "one_of_two": ([(a, 1, 0), (b, 1, 0)], [(a, 0.9)]),
        "fp_first": ([(a, 1, 0)], [(far, 0.9), (a, 0.8)]),
        "fp_last": ([(a, 1, 0)], [(a, 0.9), (far, 0.8)]),
        "dup": ([(a, 1, 0)], [(a, 0.9), (a, 0.8)]),
        "crowd_ignored": ([(a, 1, 0), (crowd, 1, 1)], [([320, 320, 50, 50], 0.9), (a, 0.8)]),
        "two_classes_one_missed": ([(a, 1, 0), (b, 2, 0)], [(a, 0.9)]),
        "areas": ([(small, 1, 0), (medium, 1, 0), (large, 1, 0)], [(small, 0.9), (large, 0.8)]),
    }


def _ground_truth() -> dict[str, Any]:
    return {
        "images": [{"id": 1, "width": 64, "height": 48}, {"id": 2, "width": 64, "height": 48}],
        "annotations": [{"id": 5, "image_id": 2, "category_id": 3, "bbox": [1, 2, 30, 20], "area": 600, "iscrowd": 0}],
        "categories": [{"id": 3, "name": "three"}],
    }


def _detections() -> list[dict[str, Any]]:
    return [{"image_id": 2, "category_id": 3, "bbox": [1.0, 2.0, 30.0, 20.0], "score": 0.5}]
