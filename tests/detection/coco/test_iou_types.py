"""Which IoU types an evaluation has."""

from collections import Counter
from typing import Any

import pytest

from detection.coco.iou_types import choose_iou_types, count_annotations, missing_types
from schemas.metrics import IOU_TYPES, IouType

BOX: dict[str, Any] = {"bbox": [1, 1, 5, 5], "area": 25.0}
MASKED = BOX | {"segmentation": [[1, 1, 6, 1, 6, 6]]}
POSED = BOX | {"keypoints": [1, 1, 2] * 17, "num_keypoints": 17}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ([MASKED, MASKED], ["bbox", "segm"]),
        ([MASKED, BOX], ["bbox"]),
        ([MASKED, BOX | {"segmentation": []}], ["bbox"]),  # as CVAT and Roboflow write boxes
        ([{"bbox": [1, 1, 5, 5], "segmentation": [[1, 1, 6, 1, 6, 6]]}], ["bbox"]),  # COCOeval needs its area
        ([POSED, BOX], ["bbox", "keypoints"]),  # COCO's people beside its other categories
        ([POSED | MASKED], ["bbox", "segm", "keypoints"]),
        ([BOX | {"keypoints": [0] * 51, "num_keypoints": 0}], ["bbox"]),
        ([BOX | {"keypoints": [1, 1, 2] * 4, "num_keypoints": 4}], ["bbox", "keypoints"]),
        ([POSED, BOX | {"keypoints": [1, 1, 2] * 4, "num_keypoints": 4}], ["bbox"]),  # some have other sigmas
        ([], ["bbox"]),
    ],
)
def test_what_the_ground_truth_has(annotations: list[dict[str, Any]], expected: list[str]) -> None:
    counts = sum((count_annotations([annotation]) for annotation in annotations), start=Counter())
    chosen = choose_iou_types(None, given=IOU_TYPES, count=lambda: counts)
    assert list(chosen) == expected
    assert choose_iou_types(None, given=("bbox", "keypoints"), count=lambda: counts) == tuple(
        iou_type for iou_type in chosen if iou_type != "segm"
    )
    sentences = missing_types(counts, chosen, given=IOU_TYPES)
    assert [sentence.split()[0] for sentence in sentences] == [one for one in IOU_TYPES if one not in expected]


def test_nothing_is_counted_if_it_decides_nothing() -> None:
    requested: tuple[IouType, ...] = ("segm", "bbox")
    assert choose_iou_types(requested, given=IOU_TYPES, count=lambda: pytest.fail("counted")) == requested
    assert choose_iou_types(None, given=("bbox",), count=lambda: pytest.fail("counted")) == ("bbox",)


def test_the_sentence_has_the_numbers() -> None:
    [sentence] = missing_types(count_annotations([MASKED, BOX]), ("bbox",), given=("bbox", "segm"))
    assert sentence.startswith("segm is not evaluated: 1 of 2 annotations have a segmentation")
