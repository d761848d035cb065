"""LVIS' evaluation against a plain reference."""

import random
from typing import Any

import numpy as np
import pytest

from detection.coco import MetricsAccumulator, evaluate
from detection.coco.params import make_params
from detection.coco.partitions import metrics_of_partitions, partitions_of
from schemas.errors import DataError
from tests.detection.coco.generated_cases import generate
from tests.detection.coco.lvis_reference import lvis_arrays

_NAMES = ["AP", "AP50", "AP75", "APs", "APm", "APl", "APr", "APc", "APf"]


def _case(seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """COCO's generated case with LVIS' lists: some categories looked for, some not exhaustively, crowds and ignored."""
    ground_truth, detections = generate(seed)
    chance = random.Random(seed)
    ids = [category["id"] for category in ground_truth["categories"]]
    for number, category in enumerate(ground_truth["categories"]):
        category["frequency"] = "rccf"[number]
    for image in ground_truth["images"]:
        image["neg_category_ids"] = chance.sample(ids, chance.randint(0, 2))
        image["not_exhaustive_category_ids"] = chance.sample(ids, chance.randint(0, 2))
    return ground_truth, detections


@pytest.mark.parametrize("most", [300, 4])
@pytest.mark.parametrize("iou_type", ["bbox", "segm"])
@pytest.mark.parametrize("seed", range(6))
def test_equals_the_reference(seed: int, iou_type: str, most: int) -> None:
    ground_truth, detections = _case(seed)
    if iou_type == "segm" and seed % 2:
        for detection in detections:
            del detection["bbox"]
    precision, recall = lvis_arrays(ground_truth, detections, iou_type, most)
    metrics = evaluate(ground_truth, detections, iou_type, lvis=True, max_dets=(most,))
    np.testing.assert_allclose(metrics.precision[..., 0], precision, rtol=0, atol=1e-12)
    np.testing.assert_allclose(metrics.recall[..., 0], recall, rtol=0, atol=1e-12)
    assert list(metrics.by_name) == [*_NAMES, f"AR@{most}", f"ARs@{most}", f"ARm@{most}", f"ARl@{most}"]
    by_id = {category["id"]: k for k, category in enumerate(sorted(ground_truth["categories"], key=lambda c: c["id"]))}
    for letter in "rcf":
        mine = [by_id[category["id"]] for category in ground_truth["categories"] if category["frequency"] == letter]
        assert metrics.by_name[f"AP{letter}"] == pytest.approx(_mean(precision[:, :, mine, 0]), abs=1e-12)
    assert metrics.by_name["AP50"] == pytest.approx(_mean(precision[0, :, :, 0]), abs=1e-12)
    assert metrics.by_name[f"ARm@{most}"] == pytest.approx(_mean(recall[:, :, 2]), abs=1e-12)
    assert len(metrics.stats) == 13


def test_shards_and_parts_make_the_whole() -> None:
    ground_truth, detections = _case(7)
    params = make_params(lvis=True, max_dets=(4,))
    whole = evaluate(ground_truth, detections, lvis=True, max_dets=(4,))
    arrays = {}
    for partition in partitions_of(ground_truth["categories"], params):
        shards = [MetricsAccumulator(ground_truth["categories"], params, partition=partition) for _ in range(2)]
        for position, image in enumerate(ground_truth["images"]):
            mine = [
                [e for e in entries if e["image_id"] == image["id"]]
                for entries in (ground_truth["annotations"], detections)
            ]
            shards[position % 2].add([image], *mine)
        shards[0].merge(shards[1])
        arrays[partition] = shards[0].arrays()
    divided = metrics_of_partitions(arrays, ground_truth["categories"], params)
    np.testing.assert_array_equal(divided.precision, whole.precision)
    assert divided.by_name == whole.by_name


@pytest.mark.parametrize(
    ("where", "key", "value", "message"),
    [
        (
            "images",
            "neg_category_ids",
            ...,
            "missing neg_category_ids: image .*Pass LVIS' file, or evaluate as COCO does",
        ),
        ("images", "not_exhaustive_category_ids", [1, "two"], "invalid not_exhaustive_category_ids: image"),
        ("categories", "frequency", ..., "missing frequency: category 7. LVIS' categories have one: r, c or f"),
        ("categories", "frequency", ["r"], "invalid frequency: category 7"),
    ],
)
def test_what_lvis_needs(where: str, key: str, value: Any, message: str) -> None:
    ground_truth, detections = _case(1)
    del ground_truth[where][0][key]
    if value is not ...:
        ground_truth[where][0][key] = value
    with pytest.raises(DataError, match=f"ground truth: {message}"):
        evaluate(ground_truth, detections, lvis=True)


def _mean(values: Any) -> float:
    defined = values[values > -1]
    return float(defined.mean()) if defined.size else -1.0
