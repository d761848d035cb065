"""Confusion and calibration against plain loops."""

from typing import Any

import numpy as np
import pytest
from pycocotools import mask as masks

from detection.analysis.analyse import analyse
from detection.analysis.analysis_file import Analysis
from detection.coco.params import make_params
from schemas.config.evaluate import AnalysisConfig
from tests.detection.analysis.cases import counted_detections, detections_of, ground_truth_of
from tests.detection.coco.generated_cases import SIDE, generate, pycocotools_eval

IDS = (2, 7, 31, 90)
QUICK = AnalysisConfig(replicates=0, score=0.3)
BOX = [10.0, 10.0, 40.0, 40.0]


def analysed(seed: int, iou_type: str = "bbox") -> Analysis:
    return analyse(*generate(seed), params=make_params(iou_type), options=QUICK)


def overlaps(detections: list[dict[str, Any]], annotations: list[dict[str, Any]], iou_type: str) -> Any:
    if not detections or not annotations:
        return np.zeros((len(detections), len(annotations)))
    if iou_type == "bbox":
        return masks.iou(
            [one["bbox"] for one in detections], [one["bbox"] for one in annotations], [0] * len(annotations)
        )
    ground_truth = [masks.merge(masks.frPyObjects(one["segmentation"], SIDE, SIDE)) for one in annotations]
    return masks.iou([one["segmentation"] for one in detections], ground_truth, [0] * len(annotations))


@pytest.mark.parametrize("iou_type", ["bbox", "segm"])
@pytest.mark.parametrize("seed", range(10))
def test_confusion_equals_plain_loops(seed: int, iou_type: str) -> None:
    ground_truth, detections = generate(seed)
    expected = np.zeros((5, 5), int)
    for image in ground_truth["images"]:
        annotations = [
            one for one in ground_truth["annotations"] if one["image_id"] == image["id"] and not one["iscrowd"]
        ]
        kept = [one for one in detections if one["image_id"] == image["id"] and one["score"] >= 0.3]
        # Equal scores: by category, then as they came.
        kept.sort(key=lambda one: (-one["score"], one["category_id"]))
        overlap = overlaps(kept, annotations, iou_type)
        free = set(range(len(annotations)))
        for row, detection in enumerate(kept):
            near = [column for column in free if overlap[row, column] >= 0.5]
            column = IDS.index(detection["category_id"])
            if near:
                best = max(near, key=lambda one: overlap[row, one])
                free.remove(best)
                expected[IDS.index(annotations[best]["category_id"]), column] += 1
            else:
                expected[4, column] += 1
        for fn in free:
            expected[IDS.index(annotations[fn]["category_id"]), 4] += 1
    confusion = analysed(seed, iou_type).confusion
    assert confusion is not None
    assert (confusion.category_ids, confusion.iou, confusion.score) == ([*IDS], 0.5, 0.3)
    np.testing.assert_array_equal(confusion.matrix, expected)


def test_confusion_by_hand() -> None:
    ground_truth = ground_truth_of((1, 1, BOX), (1, 2, [100.0, 100.0, 30.0, 30.0]))
    detections = detections_of((1, 2, BOX, 0.9), (1, 1, [100.0, 10.0, 20.0, 20.0], 0.8), (1, 1, BOX, 0.1))
    confusion = analyse(ground_truth, detections, params=make_params(), options=QUICK).confusion
    assert confusion is not None
    # An object of the first category is taken for one of the second; one of the second is missed.
    assert confusion.matrix == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]


def test_keypoints_have_no_confusion_and_no_label_errors() -> None:
    analysis = analysed(0, "keypoints")
    assert analysis.confusion is None
    assert analysis.label_errors == []
    assert analysis.errors


@pytest.mark.parametrize("iou_type", ["bbox", "segm", "keypoints"])
@pytest.mark.parametrize("seed", range(8))
def test_calibration_equals_plain_loops(seed: int, iou_type: str) -> None:
    counted = list(counted_detections(pycocotools_eval(*generate(seed), iou_type)))
    analysis = analysed(seed, iou_type)
    calibration = analysis.calibration
    assert calibration is not None
    gaps = []
    for number, one in enumerate(calibration.bins):
        # Tenths: a score of 0.3 belongs to the fourth.
        inside = [entry for entry in counted if int(entry.score * 10 + 1e-9) == number]
        assert (one.low, one.high) == pytest.approx((number / 10, (number + 1) / 10))
        assert one.count == len(inside)
        if inside:
            score, right = (float(np.mean([entry[part] for entry in inside])) for part in (2, 3))
            assert (one.score, one.precision) == pytest.approx((score, right))
            gaps.append((len(inside), abs(score - right)))
    assert len(calibration.bins) == 10
    assert calibration.expected_error == pytest.approx(sum(n * gap for n, gap in gaps) / len(counted))
    assert calibration.max_error == pytest.approx(max(gap for _, gap in gaps))


@pytest.mark.parametrize("seed", range(4))
def test_calibration_of_categories(seed: int) -> None:
    counted = list(counted_detections(pycocotools_eval(*generate(seed))))
    for category in analysed(seed).categories:
        theirs = [entry for entry in counted if entry.category == category.id]
        gap = 0.0
        for number in {int(entry.score * 10 + 1e-9) for entry in theirs}:
            inside = [entry for entry in theirs if int(entry.score * 10 + 1e-9) == number]
            gap += abs(sum(entry.score for entry in inside) - sum(entry.right for entry in inside)) / len(theirs)
        assert category.calibration_error == (pytest.approx(gap) if theirs else None)


def test_categories_of_one_name_have_calibrations_of_their_own() -> None:
    ground_truth = ground_truth_of((1, 1, BOX), (1, 2, BOX))
    for category in ground_truth["categories"]:
        category["name"] = "same"
    detections = detections_of((1, 1, BOX, 0.95), (1, 2, BOX, 0.65))
    rows = analyse(ground_truth, detections, params=make_params(), options=QUICK).categories
    assert [row.calibration_error for row in rows] == pytest.approx([0.05, 0.35])


@pytest.mark.parametrize("scores", [(), (1.5, 0.2), (-0.1, 0.2)])
def test_scores_that_are_no_probabilities_are_not_calibrated(scores: tuple[float, ...]) -> None:
    ground_truth = ground_truth_of((1, 1, BOX))
    analysis = analyse(
        ground_truth, detections_of(*[(1, 1, BOX, s) for s in scores]), params=make_params(), options=QUICK
    )
    assert analysis.calibration is None
    assert {category.calibration_error for category in analysis.categories} == {None}
