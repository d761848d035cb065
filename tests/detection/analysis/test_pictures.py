"""Worst images, examples of errors, likely label errors: by hand, and their order."""

from typing import Any

import pytest

from detection.analysis.analyse import analyse
from detection.analysis.findings import ERROR_TYPES, Analysis, Box
from detection.analysis.options import AnalysisOptions
from detection.coco.params import make_params
from tests.detection.analysis.cases import found_of, truth_of
from tests.detection.coco.generated_cases import generate

BOX = [20.0, 20.0, 60.0, 60.0]
OTHER = [110.0, 110.0, 60.0, 60.0]


def analysed(truth: dict[str, Any], detections: list[dict[str, Any]], **options: Any) -> Analysis:
    return analyse(truth, detections, params=make_params(), options=AnalysisOptions(replicates=0, **options))


def test_every_box_of_an_image_has_a_status() -> None:
    truth = truth_of((1, 1, BOX), (1, 2, OTHER), (1, 1, [150.0, 0.0, 40.0, 40.0]))
    truth["annotations"][2]["iscrowd"] = 1
    found = found_of(
        (1, 1, [22.0, 20.0, 60.0, 60.0], 0.9),  # right
        (1, 1, BOX, 0.8),  # again
        (1, 1, OTHER, 0.7),  # of another category
        (1, 2, [110.0, 140.0, 60.0, 60.0], 0.6),  # half beside
        (1, 1, [160.0, 10.0, 20.0, 20.0], 0.95),  # in the crowd
        (1, 2, [0.0, 150.0, 10.0, 10.0], 0.5),  # nothing there
        (1, 1, [20.0, 55.0, 60.0, 60.0], 0.29),  # below the score
    )
    (image,) = analysed(truth, found).worst
    assert (image.image_id, image.file_name, image.width, image.height) == (1, "1.jpg", 200, 200)
    assert (image.right, image.wrong, image.missed) == (1, 4, 1)
    assert [(box.category_id, box.bbox, box.score, box.status) for box in image.objects] == [
        (1, BOX, None, "found"),
        (2, OTHER, None, "Miss"),
        (1, [150.0, 0.0, 40.0, 40.0], None, "crowd"),
    ]
    assert [(box.score, box.status) for box in image.detections] == [
        (0.95, "ignored"),
        (0.9, "right"),
        (0.8, "Dupe"),
        (0.7, "Cls"),
        (0.6, "Loc"),
        (0.5, "Bkg"),
    ]
    assert image.detections[0] == Box(1, [160.0, 10.0, 20.0, 20.0], 0.95, "ignored")


def test_objects_found_below_the_score_only_are_missed() -> None:
    (image,) = analysed(truth_of((1, 1, BOX)), found_of((1, 1, BOX, 0.2))).worst
    assert (image.right, image.wrong, image.missed) == (0, 0, 1)
    assert image.objects[0].status == "Miss"
    assert image.detections == []


def test_worst_images_have_most_errors_and_equal_ones_come_by_id() -> None:
    truth = truth_of((1, 1, BOX), (2, 1, BOX), (2, 1, OTHER), (4, 1, BOX), images=4)
    found = found_of((1, 1, BOX, 0.9), (3, 1, BOX, 0.9))
    assert [image.image_id for image in analysed(truth, found).worst] == [2, 3, 4]
    assert [image.image_id for image in analysed(truth, found, worst=2).worst] == [2, 3]


def test_examples_are_the_most_confident_of_each_type() -> None:
    truth = truth_of((1, 1, BOX), (2, 1, BOX), (3, 1, BOX), (3, 1, OTHER), (4, 2, OTHER), images=4)
    found = found_of((1, 2, BOX, 0.5), (2, 2, BOX, 0.8), (4, 1, BOX, 0.6), (4, 1, BOX, 0.5))
    examples = analysed(truth, found).examples
    assert list(examples) == list(ERROR_TYPES)
    assert {name: [image.image_id for image in images] for name, images in examples.items()} == {
        "Cls": [2, 1],
        "Loc": [],
        "Both": [],
        "Dupe": [],
        "Bkg": [4],
        "Miss": [3, 4],
    }
    assert [image.image_id for image in analysed(truth, found, examples=1).examples["Cls"]] == [2]


@pytest.mark.parametrize("seed", range(10))
def test_statuses_fit_the_numbers(seed: int) -> None:
    truth, detections = generate(seed)
    found = analysed(truth, detections, score=0.4, worst=100, examples=100)
    for image in found.worst:
        statuses = [box.status for box in image.detections]
        assert statuses.count("right") == image.right
        assert sum(status in ERROR_TYPES for status in statuses) == image.wrong
        assert [box.status for box in image.objects].count("Miss") == image.missed
        assert [box.status for box in image.objects].count("found") == image.right
        assert set(statuses) <= {"right", "ignored", *ERROR_TYPES} - {"Miss"}
        assert image.wrong + image.missed > 0
        boxes = [entry for entry in detections if entry["image_id"] == image.image_id and entry["score"] >= 0.4]
        assert sorted(box.bbox for box in image.detections) == sorted(entry["bbox"] for entry in boxes)
    for name, images in found.examples.items():
        for image in images:
            boxes_shown = image.objects if name == "Miss" else image.detections
            assert name in {box.status for box in boxes_shown}


def test_label_errors_by_hand() -> None:
    truth = truth_of((1, 1, BOX), (2, 1, BOX), (2, 2, OTHER), images=2)
    found = found_of(
        (1, 2, BOX, 0.8),  # of another category, on an object that nothing found
        (2, 1, BOX, 0.9),
        (2, 2, BOX, 0.7),  # on an object that is found: the model's mistake
        (1, 2, [150.0, 150.0, 30.0, 30.0], 0.95),  # nothing there
        (1, 2, [150.0, 20.0, 30.0, 30.0], 0.2),  # below the score
    )
    errors = analysed(truth, found).label_errors
    assert [(one.kind, one.image_id, one.score, one.category_id, one.object_category_id) for one in errors] == [
        ("missing", 1, 0.95, 2, None),
        ("class", 1, 0.8, 2, 1),
    ]
    assert (errors[1].bbox, errors[1].file_name) == (BOX, "1.jpg")
    assert len(analysed(truth, found, label_errors=1).label_errors) == 1


def test_what_images_need_not_tell() -> None:
    truth = truth_of((1, 1, BOX))
    truth["images"] = [{"id": 1, "width": None}]
    (image,) = analysed(truth, []).worst
    assert (image.file_name, image.width, image.height) == ("", 0, 0)


def test_boxes_of_masks_are_drawn_around_them() -> None:
    truth, detections = generate(3)
    for entry in detections:
        del entry["bbox"]
    found = analyse(truth, detections, params=make_params("segm"), options=AnalysisOptions(replicates=0, score=0.0))
    widths = [box.bbox[2] for image in found.worst for box in image.detections]
    assert widths
    assert min(widths) > 0
