"""The rules of blessing."""

from typing import Any

import pytest

from components.coco_evaluator.thresholds import Verdict, combine_verdicts, judge
from detection.analysis.analysis_file import Interval
from schemas.config.config_io import load_config
from schemas.config.evaluate import ThresholdsConfig

METRIC_DEFINITIONS = {"AP": 0.5, "AP50": 0.75, "APs": -1.0}


def thresholds_of(**thresholds: Any) -> ThresholdsConfig:
    """These thresholds alone."""
    return ThresholdsConfig(**{"absolute": {}, "not_worse": [], **thresholds})


def test_no_threshold_blesses() -> None:
    assert judge(METRIC_DEFINITIONS, None, {}, thresholds_of()) == (True, ["no threshold is set"])


@pytest.mark.parametrize(("least", "blessed"), [(0.5, True), (0.0, True), (0.5000001, False)])
def test_absolute(least: float, blessed: bool) -> None:
    verdict = judge(METRIC_DEFINITIONS, None, {}, thresholds_of(absolute={"AP": least, "AP50": 0.1}))
    assert verdict.blessed is blessed
    assert len(verdict.reasons) == 2
    assert f"AP 0.5 is {'at least' if blessed else 'below'} {least:.6g}" in verdict.reasons[0]


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
        + (
            "a significant gain"
            if blessed
            else "no significant gain (to accept it: --set 'evaluate.thresholds.significant=[]')"
        )
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
        (METRIC_DEFINITIONS, thresholds_of(not_worse=("APs",))),
    ]:
        verdict = judge(METRIC_DEFINITIONS, baseline, {}, thresholds)
        assert not verdict.blessed
        assert "is undefined" in verdict.reasons[0]


@pytest.mark.parametrize(("ap", "blessed"), [(0.0, False), (0.0499999, False), (0.05, True), (0.3, True)])
def test_by_default_a_first_model_needs_some_ap(ap: float, blessed: bool) -> None:
    verdict = judge({"AP": ap}, None, {}, ThresholdsConfig())
    assert verdict.blessed is blessed
    if not blessed:
        assert verdict.reasons[0] == (
            f"AP {ap:.6g} is below 0.05 (to accept it: --set evaluate.thresholds.absolute.AP=0)"
        )
        accepted = load_config(None, ["evaluate.thresholds.absolute.AP=0"]).evaluate.thresholds
        assert judge({"AP": ap}, None, {}, accepted).blessed


def test_metrics_have_four_decimals_unless_they_would_equal_the_threshold() -> None:
    reasons = [judge({"AP": ap}, None, {}, ThresholdsConfig()).reasons[0] for ap in (0.0123456, 0.54326789, 0.0499999)]
    assert [reason.split(" is ")[0] for reason in reasons] == ["AP 0.0123", "AP 0.5433", "AP 0.0499999"]
    change = judge({"AP": 0.412345}, {"AP": 0.398765}, {}, thresholds_of(improvement={"AP": 0.0})).reasons[-1]
    assert change.startswith("AP 0.4123 against 0.3988 of the last blessed model")
    change = judge({"AP": 0.4123451}, {"AP": 0.4123466}, {}, thresholds_of(improvement={"AP": 0.0})).reasons[0]
    assert change.startswith("AP 0.412345 against 0.412347 of the last blessed model")


@pytest.mark.parametrize(("high", "blessed"), [(-0.001, False), (0.0, True), (0.01, True)])
def test_by_default_a_later_model_must_not_be_significantly_worse(high: float, blessed: bool) -> None:
    differences = {"AP": Interval(value=-0.02, low=-0.04, high=high, probability=0.01)}
    metrics, baseline = {"AP": 0.48}, {"AP": 0.5}
    verdict = judge(metrics, baseline, differences, ThresholdsConfig())
    assert verdict.blessed is blessed
    change = f"AP: a change of -0.0200 (-0.0400 to {high:+.4f}) against the last blessed model: "
    if blessed:
        assert verdict.reasons == ["AP 0.48 is at least 0.05", change + "no significant loss"]
    else:
        assert verdict.reasons[0] == (
            change + "a significant loss (to accept it: --set 'evaluate.thresholds.not_worse=[]')"
        )
        accepted = load_config(None, ["evaluate.thresholds.not_worse=[]"]).evaluate.thresholds
        assert judge(metrics, baseline, differences, accepted).blessed


def test_an_undefined_ap_is_one_reason() -> None:
    """Both default thresholds refuse it."""
    other = {"AP50": Interval(0.0, -0.01, 0.01, 0.5)}
    verdict = judge({"AP": -1.0}, {"AP": -1.0}, other, ThresholdsConfig())
    assert not verdict.blessed
    assert [reason.split(":")[0] for reason in verdict.reasons] == ["AP is undefined"]


@pytest.mark.parametrize(
    ("thresholds", "judged"),
    [
        ({}, True),
        ({"not_worse": ["AP"]}, True),
        ({"improvement": {"AP": -0.1}}, False),
        ({"improvement": {"AP50": -0.1}}, True),
        ({"improvement": {"AP": -0.1}, "not_worse": ["AP"]}, True),
        ({"not_worse": ["AP50"]}, False),
    ],
)
def test_a_threshold_on_the_change_of_ap_replaces_the_default(thresholds: dict[str, Any], judged: bool) -> None:
    differences = {name: Interval(-0.02, -0.04, -0.01, 0.0) for name in ("AP", "AP50")}
    baseline = {"AP": 0.52, "AP50": 0.77}
    verdict = judge(METRIC_DEFINITIONS, baseline, differences, ThresholdsConfig(**thresholds))
    assert any(reason.startswith("AP: a change of -0.0200") for reason in verdict.reasons) is judged


def test_the_way_to_accept_one_loss_keeps_the_other_metrics() -> None:
    differences = {"AP50": Interval(-0.02, -0.04, -0.01, 0.0), "AP": Interval(0.0, -0.01, 0.01, 0.5)}
    verdict = judge(METRIC_DEFINITIONS, METRIC_DEFINITIONS, differences, thresholds_of(not_worse=["AP", "AP50"]))
    assert "AP50" in verdict.reasons[0]
    assert "'evaluate.thresholds.not_worse=[AP]'" in verdict.reasons[0]


def test_without_intervals_the_default_judges_no_change() -> None:
    """`analysis.replicates` = 0."""
    assert judge({"AP": 0.1}, {"AP": 0.9}, {}, ThresholdsConfig()) == (True, ["AP 0.1 is at least 0.05"])


def test_another_metric_keeps_the_min_ap_and_an_empty_mapping_removes_it() -> None:
    def absolute(*assignments: str) -> dict[str, float]:
        keys = [f"evaluate.thresholds.{assignment}" for assignment in assignments]
        return load_config(None, keys).evaluate.thresholds.absolute

    assert absolute() == {"AP": 0.05}
    assert absolute("absolute.AP50=0.5") == absolute("absolute={AP50: 0.5}") == {"AP": 0.05, "AP50": 0.5}
    assert absolute("absolute.AP50=0.5", "absolute.AP=0") == {"AP": 0.0, "AP50": 0.5}
    assert absolute("improvement.AP=0.01") == {"AP": 0.05}
    assert absolute("absolute={}") == {}


def test_all_have_to_agree() -> None:
    yes, no = Verdict(True, ["a", "b"]), Verdict(False, ["b", "c"])
    assert combine_verdicts(yes, yes) == yes
    assert combine_verdicts(yes, no) == (False, ["b", "c", "a"])
