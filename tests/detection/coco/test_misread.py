"""Detections of another form, in other pixels or with other ids are told what they are; others are not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from detection.coco import evaluate
from detection.coco.misread import misreadings

SIZES = [(480, 640), (300, 500), (720, 405), (600, 600)]  # height, width


def _truth() -> dict[str, Any]:
    random = np.random.default_rng(0)
    images = [{"id": 10 + at, "height": height, "width": width} for at, (height, width) in enumerate(SIZES * 3)]
    annotations: list[dict[str, Any]] = []
    for image in images:
        for _ in range(4):
            width, height = random.uniform(40, 150, 2).round(1).tolist()
            x, y = random.uniform(0, image["width"] - width), random.uniform(0, image["height"] - height)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image["id"],
                    "category_id": int(random.choice([1, 3, 7])),
                    "bbox": [round(x, 1), round(y, 1), width, height],
                }
            )
    return {"images": images, "annotations": annotations, "categories": [{"id": number} for number in (1, 3, 7)]}


def _rows(truth: dict[str, Any], change: Callable[[list[float], int, int], Any] | None = None) -> np.ndarray:
    """Detections near the objects, and as many false ones; their boxes changed."""
    random = np.random.default_rng(1)
    sizes = {image["id"]: (image["height"], image["width"]) for image in truth["images"]}
    rows = []
    for one in truth["annotations"]:
        height, width = sizes[one["image_id"]]
        box = (np.array(one["bbox"]) + random.normal(0, 1.5, 4)).tolist()
        false = [*random.uniform(0, 100, 2), *random.uniform(20, 80, 2)]
        for found, score in ((box, random.uniform(0.5, 1)), (false, random.uniform(0, 0.5))):
            changed = found if change is None else change(found, height, width)
            rows.append([one["image_id"], *changed, score, one["category_id"]])
    return np.array(rows, np.float64)


def _corners(box: list[float], *_: int) -> list[float]:
    x, y, width, height = box
    return [x, y, x + width, y + height]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_corners, "corners x1, y1, x2, y2"),
        (lambda box, *_: [box[0] + box[2] / 2, box[1] + box[3] / 2, *box[2:]], "center x, center y, width, height"),
        (lambda box, *_: [box[1], box[0], box[3], box[2]], "y, x, height, width"),
        (lambda box, *_: np.array(_corners(box))[[1, 0, 3, 2]], "corners y1, x1, y2, x2"),
        (lambda box, height, width: np.array(box) / [width, height, width, height], "fractions of the image"),
        (
            lambda box, height, width: np.array(_corners(box)) / [width, height, width, height],
            "corners in fractions of the image",
        ),
        (
            lambda box, height, width: np.array(box) * ([512 / width, 512 / height] * 2),
            "pixels of a network's input of 512, stretched",
        ),
        (
            lambda box, height, width: np.array(box) * (1024 / max(height, width)),
            "pixels of a network's input of 1024, padded",
        ),
    ],
)
def test_boxes_of_another_form_are_told(change: Any, words: str) -> None:
    truth = _truth()
    (said,) = misreadings(truth, _rows(truth, change))
    assert said.startswith(f"read as {words}, the boxes of the detections match ")


def test_ids_that_are_counted_otherwise_are_told() -> None:
    truth, rows = _truth(), _rows(_truth())
    shifted = rows.copy()
    shifted[:, 0] += 1
    assert next(misreadings(truth, shifted)).startswith("with image ids -1, the detections match ")
    shifted = rows.copy()
    shifted[:, 6] -= 1
    assert list(misreadings(truth, shifted)) == [
        "the detections overlap the ground truth, but their category ids are -1 from its ids"
    ]
    contiguous = rows.copy()
    contiguous[:, 6] = np.searchsorted([1, 3, 7], rows[:, 6])
    assert list(misreadings(truth, contiguous)) == [
        "the detections overlap the ground truth, but their category ids are other numbers than its: 0 for 1, 1 for 3, "
        "2 for 7"
    ]


def test_detections_as_they_should_be_and_bad_ones_are_not_explained() -> None:
    truth = _truth()
    assert list(misreadings(truth, _rows(truth))) == []
    random = np.random.default_rng(2)
    nothing = _rows(truth)
    nothing[:, 1:5] = random.uniform(0, 60, (len(nothing), 4))
    assert list(misreadings(truth, nothing)) == []
    guessed = _rows(truth)
    guessed[:, 6] = random.choice([1, 3, 7], len(guessed))
    assert list(misreadings(truth, guessed)) == []


def test_the_doubt_is_beside_the_metrics() -> None:
    truth = _truth()
    metrics = evaluate(truth, _rows(truth, _corners))
    assert metrics.by_name["AP50"] < 0.1
    assert any(doubt.startswith("read as corners") for doubt in metrics.doubts)
