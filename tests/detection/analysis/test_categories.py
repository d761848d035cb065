"""The per-category table and the curves against pycocotools' arrays and matches."""

import contextlib
import io

import numpy as np
import pytest

from detection.analysis.analyse import analyse
from detection.analysis.analysis_file import Analysis, SizeBucket
from detection.analysis.categories import size_buckets
from detection.coco.metrics import UNDEFINED
from detection.coco.params import make_params
from schemas.config.evaluate import AnalysisConfig
from schemas.metrics import METRIC_DEFINITIONS
from tests.detection.analysis.cases import (
    counted_detections,
    detections_of,
    evaluated,
    ground_truth_of,
    lvis_case,
    objects_to_find,
)
from tests.detection.coco.generated_cases import generate, pycocotools_eval

QUICK = AnalysisConfig(replicates=0)

EDGES = (0, 16, 32, 64, 96, 128, 256, 512)


def mean(values: np.ndarray) -> float:
    defined = values[values > -1]
    return float(defined.mean()) if defined.size else UNDEFINED


def analysed(seed: int, iou_type: str = "bbox") -> Analysis:
    ground_truth, detections = generate(seed)
    return analyse(ground_truth, detections, params=make_params(iou_type), baseline=detections[::2], options=QUICK)


@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
@pytest.mark.parametrize("seed", range(5))
def test_metrics_are_those_of_the_categories_slice(seed: int, iou_type: str) -> None:
    ground_truth, detections = generate(seed)
    analysis = analysed(seed, iou_type)
    areas = ("all", "medium", "large") if iou_type == "keypoints" else ("all", "small", "medium", "large")
    for attribute, entries in (("metrics", detections), ("baseline_metrics", detections[::2])):
        evaluation = pycocotools_eval(ground_truth, entries, iou_type)
        precision, recall = evaluation.eval["precision"], evaluation.eval["recall"]
        for position, category in enumerate(analysis.categories):
            expected = {
                "AP": mean(precision[:, :, position, 0, -1]),
                "AP50": mean(precision[0, :, position, 0, -1]),
                "AP75": mean(precision[5, :, position, 0, -1]),
                **{f"AP{name[0]}": mean(precision[:, :, position, i, -1]) for i, name in enumerate(areas) if i},
                "AR" if iou_type == "keypoints" else "AR100": mean(recall[:, position, 0, -1]),
            }
            assert getattr(category, attribute) == pytest.approx(expected, abs=1e-12)


def test_columns_follow_the_params() -> None:
    ground_truth, detections = generate(0)
    params = make_params(max_dets=(1, 2, 7), area_ranges={"all": (0, 1e10), "wide": (900, 1e10)})
    metrics = analyse(ground_truth, detections, params=params, options=QUICK).categories[0].metrics
    assert list(metrics) == ["AP", "AP50", "AP75", "APs", "APm", "APl", "AR7", "AP_wide"]
    assert metrics["APs"] == UNDEFINED


@pytest.mark.parametrize("seed", range(5))
def test_numbers(seed: int) -> None:
    ground_truth, detections = generate(seed)
    analysis = analysed(seed)
    assert [(category.id, category.name) for category in analysis.categories] == [
        (i, f"category {i}") for i in (2, 7, 31, 90)
    ]
    for category in analysis.categories:
        theirs = [entry for entry in ground_truth["annotations"] if entry["category_id"] == category.id]
        counting = [entry for entry in theirs if not entry["iscrowd"]]
        assert category.ground_truth == len(counting)
        assert category.images == len({entry["image_id"] for entry in counting})
        assert category.detections == sum(entry["category_id"] == category.id for entry in detections)


def test_lvis_counts_crowds_but_not_what_it_ignores() -> None:
    ground_truth, detections = lvis_case(3)
    params = make_params(lvis=True, max_dets=(300,))
    for category in analyse(ground_truth, detections, params=params, options=QUICK).categories:
        theirs = [entry for entry in ground_truth["annotations"] if entry["category_id"] == category.id]
        assert category.ground_truth == sum(not entry["ignore"] for entry in theirs)
    assert any(entry["ignore"] for entry in ground_truth["annotations"])
    assert any(entry["iscrowd"] for entry in ground_truth["annotations"])


@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
@pytest.mark.parametrize("seed", range(8))
def test_operating_points_are_the_best_of_all_thresholds(seed: int, iou_type: str) -> None:
    ground_truth, detections = generate(seed)
    evaluation = pycocotools_eval(ground_truth, detections, iou_type)
    counted = list(counted_detections(evaluation))
    annotations = objects_to_find(evaluation)
    for category in analysed(seed, iou_type).categories:
        theirs = [one for one in counted if one.category == category.id]
        best = (0.0, 0.0, 0.0, 0.0)
        for threshold in {one.score for one in theirs}:
            kept = [one for one in theirs if one.score >= threshold]
            hits = sum(one.right for one in kept)
            if annotations[category.id] and hits:
                f1 = 2 * hits / (len(kept) + annotations[category.id])
                best = max(best, (f1, threshold, hits / len(kept), hits / annotations[category.id]))
        if best[0] == 0.0:
            assert category.best is None
        else:
            point = category.best
            assert point is not None
            assert (point.f1, point.score, point.precision, point.recall) == pytest.approx(best)


@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
@pytest.mark.parametrize("seed", range(2))
def test_detections_are_counted_by_score(seed: int, iou_type: str) -> None:
    ground_truth, detections = generate(seed)
    counted = list(counted_detections(pycocotools_eval(ground_truth, detections, iou_type)))
    assert sum(one.score == 0.5 for one in counted) > 5, "on the bound of a bin"
    for category in analysed(seed, iou_type).categories:
        theirs = [one for one in counted if one.category == category.id]
        for step in range(101):
            kept = [one.right for one in theirs if one.score >= step / 100]
            assert sum(category.tp_by_score[step:]) == sum(kept)
            assert sum(category.fp_by_score[step:]) == len(kept) - sum(kept)


def test_scores_that_are_no_probabilities_are_not_counted() -> None:
    ground_truth, detections = generate(1)
    detections[0]["score"] = 1.5
    rows = analyse(ground_truth, detections, params=make_params(), options=QUICK).categories
    assert {(*row.tp_by_score, *row.fp_by_score) for row in rows} == {()}


@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
@pytest.mark.parametrize("seed", range(4))
def test_the_operating_point_of_all_categories_is_the_best_of_all_thresholds(seed: int, iou_type: str) -> None:
    ground_truth, detections = generate(seed)
    evaluation = pycocotools_eval(ground_truth, detections, iou_type)
    counted = list(counted_detections(evaluation))
    annotations = sum(objects_to_find(evaluation).values())
    best = (0.0, 0.0, 0.0, 0.0)
    for threshold in {one.score for one in counted}:
        kept = [one.right for one in counted if one.score >= threshold]
        if annotations and sum(kept):
            best = max(
                best,
                (2 * sum(kept) / (len(kept) + annotations), threshold, sum(kept) / len(kept), sum(kept) / annotations),
            )
    point = analysed(seed, iou_type).operating_point
    assert (point.f1, point.score, point.precision, point.recall) == pytest.approx(best) if point else best[0] == 0.0


def test_an_operating_point_by_hand() -> None:
    boxes = [[10.0 + 40 * i, 10.0, 30.0, 30.0] for i in range(4)]
    ground_truth = ground_truth_of(*[(1, 1, box) for box in boxes])
    far = [10.0, 150.0, 30.0, 30.0]
    detections = detections_of(
        (1, 1, boxes[0], 0.9), (1, 1, far, 0.8), (1, 1, boxes[1], 0.7), (1, 1, far, 0.2), (1, 2, far, 0.9)
    )
    rows = analyse(ground_truth, detections, params=make_params(), options=QUICK).categories
    # 2 of 3 detections right, 2 of 4 objects found: F1 = 4 / (3 + 4).
    assert rows[0].best is not None
    assert (rows[0].best.score, rows[0].best.f1) == (0.7, pytest.approx(4 / 7))
    assert (rows[0].best.precision, rows[0].best.recall) == (pytest.approx(2 / 3), 0.5)
    assert rows[1].best is None


@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
@pytest.mark.parametrize("seed", range(5))
def test_curves_are_pycocotools_precision(seed: int, iou_type: str) -> None:
    ground_truth, detections = generate(seed)
    precision = pycocotools_eval(ground_truth, detections, iou_type).eval["precision"][:, :, :, 0, -1]
    analysis = analysed(seed, iou_type)
    assert analysis.recall == pytest.approx(np.linspace(0, 1, 101))
    for position, category in enumerate(analysis.categories):
        expected = precision[0, :, position] if category.ground_truth else []
        np.testing.assert_allclose(category.precision, expected, rtol=0, atol=1e-12)
    defined = precision[:, :, precision[0, 0] > -1]
    assert list(analysis.curves) == ["0.50", "0.75", "0.50:0.95"]
    np.testing.assert_allclose(analysis.curves["0.50"], defined[0].mean(axis=1), rtol=0, atol=1e-12)
    np.testing.assert_allclose(analysis.curves["0.75"], defined[5].mean(axis=1), rtol=0, atol=1e-12)
    np.testing.assert_allclose(analysis.curves["0.50:0.95"], defined.mean(axis=(0, 2)), rtol=0, atol=1e-12)
    assert np.mean(analysis.curves["0.50:0.95"]) == pytest.approx(analysis.metrics["AP"], abs=1e-12)


def test_curves_of_other_thresholds() -> None:
    ground_truth, detections = generate(1)
    params = make_params(iou_thresholds=(0.5, 0.6))
    assert list(analyse(ground_truth, detections, params=params, options=QUICK).curves) == ["0.50", "0.50:0.60"]


def test_without_objects_curves_are_undefined() -> None:
    ground_truth, detections = generate(1)
    analysis = analyse({**ground_truth, "annotations": []}, detections, params=make_params(), options=QUICK)
    assert analysis.curves == {name: [UNDEFINED] * 101 for name in ("0.50", "0.75", "0.50:0.95")}
    assert {category.best for category in analysis.categories} == {None}
    assert [category.precision for category in analysis.categories] == [[]] * 4


def buckets(seed: int, iou_type: str) -> list[SizeBucket]:
    model = evaluated(*generate(seed), make_params(iou_type))
    return size_buckets(model)


@pytest.mark.parametrize("iou_type", ["bbox", "segm", "keypoints"])
@pytest.mark.parametrize("seed", range(4))
def test_metrics_equal_pycocotools(seed: int, iou_type: str) -> None:
    ground_truth, detections = generate(seed)
    of_sizes = buckets(seed, iou_type)
    assert [(bucket.low, bucket.high) for bucket in of_sizes] == list(zip(EDGES, (*EDGES[1:], 0), strict=True))
    recall_name = "AR" if iou_type == "keypoints" else "AR100"
    for bucket in of_sizes:
        # Areas here are never a whole number, so that both ends of a range may belong to it.
        limits = [bucket.low**2, bucket.high**2 or 1e10]
        evaluation = pycocotools_eval(ground_truth, detections, iou_type)
        evaluation.params.areaRng = [limits]
        with contextlib.redirect_stdout(io.StringIO()):
            evaluation.evaluate()
            evaluation.accumulate()
        precision, recall = evaluation.eval["precision"][..., 0, -1], evaluation.eval["recall"][..., 0, -1]
        annotations = sum(
            not one["iscrowd"] and limits[0] <= one["area"] < limits[1] for one in ground_truth["annotations"]
        )
        assert bucket.ground_truth == annotations
        for name, values in (("AP", precision), ("AP50", precision[0]), (recall_name, recall)):
            defined = values[values > -1]
            assert bucket.metrics[name] == pytest.approx(defined.mean() if annotations else -1, abs=1e-12)
        assert list(bucket.metrics) == ["AP", "AP50", recall_name]


def test_an_object_is_in_one_bucket() -> None:
    sides = (15.999, 16.0, 32.0, 96.0, 600.0)
    ground_truth = ground_truth_of(
        *[(number + 1, 1, [0.0, 0.0, side, side]) for number, side in enumerate(sides)], images=5
    )
    detections = detections_of(*[(one["image_id"], 1, one["bbox"], 0.9) for one in ground_truth["annotations"]])
    model = evaluated(ground_truth, detections)
    rows = size_buckets(model)
    assert [row.ground_truth for row in rows] == [1, 1, 1, 0, 1, 0, 0, 1]
    assert [row.metrics["AR100"] for row in rows] == [1, 1, 1, -1, 1, -1, -1, 1]


def test_without_anything() -> None:
    model = evaluated({"images": [], "annotations": [], "categories": []}, [])
    rows = size_buckets(model)
    assert {row.ground_truth for row in rows} == {0}
    assert np.unique([list(row.metrics.values()) for row in rows]) == [-1]
