"""Resampled metrics are those of pycocotools for a data set in which images are there several times."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detection.analysis.analysis_file import Interval
from detection.analysis.bootstrap import (
    bootstrap,
    difference_intervals,
    draw_images,
    interval,
    metric_intervals,
    resample,
)
from detection.coco.evaluation import evaluate
from detection.coco.metrics import UNDEFINED, FloatArray, metric_definitions_of
from detection.coco.params import make_params
from schemas.config.evaluate import AnalysisConfig
from schemas.metrics import METRIC_DEFINITIONS
from tests.detection.analysis.cases import detections_of, evaluated, ground_truth_of, lvis_case, ranked, repeated
from tests.detection.coco.generated_cases import detections_near, generate, pycocotools_eval

OTHERS = ("pascal_voc_AP50", "weighted_pascal_voc_AP50", "open_images_AP50")
BOX = [10.0, 10.0, 50.0, 50.0]


def assert_equal(values: FloatArray, expected: FloatArray | list[float]) -> None:
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-12)


def as_stats(metrics: dict[str, FloatArray], replicate: int) -> FloatArray:
    values = np.array([values[replicate] for values in metrics.values()])
    return np.where(np.isnan(values), UNDEFINED, values)


@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
@pytest.mark.parametrize("seed", range(12))
def test_each_image_once_gives_the_metrics_of_pycocotools(seed: int, iou_type: str) -> None:
    ground_truth, detections = generate(seed)
    model = evaluated(ground_truth, detections, make_params(iou_type))
    metrics = resample(model, np.ones((1, len(ground_truth["images"])), np.uint8)).metrics
    reference = pycocotools_eval(ground_truth, detections, iou_type)
    assert_equal(as_stats(metrics, 0), reference.stats)


@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
@pytest.mark.parametrize("seed", range(100, 106))
def test_images_drawn_several_times_count_several_times(seed: int, iou_type: str) -> None:
    ground_truth, detections = generate(seed)
    detections = ranked(detections)
    ids = sorted(image["id"] for image in ground_truth["images"])
    draws = draw_images(len(ids), 4, seed)
    resampled = resample(evaluated(ground_truth, detections, make_params(iou_type)), draws)
    for replicate, draw in enumerate(draws.tolist()):
        again = repeated(ground_truth, detections, dict(zip(ids, draw, strict=True)))
        reference = pycocotools_eval(*again, iou_type)
        assert_equal(as_stats(resampled.metrics, replicate), reference.stats)
        precision = reference.eval["precision"][:, :, :, 0, -1].mean(axis=(0, 1))
        categories = np.nan_to_num(resampled.categories[:, replicate], nan=UNDEFINED)
        assert_equal(categories, precision)


@pytest.mark.parametrize("seed", range(100, 103))
def test_further_metrics_are_resampled(seed: int) -> None:
    ground_truth, detections = generate(seed)
    detections = ranked(detections)
    ids = sorted(image["id"] for image in ground_truth["images"])
    draws = draw_images(len(ids), 4, seed)
    model = evaluated(ground_truth, detections, make_params(metrics=OTHERS))
    resampled = resample(model, draws)
    assert model.metrics == evaluate(ground_truth, detections, metrics=OTHERS).by_name
    for replicate, draw in enumerate(draws.tolist()):
        again = repeated(ground_truth, detections, dict(zip(ids, draw, strict=True)))
        expected = evaluate(*again, metrics=OTHERS).by_name
        for name in OTHERS:
            value = resampled.metrics[name][replicate]
            assert (UNDEFINED if np.isnan(value) else value) == pytest.approx(expected[name], abs=1e-12)


@pytest.mark.parametrize("first", [0, 1])
def test_of_objects_that_overlap_equally_the_last_is_taken(first: int) -> None:
    boxes = [[0.0, 0.0, 10.0, 10.0], [4.0, 0.0, 10.0, 10.0]]
    ground_truth = ground_truth_of((1, 1, boxes[first]), (1, 1, boxes[1 - first]))
    # The first lies between the two; the second fits one of them alone.
    detections = detections_of((1, 1, [2.0, 0.0, 10.0, 10.0], 0.9), (1, 1, boxes[0], 0.8))
    metrics = resample(evaluated(ground_truth, detections), np.ones((1, 1), np.uint8)).metrics
    assert_equal(as_stats(metrics, 0), pycocotools_eval(ground_truth, detections).stats)
    assert metrics["AP50"][0] == pytest.approx(51 / 101 if first else 1.0)


@pytest.mark.parametrize(
    ("iou_type", "file"),
    [("bbox", "instances_val.json"), ("segm", "instances_val.json"), ("keypoints", "person_keypoints_val.json")],
)
def test_real_annotations(shared_data: Path, iou_type: str, file: str) -> None:
    ground_truth = json.loads((shared_data / "coco2017_ccby" / file).read_text())
    detections = ranked(detections_near(ground_truth, np.random.default_rng(0)))
    ids = sorted(image["id"] for image in ground_truth["images"])
    draws = draw_images(len(ids), 2, 0)
    metrics = resample(evaluated(ground_truth, detections, make_params(iou_type)), draws).metrics
    for replicate, draw in enumerate(draws.tolist()):
        again = repeated(ground_truth, detections, dict(zip(ids, draw, strict=True)))
        assert_equal(as_stats(metrics, replicate), pycocotools_eval(*again, iou_type).stats)


@pytest.mark.parametrize("seed", range(200, 206))
def test_own_params(seed: int) -> None:
    ground_truth, detections = generate(seed)
    # All but exact: COCOeval lets an IoU of 1 be reached from 1 - 1e-10 on.
    for entry in ground_truth["annotations"][::3]:
        x, y, width, height = entry["bbox"]
        detections.append({**entry, "bbox": [x, y, width, height * (1 - 1e-12)], "score": 0.95})
    params = make_params(
        max_dets=(1, 2, 3),
        iou_thresholds=(0.3, 0.5, 1.0),
        area_ranges={"all": (0, 1e10), "thin": (0, 700), "none": (1, 2)},
    )
    resampled = resample(
        evaluated(ground_truth, detections, params), np.ones((1, len(ground_truth["images"])), np.uint8)
    ).metrics
    expected = evaluate(
        ground_truth,
        detections,
        max_dets=params.max_dets,
        iou_thresholds=params.iou_thresholds,
        area_ranges=params.area_ranges,
    )
    assert list(resampled) == list(expected.by_name)
    assert_equal(as_stats(resampled, 0), list(expected.by_name.values()))


@pytest.mark.parametrize("most", [300, 5])
@pytest.mark.parametrize("seed", range(300, 306))
def test_lvis(seed: int, most: int) -> None:
    ground_truth, detections = lvis_case(seed)
    detections = ranked(detections)
    params = make_params(lvis=True, max_dets=(most,))
    ids = sorted(image["id"] for image in ground_truth["images"])
    draws = draw_images(len(ids), 3, seed)
    resampled = resample(evaluated(ground_truth, detections, params), draws).metrics
    assert list(resampled) == [metric.name for metric in metric_definitions_of(params)]
    for replicate, draw in enumerate(draws.tolist()):
        again = repeated(ground_truth, detections, dict(zip(ids, draw, strict=True)))
        metrics = evaluate(*again, lvis=True, max_dets=(most,))
        assert_equal(as_stats(resampled, replicate), list(metrics.by_name.values()))


def test_many_replicates_are_summed_up_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    ground_truth, detections = generate(7)
    model = evaluated(ground_truth, detections)
    draws = draw_images(len(ground_truth["images"]), 50, 0)
    whole = resample(model, draws)
    monkeypatch.setattr("detection.analysis.bootstrap._BLOCK", 20)
    blocks = resample(model, draws)
    for name, values in whole.metrics.items():
        np.testing.assert_array_equal(blocks.metrics[name], values)
    np.testing.assert_array_equal(blocks.categories, whole.categories)


def test_draws_are_of_as_many_images_and_differ_by_seed() -> None:
    draws = draw_images(40, 30, 3)
    assert draws.shape == (30, 40)
    assert set(draws.sum(axis=1)) == {40}
    assert len({tuple(draw) for draw in draws.tolist()}) == 30
    # A fraction of 1/e is left out of each draw.
    assert 0.3 < (draws == 0).mean() < 0.44
    np.testing.assert_array_equal(draw_images(40, 30, 3), draws)
    assert not np.array_equal(draw_images(40, 30, 4), draws)


def recall_case(images: int, fraction: float, seed: int = 0) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One object an image, detected in a fraction of them: AR100 is that fraction, a mean of independent images."""
    hits = np.random.default_rng(seed).permutation(images) < fraction * images
    ground_truth = ground_truth_of(*[(image + 1, 1, BOX) for image in range(images)], images=images, categories=1)
    return ground_truth, detections_of(*[(image + 1, 1, BOX, 0.9) for image in np.flatnonzero(hits).tolist()])


def test_by_hand() -> None:
    replicates = np.array([0.1, 0.2, np.nan, 0.3, 0.4, 0.5])
    bounds = interval(0.35, replicates, 0.5, min_value=0.0)
    # The median, 0.3, is moved onto 0.35; half of the replicates lie between their quartiles, 0.2 and 0.4.
    assert bounds is not None
    assert (bounds.value, bounds.low, bounds.high) == pytest.approx((0.35, 0.25, 0.45))
    assert bounds.probability == 1.0


def test_bounds_stay_where_a_metric_can_be() -> None:
    replicates = np.array([0.0, 0.5, 1.0])
    for value, min_value, bounds in ((0.9, 0.0, (0.45, 1.0)), (0.1, 0.0, (0.0, 0.55)), (-0.9, -1.0, (-1.0, -0.45))):
        result = interval(value, replicates, 0.9, min_value=min_value)
        assert result is not None
        assert (result.low, result.high) == pytest.approx(bounds)


def test_undefined_replicates_alone_give_no_interval() -> None:
    assert interval(0.5, np.array([np.nan, np.nan]), 0.9, min_value=0.0) is None


def test_undefined_metrics_are_left_out() -> None:
    defined = {"AP": np.array([0.4, 0.6]), "APs": np.array([0.4, 0.6])}
    assert set(metric_intervals({"AP": 0.5, "APs": -1.0}, defined, 0.9)) == {"AP"}
    assert set(difference_intervals({"AP": 0.5, "APs": -1.0}, {"AP": 0.5, "APs": 0.5}, defined, defined, 0.9)) == {"AP"}
    assert set(difference_intervals({"AP": 0.5, "APs": 0.5}, {"AP": 0.5, "APs": -1.0}, defined, defined, 0.9)) == {"AP"}


@pytest.mark.parametrize("images", [100, 400])
def test_width_is_that_of_the_mean_of_as_many_images(images: int) -> None:
    model = evaluated(*recall_case(images, 0.6))
    bounds = bootstrap(model, None, AnalysisConfig(replicates=2000)).metrics["AR100"]
    deviation = np.sqrt(0.6 * 0.4 / images)
    assert bounds.value == pytest.approx(0.6)
    # Leaving repeated images out, as the engine's own intervals do, would give 0.76 of the width.
    assert bounds.high - bounds.low == pytest.approx(2 * 1.96 * deviation, rel=0.07)


@pytest.mark.parametrize("seed", range(10))
def test_intervals_hold_the_value_and_undefined_metrics_have_none(seed: int) -> None:
    model = evaluated(*generate(seed))
    intervals = bootstrap(model, None, AnalysisConfig(replicates=50))
    assert {name for name, value in model.metrics.items() if value >= 0} == set(intervals.metrics)
    for name, bounds in intervals.metrics.items():
        assert 0.0 <= bounds.low <= bounds.value <= bounds.high <= 1.0
        assert bounds.value == model.metrics[name]
    assert intervals.differences == {}
    assert intervals.categories == {}


def test_undefined_metrics_have_no_difference() -> None:
    ground_truth, detections = generate(0)
    ground_truth["annotations"] = [entry for entry in ground_truth["annotations"] if entry["area"] > 32**2]
    model = evaluated(ground_truth, detections)
    intervals = bootstrap(model, model, AnalysisConfig(replicates=20))
    assert model.metrics["APs"] == -1
    assert "AP" in intervals.differences
    assert not {"APs", "ARs"} & {*intervals.differences, *intervals.metrics}


@pytest.mark.parametrize("seed", range(5))
def test_a_model_does_not_differ_from_itself(seed: int) -> None:
    model = evaluated(*generate(seed))
    again = evaluated(*generate(seed))
    intervals = bootstrap(model, again, AnalysisConfig(replicates=30))
    assert intervals.differences
    assert set(intervals.differences.values()) == {Interval(0.0, 0.0, 0.0, 0.0)}
    assert set(intervals.categories.values()) == {Interval(0.0, 0.0, 0.0, 0.0)}


def test_a_clearly_better_model_is_told_and_chance_is_not() -> None:
    ground_truth, good = recall_case(200, 0.8, seed=1)
    _, bad = recall_case(200, 0.5, seed=2)
    _, lucky = recall_case(200, 0.505, seed=3)
    options = AnalysisConfig(replicates=400)
    gain = bootstrap(evaluated(ground_truth, good), evaluated(ground_truth, bad), options)
    assert gain.differences["AR100"].low > 0.15
    assert gain.differences["AR100"].probability == 1.0
    assert gain.categories[1].low > 0.15
    loss = bootstrap(evaluated(ground_truth, bad), evaluated(ground_truth, good), options)
    assert loss.differences["AR100"].high < -0.15
    chance = bootstrap(evaluated(ground_truth, lucky), evaluated(ground_truth, bad), options).differences["AR100"]
    assert chance.low < 0 < chance.high
    assert 0.2 < chance.probability < 0.9


def test_models_are_compared_on_the_same_draws() -> None:
    ground_truth, detections = recall_case(100, 0.5)
    worse = evaluated(ground_truth, detections[1:])
    difference = bootstrap(evaluated(ground_truth, detections), worse, AnalysisConfig(replicates=300)).differences[
        "AR100"
    ]
    # They differ on one image: by the fraction of draws of it, not by the spread of the metrics.
    assert difference.value == pytest.approx(0.01)
    assert difference.low >= 0
    assert difference.high <= 0.05


def test_without_replicates_or_images_there_are_none() -> None:
    ground_truth, detections = generate(0)
    model = evaluated(ground_truth, detections)
    assert bootstrap(model, None, AnalysisConfig(replicates=0)).metrics == {}
    empty = evaluated({"images": [], "annotations": [], "categories": ground_truth["categories"]}, [])
    assert bootstrap(empty, None, AnalysisConfig()).metrics == {}
