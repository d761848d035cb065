"""The rules of blessing."""

import pytest

from components.coco_evaluator.verdict import check_thresholds, judge
from schemas.errors import ConfigError

FIGURES = {"AP": 0.5, "AP50": 0.75, "APs": -1.0}


def test_no_threshold_blesses() -> None:
    assert judge(FIGURES, None, absolute={}, improvement={}) == (True, ["no threshold is set"])


@pytest.mark.parametrize(("least", "blessed"), [(0.5, True), (0.0, True), (0.5000001, False)])
def test_absolute(least: float, blessed: bool) -> None:
    verdict = judge(FIGURES, None, absolute={"AP": least, "AP50": 0.1}, improvement={})
    assert verdict.blessed is blessed
    assert len(verdict.reasons) == 2
    assert f"AP 0.5 is {'at least' if blessed else 'below'} {least:.6g}" in verdict.reasons


@pytest.mark.parametrize(
    ("before", "least", "blessed"),
    [(0.25, 0.25, True), (0.25, 0.26, False), (0.5, 0.0, True), (0.625, -0.125, True), (0.625, -0.1, False)],
)
def test_improvement(before: float, least: float, blessed: bool) -> None:
    verdict = judge(FIGURES, {"AP": before}, absolute={}, improvement={"AP": least})
    assert verdict.blessed is blessed
    assert f"AP 0.5 against {before:.6g} of the last blessed model" in verdict.reasons[0]


def test_improvement_asks_nothing_without_a_baseline() -> None:
    verdict = judge(FIGURES, None, absolute={}, improvement={"AP": 0.9})
    assert verdict == (True, ["AP: no earlier blessed model to compare with"])


def test_an_undefined_figure_is_never_met() -> None:
    for baseline, absolute, improvement in [
        (None, {"APs": -1.0}, {}),
        (FIGURES, {}, {"APs": -2.0}),
        ({"AP": -1.0}, {}, {"AP": 0.0}),
    ]:
        verdict = judge(FIGURES, baseline, absolute=absolute, improvement=improvement)
        assert not verdict.blessed
        assert "is undefined" in verdict.reasons[0]


def test_unknown_names_are_refused() -> None:
    check_thresholds({"AP": 0.1, "ARl": 0.1})
    with pytest.raises(ConfigError, match=r"unknown metric mAP\. Known are AP, AP50, "):
        check_thresholds({"mAP": 0.1})
