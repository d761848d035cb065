"""The rules of blessing."""

from typing import Any

import pytest

from components.coco_evaluator.thresholds import Verdict, both, judge
from detection.analysis.analysis_file import Interval
from schemas.config.config import ThresholdsConfig

METRIC_DEFINITIONS = {"AP": 0.5, "AP50": 0.75, "APs": -1.0}


def thresholds_of(**thresholds: Any) -> ThresholdsConfig:
    """These thresholds alone."""
    return ThresholdsConfig(**{"absolute": {}, **thresholds})


def test_no_threshold_blesses() -> None:
    assert thresholds_of().is_empty
    assert judge(METRIC_DEFINITIONS, None, {}, thresholds_of()) == (True, ["no threshold is set"])


@pytest.mark.parametrize(("least", "blessed"), [(0.5, True), (0.0, True), (0.5000001, False)])
def test_absolute(least: float, blessed: bool) -> None:
    verdict = judge(METRIC_DEFINITIONS, None, {}, thresholds_of(absolute={"AP": least, "AP50": 0.1}))
    assert verdict.blessed is blessed
    assert len(verdict.reasons) == 2
    assert f"AP 0.5 is {'at least' if blessed else 'below'} {least:.6g}" in verdict.reasons


@pytest.mark.parametrize(
    ("before", "least", "blessed"),
    [(0.25, 0.25, True), (0.25, 0.26, False), (0.5, 0.0, True), (0.625, -0.125, True), (0.625, -0.1, False)],
)
def test_improvement(before: float, least: float, blessed: bool) -> None:
    verdict = judge(METRIC_DEFINITIONS, {"AP": before}, {}, thresholds_of(improvement={"AP": least}))
    assert verdict.blessed is blessed
    assert f"AP 0.5 against {before:.6g} of the last blessed model" in verdict.reasons[0]


@pytest.mark.parametrize(("low", "blessed"), [(0.001, True), (0.0, False), (-0.01, False)])
def test_a_gain_must_be_more_than_chance(low: float, blessed: bool) -> None:
    differences = {"AP": Interval(value=0.02, low=low, high=0.04, probability=0.99)}
    verdict = judge(METRIC_DEFINITIONS, {"AP": 0.48}, differences, thresholds_of(significant=("AP",)))
    assert verdict.blessed is blessed
    assert verdict.reasons == [
        f"AP: a change of +0.0200 ({low:+.4f} to +0.0400) against the last blessed model: "
        + ("a significant gain" if blessed else "no significant gain")
    ]


def test_a_comparison_asks_nothing_without_a_baseline() -> None:
    thresholds = thresholds_of(improvement={"AP": 0.9}, significant=("AP", "AP50"))
    reasons = [f"{name}: no earlier blessed model to compare with" for name in ("AP", "AP50")]
    assert judge(METRIC_DEFINITIONS, None, {}, thresholds) == (True, reasons)


def test_an_undefined_metric_is_never_met() -> None:
    for baseline, thresholds in [
        (None, thresholds_of(absolute={"APs": -1.0})),
        (METRIC_DEFINITIONS, thresholds_of(improvement={"APs": -2.0})),
        ({"AP": -1.0}, thresholds_of(improvement={"AP": 0.0})),
        (METRIC_DEFINITIONS, thresholds_of(significant=("APs",))),
    ]:
        verdict = judge(METRIC_DEFINITIONS, baseline, {}, thresholds)
        assert not verdict.blessed
        assert "is undefined" in verdict.reasons[0]


def test_all_have_to_agree() -> None:
    yes, no = Verdict(True, ["a", "b"]), Verdict(False, ["b", "c"])
    assert both(yes, yes) == yes
    assert both(yes, no) == (False, ["a", "b", "c"])
