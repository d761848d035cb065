"""TIDE's error types: by hand, in plain loops, and of the engine."""

from typing import Any

import numpy as np
import pytest

from detection.analysis.analyse import analyse
from detection.analysis.error_types import error_counts, type_errors
from detection.analysis.options import AnalysisOptions
from detection.coco.metrics import METRIC_DEFINITIONS
from detection.coco.params import make_params
from tests.detection.analysis.cases import evaluated, found_of, lvis_case, truth_of
from tests.detection.analysis.plain_tide import TYPES, tide
from tests.detection.coco.generated_cases import generate

ALL = AnalysisOptions(score=0.0)
BOX = [100.0, 100.0, 40.0, 40.0]
FAR = [10.0, 10.0, 20.0, 20.0]


def shifted(x: float) -> list[float]:
    """`BOX` moved: 5 pixels leave an IoU of 0.78, 20 of 0.33, 38 of 0.03."""
    return [100.0 + x, 100.0, 40.0, 40.0]


def typed(truth: dict[str, Any], detections: list[dict[str, Any]], score: float = 0.0) -> dict[str, list[int]]:
    model = evaluated(truth, detections)
    options = AnalysisOptions(score=score)
    errors = type_errors(model, model.diagnosis(options), options)
    found = {name: positions.tolist() for name, positions in errors.types.items() if positions.size}
    return {**found, "Miss": errors.missed.tolist()} if errors.missed.size else found


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
    assert typed(truth_of((1, 1, BOX)), found_of((1, category, box, 0.9))) == expected


def test_the_second_detection_of_an_object_by_hand() -> None:
    found = found_of((1, 1, shifted(5), 0.8), (1, 1, shifted(2), 0.9), (1, 1, shifted(20), 0.7))
    assert typed(truth_of((1, 1, BOX)), found) == {"Dupe": [0], "Loc": [2]}


def test_an_overlap_of_just_the_threshold_is_a_poor_box() -> None:
    truth, found = truth_of((1, 1, BOX)), found_of((1, 1, BOX, 0.9), (1, 1, [100.0, 100.0, 40.0, 20.0], 0.8))
    assert typed(truth, found) == {"Loc": [1]}
    assert {error.name for error in error_counts(evaluated(truth, found), ALL) if error.count} == {"Loc"}


def test_detections_below_the_score_are_as_if_they_were_not_there() -> None:
    truth = truth_of((1, 1, BOX), (1, 2, FAR))
    found = found_of((1, 1, shifted(5), 0.4), (1, 1, FAR, 0.4), (1, 1, [150.0, 10.0, 9.0, 9.0], 0.5))
    assert typed(truth, found) == {"Cls": [1], "Bkg": [2]}
    assert typed(truth, found, score=0.45) == {"Bkg": [2], "Miss": [0, 1]}


def test_nothing_found_and_nothing_to_find() -> None:
    assert typed(truth_of((1, 1, BOX)), []) == {"Miss": [0]}
    assert typed(truth_of(), found_of((1, 1, BOX, 0.9))) == {"Bkg": [0]}


@pytest.mark.parametrize("seed", range(25))
def test_counts_and_gains_equal_plain_loops(seed: int) -> None:
    truth, detections = generate(seed)
    rng = np.random.default_rng(seed)
    # Different scores: TIDE does not say which of two equal ones is an object's best chance.
    detections = [{**entry, "score": float(rng.random())} for entry in detections]
    errors = error_counts(evaluated(truth, detections), ALL)
    reference = tide(truth, detections)
    assert [error.name for error in errors] == list(TYPES)
    assert {error.name: error.count for error in errors} == reference.counts
    assert {error.name: error.ap_gain for error in errors} == pytest.approx(reference.gains, abs=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_errors_of_each_category_equal_plain_loops(seed: int) -> None:
    truth, detections = generate(seed)
    rng = np.random.default_rng(seed)
    detections = [{**entry, "score": float(rng.random())} for entry in detections]
    for score in (0.0, 0.5):
        kept = [entry for entry in detections if entry["score"] >= score]
        options = AnalysisOptions(replicates=0, score=score)
        rows = analyse(truth, detections, params=make_params(), options=options).categories
        found = {(row.id, name): count for row in rows for name, count in row.errors.items() if count}
        assert found == tide(truth, kept).by_category
        assert all(list(row.errors) == list(TYPES) for row in rows)


@pytest.mark.parametrize("iou_type", [*METRIC_DEFINITIONS, "lvis"])
@pytest.mark.parametrize("seed", range(25))
def test_types_of_detections_add_up_to_the_engines_counts(seed: int, iou_type: str) -> None:
    lvis = iou_type == "lvis"
    truth, detections = lvis_case(seed) if lvis else generate(seed)
    params = make_params(lvis=True, max_dets=(300,)) if lvis else make_params(iou_type)
    model = evaluated(truth, detections, params)
    errors = type_errors(model, model.diagnosis(ALL), ALL)
    numbers = {name: len(positions) for name, positions in errors.types.items()} | {"Miss": len(errors.missed)}
    assert numbers == {error.name: error.count for error in error_counts(model, ALL)}


def test_another_iou_threshold() -> None:
    truth, detections = generate(2)
    options = AnalysisOptions(score=0.0, iou=0.75)
    model = evaluated(truth, detections)
    errors = type_errors(model, model.diagnosis(options), options)
    numbers = {name: len(positions) for name, positions in errors.types.items()} | {"Miss": len(errors.missed)}
    assert numbers == {error.name: error.count for error in error_counts(model, options)}
    assert numbers["Loc"] > {error.name: error.count for error in error_counts(model, ALL)}["Loc"]
