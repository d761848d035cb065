"""Merging evaluations: any split, any order, through bytes."""

from typing import Any

import numpy as np
import pytest

from detection.coco import MetricsAccumulator, evaluate
from schemas.errors import DataError
from tests.detection.coco.generated_cases import generate


def _add(accumulator: MetricsAccumulator, images: list[Any], truth: dict[str, Any], detections: list[Any]) -> None:
    ids = {image["id"] for image in images}
    accumulator.add(
        images,
        [a for a in truth["annotations"] if a["image_id"] in ids],
        [d for d in detections if d["image_id"] in ids],
    )


@pytest.mark.parametrize("seed", range(100, 110))
def test_shuffled_shards_equal_the_whole(seed: int) -> None:
    truth, detections = generate(seed)
    rng = np.random.default_rng(seed)
    images = [truth["images"][i] for i in rng.permutation(len(truth["images"]))]
    shards = [MetricsAccumulator(truth["categories"]) for _ in range(3)]
    for image in images:
        _add(shards[rng.integers(3)], [image], truth, detections)
    merged = MetricsAccumulator(truth["categories"])
    for shard in reversed(shards):
        merged.merge(MetricsAccumulator.from_bytes(shard.to_bytes(), truth["categories"]))
    whole, result = evaluate(truth, detections), merged.result()
    arrays = MetricsAccumulator.arrays_of_states((shard.to_bytes() for shard in shards), truth["categories"])
    np.testing.assert_array_equal(result.stats, whole.stats)
    for name in ("precision", "recall", "scores"):
        np.testing.assert_array_equal(getattr(result, name), getattr(whole, name))
        np.testing.assert_array_equal(getattr(arrays, name), getattr(whole, name))


def test_result_may_be_asked_for_in_between() -> None:
    truth, detections = generate(7)
    accumulator = MetricsAccumulator(truth["categories"])
    assert set(accumulator.result().stats) == {-1.0}
    _add(accumulator, truth["images"][:4], truth, detections)
    accumulator.result()
    _add(accumulator, truth["images"][4:], truth, detections)
    np.testing.assert_array_equal(accumulator.result().stats, evaluate(truth, detections).stats)


def test_an_image_counts_once() -> None:
    truth, detections = generate(7)
    accumulator = MetricsAccumulator(truth["categories"])
    _add(accumulator, truth["images"][:1], truth, detections)
    first = truth["images"][0]["id"]
    with pytest.raises(DataError, match=rf"ground truth: image {first} comes more than once \(1 such ids"):
        _add(accumulator, truth["images"][:1], truth, detections)
    with pytest.raises(DataError, match=r"merged evaluation: image .* comes more than once"):
        accumulator.merge(MetricsAccumulator.from_bytes(accumulator.to_bytes(), truth["categories"]))
    states = [accumulator.to_bytes()] * 2
    with pytest.raises(DataError, match=r"merged evaluation: image .* comes more than once \(1 such ids"):
        MetricsAccumulator.arrays_of_states(states, truth["categories"])
