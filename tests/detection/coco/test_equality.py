"""Equality with pycocotools, arrays included, on generated awkward cases and on real data."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detection.coco import CocoMetrics, MetricsAccumulator, evaluate
from detection.coco.params import Params, make_params
from detection.coco.partitions import WHOLE, Partition, metrics_of_partitions, partitions_of
from schemas.metrics import METRIC_DEFINITIONS
from tests.detection.coco.awkward_cases import Case, awkward_case, reference, stats_are_comparable
from tests.detection.coco.generated_cases import detections_near

_ARRAYS = ("precision", "recall", "scores")
_AT_ONCE = 15  # cases of a test
_TESTS = 20  # by IoU type: 300 cases
_QUICK = 6  # of them
_FIRST = [pytest.param(_AT_ONCE * test, marks=[] if test < _QUICK else pytest.mark.extended) for test in range(_TESTS)]


@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
@pytest.mark.parametrize("first", _FIRST)
def test_generated_cases(first: int, iou_type: str) -> None:
    for seed in range(first, first + _AT_ONCE):
        case = awkward_case(seed, iou_type)
        expected = reference(case, iou_type)
        metrics = evaluate(case.ground_truth, case.detections, iou_type, **case.params)
        _assert_equal(metrics, expected, f"{iou_type} {seed}", stats=stats_are_comparable(case, iou_type))
        params = make_params(iou_type, **case.params)
        rng = np.random.default_rng(seed)
        _assert_shards_are(metrics, case, params, rng)
        if seed % 5 == 0:
            _assert_same(_in_parts(case, params, rng), metrics)


def test_the_cases_are_awkward() -> None:
    """What a case may hold is there many times among the generated ones."""
    counts = dict.fromkeys(["crowd", "ignore", "flat", "tie", "nothing", "polygons", "list", "text", "no box"], 0)
    for seed in range(_AT_ONCE * _TESTS):
        ground_truth, detections, _ = awkward_case(seed, "segm")
        annotations = ground_truth["annotations"]
        every = [*annotations, *detections]
        scores = [(d["image_id"], d["category_id"], d["score"]) for d in detections]
        shapes = [entry["segmentation"] for entry in every]
        counts["crowd"] += any(entry["iscrowd"] for entry in annotations)
        counts["ignore"] += any(entry["ignore"] for entry in annotations)
        counts["flat"] += any(0 in entry["bbox"][2:] for entry in every if "bbox" in entry)
        counts["tie"] += len(set(scores)) < len(scores)
        counts["nothing"] += not annotations or not detections
        counts["polygons"] += any(isinstance(shape, list) for shape in shapes)
        counts["list"] += any(isinstance(shape, dict) and isinstance(shape["counts"], list) for shape in shapes)
        counts["text"] += any(isinstance(shape, dict) and isinstance(shape["counts"], str) for shape in shapes)
        counts["no box"] += any("bbox" not in entry for entry in detections)
    assert min(counts.values()) >= 20, counts


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
def test_real_annotations(shared_data: Path, iou_type: str, split: str) -> None:
    kind = "person_keypoints" if iou_type == "keypoints" else "instances"
    path = shared_data / "coco2017_ccby" / f"{kind}_{split}.json"
    ground_truth = json.loads(path.read_text())
    detections = detections_near(ground_truth, np.random.default_rng(0))
    case = Case(ground_truth, detections, {})
    metrics = evaluate(path, detections, iou_type)
    assert 0.05 < metrics.by_name["AP"] < 0.95
    _assert_equal(metrics, reference(case, iou_type), split, stats=True)
    _assert_shards_are(metrics, case, make_params(iou_type), np.random.default_rng(1))


def _assert_equal(metrics: CocoMetrics, expected: Any, what: str, *, stats: bool) -> None:
    for name in _ARRAYS:
        np.testing.assert_allclose(getattr(metrics, name), expected.eval[name], rtol=0, atol=1e-12, err_msg=what)
    if stats:
        np.testing.assert_allclose(metrics.stats, expected.stats, rtol=0, atol=1e-12, err_msg=what)


def _assert_same(metrics: CocoMetrics, whole: CocoMetrics) -> None:
    """To the last bit."""
    for name in _ARRAYS:
        np.testing.assert_array_equal(getattr(metrics, name), getattr(whole, name))
    assert metrics.by_name == whole.by_name
    assert metrics.per_category == whole.per_category


def _shards(case: Case, params: Params, rng: np.random.Generator, partition: Partition = WHOLE) -> list[bytes]:
    """Images in another order, over several accumulators, as bytes."""
    shards = [MetricsAccumulator(case.ground_truth["categories"], params, partition=partition) for _ in range(3)]
    images = [case.ground_truth["images"][position] for position in rng.permutation(len(case.ground_truth["images"]))]
    while images:
        some = [images.pop() for _ in range(min(len(images), int(rng.integers(1, 5))))]
        ids = {image["id"] for image in some}
        shards[rng.integers(3)].add(
            some,
            [entry for entry in case.ground_truth["annotations"] if entry["image_id"] in ids],
            [entry for entry in case.detections if entry["image_id"] in ids],
        )
    return [shard.to_bytes() for shard in shards]


def _merged(states: list[bytes], case: Case, params: Params, partition: Partition = WHOLE) -> MetricsAccumulator:
    categories = case.ground_truth["categories"]
    merged = MetricsAccumulator(categories, params, partition=partition)
    for state in states:
        merged.merge(MetricsAccumulator.from_bytes(state, categories, params, partition=partition))
    return merged


def _assert_shards_are(metrics: CocoMetrics, case: Case, params: Params, rng: np.random.Generator) -> None:
    states = _shards(case, params, rng)
    _assert_same(_merged(states, case, params).result(), metrics)
    arrays = MetricsAccumulator.arrays_of_states(iter(states), case.ground_truth["categories"], params)
    for name in _ARRAYS:
        np.testing.assert_array_equal(getattr(arrays, name), getattr(metrics, name))


def _in_parts(case: Case, params: Params, rng: np.random.Generator) -> CocoMetrics:
    categories = case.ground_truth["categories"]
    partitions = partitions_of(categories, params)
    assert len(partitions) == len(params.area_ranges) * (len(categories) if params.use_cats else 1)
    arrays = {
        partition: _merged(_shards(case, params, rng, partition), case, params, partition).arrays()
        for partition in partitions
    }
    return metrics_of_partitions(arrays, categories, params)
