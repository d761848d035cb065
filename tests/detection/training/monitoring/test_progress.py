import math

import pytest

from detection.training.engine.loop import LoopReport
from detection.training.monitoring.progress import Window


def _report(loss: float, *, steps: int = 2, skipped: int = 0, seconds: float = 1.0, waited: float = 0.0) -> LoopReport:
    scalars = {"loss": loss, "learning_rate": loss / 10, "instances_cut_off": 3.0}
    return LoopReport(
        steps=steps,
        sums={name: value * steps for name, value in scalars.items()},
        counts={name: float(steps) for name in scalars},
        last=scalars if steps else {},
        skipped=skipped,
        bad_step=0 if skipped else None,
        bad={},
        halted=False,
        seconds=seconds,
        waited=waited,
        ended_at=0.0,
        histograms={},
    )


def test_losses_are_means_rates_the_last_and_counts_sums() -> None:
    window = Window(batch_size=8)
    window.add(_report(1.0, steps=3))
    window.add(_report(5.0, steps=1, skipped=2))
    scalars = window.take()
    assert scalars["loss"] == (3 * 1.0 + 5.0) / 4
    assert scalars["learning_rate"] == 0.5
    assert scalars["instances_cut_off"] == 12.0
    assert scalars["nonfinite_steps"] == 2.0


def test_the_first_call_of_a_run_compiles_and_does_not_count_in_speeds() -> None:
    window = Window(batch_size=8)
    window.add(_report(1.0, seconds=100.0))
    assert "images_per_second" not in window.take()
    window.add(_report(1.0, steps=2, seconds=0.5, waited=0.1))
    window.add(_report(1.0, steps=1, skipped=1, seconds=0.5, waited=0.2))
    scalars = window.take()
    assert scalars["steps_per_sec"] == 4.0
    assert scalars["images_per_second"] == 32.0
    assert scalars["input_bound"] == pytest.approx(0.3)


def test_what_was_taken_is_forgotten() -> None:
    window = Window(batch_size=8)
    window.add(_report(1.0))
    window.take()
    window.add(_report(7.0))
    assert window.take()["loss"] == 7.0


def test_a_window_of_skipped_steps_has_no_loss() -> None:
    window = Window(batch_size=8)
    window.add(_report(1.0, steps=0, skipped=1))
    assert window.take() == {"nonfinite_steps": 1.0}


def test_a_value_that_was_never_finite_is_not_a_number() -> None:
    window = Window(batch_size=8)
    report = _report(1.0)
    window.add(report._replace(counts=report.counts | {"loss": 0.0}))
    assert math.isnan(window.take()["loss"])
