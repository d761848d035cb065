"""Each rule of the next steps against the numbers that ask for it, and their limits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detection.analysis.analyse import analyse
from detection.analysis.analysis_file import (
    ERROR_TYPES,
    Analysis,
    Calibration,
    Confusion,
    ErrorType,
    ImageSample,
    Interval,
    SizeBucket,
)
from detection.coco.params import make_params
from detection.reports.evaluation.next_steps import FEW_IMAGES, FEW_INSTANCES, POOR_CALIBRATION, Step, next_steps
from schemas.config.evaluate import AnalysisConfig
from tests.detection.coco.generated_cases import generate
from tests.detection.reports.evaluation.builders import (
    NAMES,
    analysis,
    calibration,
    category,
    empty_analysis,
    label_errors,
)


def step(rule: str, **fields: Any) -> Step | None:
    """The step of a rule for the analysis of the builders with these fields."""
    return next((one for one in next_steps(analysis(**fields)) if one.rule == rule), None)


def needed(rule: str, **fields: Any) -> Step:
    advice = step(rule, **fields)
    assert advice is not None
    return advice


def test_the_steps_and_their_order() -> None:
    assert [one.rule for one in next_steps(analysis())] == [
        *("baseline", "main-error", "label-errors", "threshold", "sizes")
    ]


def test_categories_that_nothing_matches_come_before_errors() -> None:
    some = [category(1, "cat", metrics={"AP": 0.5}), category(2, "dog", metrics={"AP": 0.0}, ground_truth=7)]
    advice = needed("lost-categories", categories=some)
    assert advice.evidence.startswith("AP is 0 for 1 of 2 categories: ")
    assert "(7 instances)" in advice.evidence
    rules = [one.rule for one in next_steps(analysis(categories=some))]
    assert rules.index("lost-categories") < rules.index("main-error")
    assert step("lost-categories", categories=[category(1, "cat", metrics={"AP": 0.0})]) is None, (
        "all of them: no-match"
    )
    nothing = category(2, "dog", metrics={"AP": 0.0}, ground_truth=0)
    assert step("lost-categories", categories=[some[0], nothing]) is None


def test_an_empty_analysis_asks_for_nothing() -> None:
    assert next_steps(empty_analysis()) == []


@pytest.mark.parametrize(
    ("interval", "evidence", "action"),
    [
        (Interval(-0.03, -0.05, -0.01, 0.0), "AP is significantly lower than the baseline's (\u22120.030,", "Keep the"),
        (Interval(0.02, -0.01, 0.05, 0.9), "The change of AP is not significant on 5,000 images (+0.020,", "Evaluate"),
        (Interval(0.02, 0.01, 0.03, 1.0), "AP is significantly higher than the baseline's (+0.020,", "Check these"),
    ],
)
def test_the_baseline(interval: Interval, evidence: str, action: str) -> None:
    advice = needed("baseline", differences={"AP": interval})
    assert advice.evidence.startswith(evidence)
    assert advice.action.startswith(action)
    # Categories of odd numbers had 0.05 more with the baseline: apple, cat, emu, goat.
    assert advice.action.endswith(
        "The largest losses: apple (\u22120.050), cat (\u22120.050), emu (\u22120.050) and 1 more."
    )


def test_losses_of_categories_are_ordered_and_counted() -> None:
    changes = {"a": 0.1, "b": -0.2, "c": -0.3, "d": 0.0}
    categories = [
        category(n, name, metrics={"AP": 0.5}, baseline_metrics={"AP": 0.5 - change})
        for n, (name, change) in enumerate(changes.items(), 1)
    ]
    advice = needed("baseline", categories=categories)
    assert "but 2 of 4 categories lost AP" in advice.evidence
    assert advice.action.endswith("c (\u22120.300), b (\u22120.200).")
    assert step("baseline", categories=[one for one in categories if one.name in "ad"]) is None, "a gain without losses"
    assert step("baseline", differences={}) is None


@pytest.mark.parametrize("name", ERROR_TYPES)
def test_the_main_error_is_the_one_with_the_greatest_gain(name: str) -> None:
    errors = [ErrorType(one, 7000, 0.0421 if one == name else 0.02) for one in ERROR_TYPES]
    advice = needed("main-error", errors=errors)
    # In the seven categories, 1 to 7 errors of the first type, 2 to 8 of the next.
    listed = sum(range(1, 8)) + 7 * list(ERROR_TYPES).index(name)
    assert advice.evidence == (
        f"AP50 loses most to error type {ERROR_TYPES[name]}: +0.042 if all 7,000 at any score were fixed "
        f"({listed} at scores of at least 0.3)."
    )
    expected = {
        "Loc": "boxes fit",
        "Dupe": "model.postprocess.iou_threshold",
        "Bkg": "Check the 2 candidates for missing annotations first.",
        # 120 instances of 0 to 32 pixels have AR 0.2, 300 of 96 and more 0.7; none between.
        "Miss": "Recall is lowest for sizes of 0 to 32 pixels (AR 0.200, 120 instances).",
    }
    assert expected.get(name, "Most confused: ") in advice.action


def test_no_gain_is_no_main_error() -> None:
    assert step("main-error", errors=[ErrorType(name, 5, 0.0) for name in ERROR_TYPES]) is None
    assert step("main-error", errors=[]) is None


def test_the_most_confused_pair_is_that_of_the_matrix() -> None:
    matrix = np.eye(8, dtype=int) * 50
    matrix[1, 3], matrix[5, 0], matrix[2, 7] = 25, 20, 900  # Bear as dog, frog as apple; cat missed
    confusion = Confusion(list(range(1, 8)), matrix.tolist(), 0.5, 0.3)
    advice = needed("main-error", confusion=confusion, errors=[ErrorType("Cls", 45, 0.1)])
    assert "Most confused: Bear detected as dog (25 times, 33.3 % of its ground truth)." in advice.action
    diagonal = Confusion(list(range(1, 8)), (np.eye(8, dtype=int) * 50).tolist(), 0.5, 0.3)
    assert "Most confused" not in needed("main-error", confusion=diagonal, errors=[ErrorType("Cls", 1, 0.1)]).action


def test_label_error_candidates_are_counted() -> None:
    advice = needed("label-errors", label_errors=label_errors(5)[::-1])
    assert advice.evidence.startswith(
        "5 label-error candidates are listed: 3 with no annotation, 2 annotated as another"
    )
    assert "label0.jpg (image 500), no annotation, detected apple 0.99" in advice.evidence, (
        "that with the highest score"
    )
    assert step("label-errors", label_errors=[]) is None


def test_the_threshold_is_the_operating_point() -> None:
    points = [category(n, name).best for n, name in enumerate(NAMES, 1)]
    assert all(points)
    categories = [
        replace(one, best=replace(one.best, score=score))
        for one, score in zip(analysis().categories[:3], (0.3, 0.8, 0.2), strict=True)
        if one.best
    ]
    advice = needed("threshold", categories=[*categories, category(9, "none", best=None)])
    assert advice.evidence == (
        "Recommended score threshold: 0.410. There F1 is highest over all categories "
        "(0.624: precision 0.720, recall 0.550, IoU 0.5)."
    )
    assert "between 0.200 (cat) and 0.800 (Bear)" in advice.action
    assert step("threshold", operating_point=None) is None


@pytest.mark.parametrize(("error", "told"), [(POOR_CALIBRATION, False), (POOR_CALIBRATION + 0.001, True)])
def test_poor_calibration(error: float, told: bool) -> None:
    advice = step("calibration", calibration=replace(calibration(), expected_error=error))
    assert (advice is not None) is told
    if advice:
        # Each bin's mean score is 0.04 above its precision.
        assert advice.evidence.endswith("expected calibration error 0.051, on average 0.040 higher than the precision.")
    assert step("calibration", calibration=None) is None
    assert step("calibration", calibration=Calibration(0.01, 0.02, [])) is None


@pytest.mark.parametrize(
    ("buckets", "told", "action"),
    [
        ([(0, 32, 100, 0.30), (32, 0, 100, 0.6)], "0 to 32 pixels: 0.300, against 0.400 for all", "images with"),
        ([(0, 32, 100, 0.30), (32, 0, 101, 0.6)], "0 to 32 pixels: 0.300, against 0.400 for all", "larger input"),
        ([(0, 32, 100, 0.5), (32, 0, 50, 0.2)], "32 and more pixels: 0.200, against 0.400 for all", "images with"),
        ([(0, 32, 100, 0.31), (32, 0, 100, 0.6)], None, ""),
        ([(0, 32, FEW_INSTANCES - 1, 0.0), (32, 0, 100, 0.6)], None, ""),
        ([(0, 32, 100, -1.0), (32, 0, 100, 0.6)], None, ""),
    ],
)
def test_a_size_range_far_below_all_sizes(buckets: list[Any], told: str | None, action: str) -> None:
    sizes = [SizeBucket(low, high, count, {"AP": ap, "AR100": ap}) for low, high, count, ap in buckets]
    advice = step("sizes", sizes=sizes)
    assert (advice is None) is (told is None)
    if advice and told:
        assert told in advice.evidence
        assert action in advice.action


def test_few_images_and_categories_with_few_or_no_instances() -> None:
    assert step("few-images", sample=ImageSample(FEW_IMAGES, FEW_IMAGES, 0)) is None
    few = needed("few-images", sample=ImageSample(FEW_IMAGES - 1, FEW_IMAGES - 1, 0))
    assert few.evidence == "Only 49 images were evaluated."
    counts = {"a": 0, "b": FEW_INSTANCES - 1, "c": FEW_INSTANCES, "d": 2, "e": 5, "f": 3}
    categories = [category(n, name, ground_truth=count) for n, (name, count) in enumerate(counts.items(), 1)]
    few = needed("few-instances", categories=categories)
    assert few.evidence == "4 of 6 categories have fewer than 10 instances: d (2), f (3), e (5) and 1 more."
    assert needed("no-instances", categories=categories).evidence == "1 of 6 categories have no ground truth: a."


def test_nothing_matches() -> None:
    advice = needed("no-match", operating_point=None)
    assert advice.evidence == "None of 7,028 detections matches any of 280 instances."
    assert "image ids, category ids" in advice.action
    none = [replace(one, detections=0) for one in analysis().categories]
    advice = needed("no-match", operating_point=None, categories=none)
    assert advice.evidence == "There are no detections for 280 instances."


def analysed(seed: int) -> Analysis:
    ground_truth, detections = generate(seed)
    return analyse(
        ground_truth, detections, params=make_params(), baseline=detections[::2], options=AnalysisConfig(replicates=20)
    )


@pytest.mark.parametrize("seed", range(3))
def test_steps_of_an_evaluation_hold_its_numbers(seed: int) -> None:
    ground_truth, detections = generate(seed)
    by_rule = {one.rule: one for one in next_steps(analysed(seed))}
    assert by_rule["few-images"].evidence == f"Only {len(ground_truth['images'])} images were evaluated."
    assert {one.section for one in by_rule.values()} <= {
        *("metrics", "categories", "errors", "label-errors", "calibration", "sizes", "method")
    }
    moved = [{**entry, "bbox": [5000.0, 5000.0, 3.0, 3.0]} for entry in detections]
    options = AnalysisConfig(replicates=0)
    (nothing, *_) = next_steps(analyse(ground_truth, moved, params=make_params(), options=options))
    counted = sum(not entry["iscrowd"] for entry in ground_truth["annotations"])
    assert nothing.evidence == f"None of {len(moved)} detections matches any of {counted} instances."
