"""Parts of an evaluation by category and area range; test_equality.py puts them together in shards."""

from typing import Any

import numpy as np
import pytest

from detection.coco import MetricsAccumulator, evaluate
from detection.coco.params import make_params
from detection.coco.partitions import Partition, metrics_of_partitions, partitions_of
from schemas.errors import ConfigError
from tests.detection.coco.generated_cases import generate


def test_rows_and_parts_of_several_sizes() -> None:
    ground_truth, detections = generate(5)
    rows = np.array([[d["image_id"], *d["bbox"], d["score"], d["category_id"]] for d in detections])
    params = make_params()
    partitions = [
        Partition(2),
        Partition(90),
        Partition(31, "all"),
        Partition(31, "small"),
        Partition(31, "medium"),
        Partition(31, "large"),
    ]
    partitions += [Partition(7, area) for area in params.area_ranges]
    arrays = {}
    for partition in partitions:
        accumulator = MetricsAccumulator(ground_truth["categories"], params, partition=partition)
        accumulator.add(ground_truth["images"], ground_truth["annotations"], rows)
        arrays[partition] = accumulator.arrays()
    found, whole = metrics_of_partitions(arrays, ground_truth["categories"], params), evaluate(ground_truth, rows)
    for name in ("precision", "recall", "scores"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))


def test_a_part_keeps_what_is_its_own() -> None:
    ground_truth, detections = generate(5)
    accumulator = MetricsAccumulator(ground_truth["categories"], partition=Partition(2, "small"))
    accumulator.add(ground_truth["images"], ground_truth["annotations"], detections)
    mine = [entry for entry in (*ground_truth["annotations"], *detections) if entry["category_id"] == 2]
    assert len(accumulator._image_ids) == len({entry["image_id"] for entry in mine}) < len(ground_truth["images"])
    unused = MetricsAccumulator(ground_truth["categories"], partition=Partition(31, "small"))
    empty = unused.to_bytes()
    unused.add(ground_truth["images"], ground_truth["annotations"], detections)
    assert not len(unused._image_ids)
    assert unused.to_bytes() == empty


@pytest.mark.parametrize(
    ("partition", "params", "message"),
    [
        (Partition(2), make_params(use_cats=False), r"category_id=2.*: use_cats is false"),
        (Partition(3), make_params(), r"category_id=3.*: no such category"),
        (Partition(2, "tiny"), make_params(), r"area='tiny'\): no such area range, only all, small, medium, large"),
    ],
)
def test_parts_that_are_none(partition: Partition, params: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MetricsAccumulator(generate(0)[0]["categories"], params, partition=partition)


def test_each_part_once() -> None:
    categories, params = generate(0)[0]["categories"], make_params()
    arrays = {
        partition: MetricsAccumulator(categories, partition=partition).arrays()
        for partition in partitions_of(categories, params)
    }
    taken = arrays.pop(Partition(7, "medium"))
    with pytest.raises(ConfigError, match=r"got .*category_id=7, area='medium'\) 0 times among 15 partitions"):
        metrics_of_partitions(arrays, categories, params)
    twice = {
        **arrays,
        Partition(7, "medium"): taken,
        Partition(7): MetricsAccumulator(categories, partition=Partition(7)).arrays(),
    }
    with pytest.raises(ConfigError, match=r"got .*category_id=7, area='all'\) 2 times among 17 partitions"):
        metrics_of_partitions(twice, categories, params)


def test_a_part_has_no_metrics() -> None:
    with pytest.raises(ConfigError, match="has no metrics by itself"):
        MetricsAccumulator(generate(0)[0]["categories"], partition=Partition(2)).result()
