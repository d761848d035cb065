"""TIDE's error types: by hand, in plain loops, and of the engine."""

from typing import Any

import numpy as np
import pytest

from detection.analysis.analyse import analyse
from detection.analysis.analysis_file import ERROR_TYPES, Analysis, Box
from detection.analysis.error_analysis import error_counts, image_results, type_errors
from detection.coco.params import make_params
from schemas.config.evaluate import AnalysisConfig
from schemas.metrics import METRIC_DEFINITIONS
from tests.detection.analysis.cases import detections_of, evaluated, ground_truth_of, lvis_case
from tests.detection.analysis.plain_tide import TYPES, tide
from tests.detection.coco.generated_cases import generate

ALL = AnalysisConfig(score=0.0)
BOX = [100.0, 100.0, 40.0, 40.0]
FAR = [10.0, 10.0, 20.0, 20.0]

LARGE = [20.0, 20.0, 60.0, 60.0]
OTHER = [110.0, 110.0, 60.0, 60.0]


def shifted(x: float) -> list[float]:
    """`BOX` moved: 5 pixels leave an IoU of 0.78, 20 of 0.33, 38 of 0.03."""
    return [100.0 + x, 100.0, 40.0, 40.0]


def typed(ground_truth: dict[str, Any], detections: list[dict[str, Any]], score: float = 0.0) -> dict[str, list[int]]:
    model = evaluated(ground_truth, detections)
    options = AnalysisConfig(score=score)
    errors = type_errors(model, model.diagnosis(options), options)
    types = {name: positions.tolist() for name, positions in errors.types.items() if positions.size}
    return {**types, "Miss": errors.fn.tolist()} if errors.fn.size else types


@pytest.mark.parametrize(
    ("category", "box", "expected"),
    [
        (1, shifted(5), {}),
        (2, shifted(5), {"Cls": [0]}),
        (1, shifted(20), {"Loc": [0]}),
        (2, shifted(20), {"Both": [0], "Miss": [0]}),
        (1, shifted(38), {"Bkg": [0], "Miss": [0]}),
        (2, FAR, {"Bkg": [0], "Miss": [0]}),
    ],
)
def test_one_detection_by_hand(category: int, box: list[float], expected: dict[str, list[int]]) -> None:
    assert typed(ground_truth_of((1, 1, BOX)), detections_of((1, category, box, 0.9))) == expected


def test_the_second_detection_of_an_object_by_hand() -> None:
    detections = detections_of((1, 1, shifted(5), 0.8), (1, 1, shifted(2), 0.9), (1, 1, shifted(20), 0.7))
    assert typed(ground_truth_of((1, 1, BOX)), detections) == {"Dupe": [0], "Loc": [2]}


def test_an_overlap_of_just_the_threshold_is_a_poor_box() -> None:
    ground_truth, detections = (
        ground_truth_of((1, 1, BOX)),
        detections_of((1, 1, BOX, 0.9), (1, 1, [100.0, 100.0, 40.0, 20.0], 0.8)),
    )
    assert typed(ground_truth, detections) == {"Loc": [1]}
    assert {error.name for error in error_counts(evaluated(ground_truth, detections), ALL) if error.count} == {"Loc"}


def test_detections_below_the_score_are_as_if_they_were_not_there() -> None:
    ground_truth = ground_truth_of((1, 1, BOX), (1, 2, FAR))
    detections = detections_of((1, 1, shifted(5), 0.4), (1, 1, FAR, 0.4), (1, 1, [150.0, 10.0, 9.0, 9.0], 0.5))
    assert typed(ground_truth, detections) == {"Cls": [1], "Bkg": [2]}
    assert typed(ground_truth, detections, score=0.45) == {"Bkg": [2], "Miss": [0, 1]}


def test_without_detections_and_without_ground_truth() -> None:
    assert typed(ground_truth_of((1, 1, BOX)), []) == {"Miss": [0]}
    assert typed(ground_truth_of(), detections_of((1, 1, BOX, 0.9))) == {"Bkg": [0]}


@pytest.mark.parametrize("seed", range(25))
def test_counts_and_gains_equal_plain_loops(seed: int) -> None:
    ground_truth, detections = generate(seed)
    rng = np.random.default_rng(seed)
    # Different scores: TIDE does not say which of two equal ones is an object's best chance.
    detections = [{**entry, "score": float(rng.random())} for entry in detections]
    errors = error_counts(evaluated(ground_truth, detections), ALL)
    reference = tide(ground_truth, detections)
    assert [error.name for error in errors] == list(TYPES)
    assert {error.name: error.count for error in errors} == reference.counts
    assert {error.name: error.ap_gain for error in errors} == pytest.approx(reference.gains, abs=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_errors_of_each_category_equal_plain_loops(seed: int) -> None:
    ground_truth, detections = generate(seed)
    rng = np.random.default_rng(seed)
    detections = [{**entry, "score": float(rng.random())} for entry in detections]
    for score in (0.0, 0.5):
        kept = [entry for entry in detections if entry["score"] >= score]
        options = AnalysisConfig(replicates=0, score=score)
        rows = analyse(ground_truth, detections, params=make_params(), options=options).categories
        counts = {(row.id, name): count for row in rows for name, count in row.errors.items() if count}
        assert counts == tide(ground_truth, kept).by_category
        assert all(list(row.errors) == list(TYPES) for row in rows)


@pytest.mark.parametrize("iou_type", [*METRIC_DEFINITIONS, "lvis"])
@pytest.mark.parametrize("seed", range(25))
def test_types_of_detections_add_up_to_the_engines_counts(seed: int, iou_type: str) -> None:
    lvis = iou_type == "lvis"
    ground_truth, detections = lvis_case(seed) if lvis else generate(seed)
    params = make_params(lvis=True, max_dets=(300,)) if lvis else make_params(iou_type)
    model = evaluated(ground_truth, detections, params)
    errors = type_errors(model, model.diagnosis(ALL), ALL)
    numbers = {name: len(positions) for name, positions in errors.types.items()} | {"Miss": len(errors.fn)}
    assert numbers == {error.name: error.count for error in error_counts(model, ALL)}


def test_another_iou_threshold() -> None:
    ground_truth, detections = generate(2)
    options = AnalysisConfig(score=0.0, iou=0.75)
    model = evaluated(ground_truth, detections)
    errors = type_errors(model, model.diagnosis(options), options)
    numbers = {name: len(positions) for name, positions in errors.types.items()} | {"Miss": len(errors.fn)}
    assert numbers == {error.name: error.count for error in error_counts(model, options)}
    assert numbers["Loc"] > {error.name: error.count for error in error_counts(model, ALL)}["Loc"]


def analysed(ground_truth: dict[str, Any], detections: list[dict[str, Any]], **options: Any) -> Analysis:
    return analyse(ground_truth, detections, params=make_params(), options=AnalysisConfig(replicates=0, **options))


def test_every_box_of_an_image_has_a_status() -> None:
    ground_truth = ground_truth_of((1, 1, LARGE), (1, 2, OTHER), (1, 1, [150.0, 0.0, 40.0, 40.0]))
    ground_truth["annotations"][2]["iscrowd"] = 1
    given = detections_of(
        (1, 1, [22.0, 20.0, 60.0, 60.0], 0.9),  # right
        (1, 1, LARGE, 0.8),  # again
        (1, 1, OTHER, 0.7),  # of another category
        (1, 2, [110.0, 140.0, 60.0, 60.0], 0.6),  # half beside
        (1, 1, [160.0, 10.0, 20.0, 20.0], 0.95),  # in the crowd
        (1, 2, [0.0, 150.0, 10.0, 10.0], 0.5),  # nothing there
        (1, 1, [20.0, 55.0, 60.0, 60.0], 0.29),  # below the score
    )
    (image,) = analysed(ground_truth, given).worst
    assert (image.image_id, image.file_name, image.width, image.height) == (1, "1.jpg", 200, 200)
    assert (image.tp, image.fp, image.fn) == (1, 4, 1)
    assert [(box.category_id, box.bbox, box.score, box.status) for box in image.ground_truth] == [
        (1, LARGE, None, "matched"),
        (2, OTHER, None, "Miss"),
        (1, [150.0, 0.0, 40.0, 40.0], None, "crowd"),
    ]
    assert [(box.score, box.status) for box in image.detections] == [
        (0.95, "ignored"),
        (0.9, "TP"),
        (0.8, "Dupe"),
        (0.7, "Cls"),
        (0.6, "Loc"),
        (0.5, "Bkg"),
    ]
    assert image.detections[0] == Box(1, [160.0, 10.0, 20.0, 20.0], 0.95, "ignored")


def test_objects_detected_only_below_the_score_are_fn() -> None:
    (image,) = analysed(ground_truth_of((1, 1, LARGE)), detections_of((1, 1, LARGE, 0.2))).worst
    assert (image.tp, image.fp, image.fn) == (0, 0, 1)
    assert image.ground_truth[0].status == "Miss"
    assert image.detections == []


def test_worst_images_have_most_errors_and_equal_ones_come_by_id() -> None:
    ground_truth = ground_truth_of((1, 1, LARGE), (2, 1, LARGE), (2, 1, OTHER), (4, 1, LARGE), images=4)
    detections = detections_of((1, 1, LARGE, 0.9), (3, 1, LARGE, 0.9))
    assert [image.image_id for image in analysed(ground_truth, detections).worst] == [2, 3, 4]
    assert [image.image_id for image in analysed(ground_truth, detections, worst=2).worst] == [2, 3]


def test_examples_are_the_most_confident_of_each_type() -> None:
    ground_truth = ground_truth_of((1, 1, LARGE), (2, 1, LARGE), (3, 1, LARGE), (3, 1, OTHER), (4, 2, OTHER), images=4)
    detections = detections_of((1, 2, LARGE, 0.5), (2, 2, LARGE, 0.8), (4, 1, LARGE, 0.6), (4, 1, LARGE, 0.5))
    examples = analysed(ground_truth, detections).examples
    assert list(examples) == list(ERROR_TYPES)
    assert {name: [image.image_id for image in images] for name, images in examples.items()} == {
        "Cls": [2, 1],
        "Loc": [],
        "Both": [],
        "Dupe": [],
        "Bkg": [4],
        "Miss": [3, 4],
    }
    assert [image.image_id for image in analysed(ground_truth, detections, examples=1).examples["Cls"]] == [2]


@pytest.mark.parametrize("seed", range(10))
def test_statuses_fit_the_numbers(seed: int) -> None:
    ground_truth, detections = generate(seed)
    analysis = analysed(ground_truth, detections, score=0.4, worst=100, examples=100)
    for image in analysis.worst:
        statuses = [box.status for box in image.detections]
        assert statuses.count("TP") == image.tp
        assert sum(status in ERROR_TYPES for status in statuses) == image.fp
        assert [box.status for box in image.ground_truth].count("Miss") == image.fn
        assert [box.status for box in image.ground_truth].count("matched") == image.tp
        assert set(statuses) <= {"TP", "ignored", *ERROR_TYPES} - {"Miss"}
        assert image.fp + image.fn > 0
        boxes = [entry for entry in detections if entry["image_id"] == image.image_id and entry["score"] >= 0.4]
        assert sorted(box.bbox for box in image.detections) == sorted(entry["bbox"] for entry in boxes)
    for name, images in analysis.examples.items():
        for image in images:
            boxes_shown = image.ground_truth if name == "Miss" else image.detections
            assert name in {box.status for box in boxes_shown}


def test_label_errors_by_hand() -> None:
    ground_truth = ground_truth_of((1, 1, LARGE), (2, 1, LARGE), (2, 2, OTHER), images=2)
    detections = detections_of(
        (1, 2, LARGE, 0.8),  # of another category, on an object that nothing found
        (2, 1, LARGE, 0.9),
        (2, 2, LARGE, 0.7),  # on an object that is found: the model's mistake
        (1, 2, [150.0, 150.0, 30.0, 30.0], 0.95),  # nothing there
        (1, 2, [150.0, 20.0, 30.0, 30.0], 0.2),  # below the score
    )
    errors = analysed(ground_truth, detections).label_errors
    assert [(one.kind, one.image_id, one.score, one.category_id, one.annotated_category_id) for one in errors] == [
        ("missing", 1, 0.95, 2, None),
        ("class", 1, 0.8, 2, 1),
    ]
    assert (errors[1].bbox, errors[1].file_name) == (LARGE, "1.jpg")
    assert len(analysed(ground_truth, detections, label_errors=1).label_errors) == 1


def test_what_images_need_not_tell() -> None:
    ground_truth = ground_truth_of((1, 1, LARGE))
    ground_truth["images"] = [{"id": 1, "width": None}]
    (image,) = analysed(ground_truth, []).worst
    assert (image.file_name, image.width, image.height) == ("", 0, 0)


def test_boxes_of_masks_are_drawn_around_them() -> None:
    ground_truth, detections = generate(3)
    for entry in detections:
        del entry["bbox"]
    analysis = analyse(
        ground_truth, detections, params=make_params("segm"), options=AnalysisConfig(replicates=0, score=0.0)
    )
    widths = [box.bbox[2] for image in analysis.worst for box in image.detections]
    assert widths
    assert min(widths) > 0


def test_boxes_of_keypoints_have_these_and_a_skeleton() -> None:
    ground_truth, detections = generate(3)
    for category in ground_truth["categories"]:
        category["skeleton"] = [[1, 2 + category["id"] % 3]]
    results = image_results(ground_truth, detections, params=make_params("keypoints"), options=ALL)
    boxes = [(result.image_id, box) for result in results for box in result.ground_truth]
    assert boxes
    for image_id, box in boxes:
        assert box.skeleton == [(1, 2 + box.category_id % 3)]
        expected = [one["keypoints"] for one in ground_truth["annotations"] if one["image_id"] == image_id]
        assert box.keypoints in expected
    found = [box.keypoints for result in results for box in result.detections]
    assert sorted(found) == sorted(one["keypoints"] for one in detections)
    without = image_results(ground_truth, detections, params=make_params(), options=ALL)
    assert not any(box.keypoints or box.skeleton for result in without for box in result.ground_truth)
