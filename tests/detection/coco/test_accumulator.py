"""Merging evaluations; test_equality.py does it in any split and order, through bytes."""

from typing import Any

import numpy as np
import pytest

from detection.coco import MetricsAccumulator, evaluate
from schemas.errors import DataError
from tests.detection.coco.generated_cases import generate


def _add(
    accumulator: MetricsAccumulator, images: list[Any], ground_truth: dict[str, Any], detections: list[Any]
) -> None:
    ids = {image["id"] for image in images}
    accumulator.add(
        images,
        [a for a in ground_truth["annotations"] if a["image_id"] in ids],
        [d for d in detections if d["image_id"] in ids],
    )


def test_result_may_be_asked_for_in_between() -> None:
    ground_truth, detections = generate(7)
    accumulator = MetricsAccumulator(ground_truth["categories"])
    assert set(accumulator.result().stats) == {-1.0}
    _add(accumulator, ground_truth["images"][:4], ground_truth, detections)
    accumulator.result()
    _add(accumulator, ground_truth["images"][4:], ground_truth, detections)
    np.testing.assert_array_equal(accumulator.result().stats, evaluate(ground_truth, detections).stats)


def test_an_image_counts_once() -> None:
    ground_truth, detections = generate(7)
    accumulator = MetricsAccumulator(ground_truth["categories"])
    _add(accumulator, ground_truth["images"][:1], ground_truth, detections)
    first = ground_truth["images"][0]["id"]
    with pytest.raises(DataError, match=rf"ground truth: image {first} was added more than once \(1 such ids"):
        _add(accumulator, ground_truth["images"][:1], ground_truth, detections)
    with pytest.raises(DataError, match=r"merged evaluation: image .* was added more than once"):
        accumulator.merge(MetricsAccumulator.from_bytes(accumulator.to_bytes(), ground_truth["categories"]))
    states = [accumulator.to_bytes()] * 2
    with pytest.raises(DataError, match=r"merged evaluation: image .* was added more than once \(1 such ids"):
        MetricsAccumulator.arrays_of_states(states, ground_truth["categories"])
