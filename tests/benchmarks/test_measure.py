"""Ways take turns, and models of other environments say what they lack."""

import sys

import pytest

from benchmarks.measure import Measured, OtherModel, measure_rounds


def test_ways_and_others_take_turns_after_an_uncounted_call() -> None:
    calls: list[str] = []

    def other() -> Measured:
        calls.append("other")
        return Measured(2.0, 3.0)

    results = measure_rounds({"way": lambda: calls.append("way")}, 2, others={"other": other})
    assert calls == ["way", "other"] * 3
    assert results["other"] == [Measured(2.0, 3.0)] * 2
    assert len(results["way"]) == 2


def test_a_model_that_cannot_be_made_is_an_error() -> None:
    with pytest.raises(SystemExit, match="no missing_model: "):
        OtherModel(sys.executable, "missing_model", 1, 1)
