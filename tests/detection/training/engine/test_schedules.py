"""Schedules: every entry of the oracle, properties, and what the configuration makes of them."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.training.build_step import schedule_from_config
from detection.training.engine.schedules import Warmup, constant, cosine, exponential, polynomial, stepwise
from schemas.config.config_io import load_config
from tests.detection.training import tiny_run

Schedule = Callable[[tf.Tensor], tf.Tensor]


def _rates(schedule: Schedule, steps: range | list[int]) -> list[float]:
    return [float(schedule(tf.constant(step, tf.int64))) for step in steps]


def _configured(**keys: Any) -> Schedule:
    """The schedule of `train.schedule` keys, and of train's own steps and batch_size; its rates do not scale."""
    train = [f"train.{key}={keys.pop(key)}" for key in ("steps", "batch_size") if key in keys]
    keys = {"reference_batch_size": "null", **keys}
    assignments = train + [f"train.schedule.{key}={value}" for key, value in keys.items()]
    return schedule_from_config(load_config(None, [tiny_run.AUTOML, *assignments]).train)


AUTOML = {"steps": 562500, "warmup_steps": 1875, "batch_size": 64, "reference_batch_size": 64}
MASK_RCNN = {"steps": 22500, "learning_rate": 0.08, "warmup_learning_rate": 0.0067, "warmup_steps": 500}
SHORT = {"steps": 1000, "learning_rate": 0.08, "warmup_learning_rate": 0.008, "warmup_steps": 100}
ORACLES: dict[str, dict[str, Any]] = {
    "lr.effdet.stepwise": {**AUTOML, "name": "step", "boundaries": "[375000, 468750]", "factors": "[0.1, 0.01]"},
    "lr.effdet.cosine": {**AUTOML, "phase": "from_start"},
    "lr.effdet.polynomial": {**AUTOML, "name": "polynomial", "phase": "from_start"},
    "lr.effdet.cosine_short": {**SHORT, "phase": "from_start"},
    "lr.successor.cosine_short": SHORT,
    "lr.effdet.batch8": {
        "steps": 4_500_000,
        "batch_size": 8,
        "reference_batch_size": 64,
        "warmup_steps": 15000,
        "scale_warmup": "false",
        "phase": "from_start",
    },
    "lr.maskrcnn.step": {**MASK_RCNN, "name": "step", "boundaries": "[15000, 20000]", "rates": "[0.008, 0.0008]"},
    "lr.maskrcnn.cosine": MASK_RCNN,
    "lr.odapi.cosine_effdet": {"steps": 300_000, "warmup_learning_rate": 0.001, "warmup_steps": 2500},
    "lr.odapi.cosine_r50_25k": {
        "steps": 25000,
        "learning_rate": 0.04,
        "warmup_learning_rate": 0.013333,
        "warmup_steps": 2000,
    },
    "lr.odapi.cosine_hold": {
        "steps": 2000,
        "learning_rate": 0.1,
        "warmup_learning_rate": 0.0,
        "warmup_steps": 500,
        "hold_steps": 500,
    },
    "lr.odapi.exp_burnin": {
        "name": "exponential",
        "steps": 1000,
        "learning_rate": 0.1,
        "decay_steps": 100,
        "decay_factor": 0.5,
        "warmup": "constant",
        "warmup_learning_rate": 0.01,
        "warmup_steps": 10,
    },
}


def test_a_burn_in_without_a_rate_is_at_the_base_rate() -> None:
    """The OD API's `burnin_learning_rate` is 0 by default, which stands for the base rate."""
    decay = {"name": "exponential", "steps": 100, "learning_rate": 0.1, "decay_steps": 10, "decay_factor": 0.5}
    burning_in = _configured(**decay, warmup="constant", warmup_steps=10, warmup_learning_rate=0.0)
    np.testing.assert_allclose(_rates(burning_in, [0, 9, 10, 19, 20]), [0.1, 0.1, 0.1, 0.1, 0.05], rtol=1e-6)


@pytest.mark.parametrize("name", ORACLES)
def test_the_configuration_gives_the_rates_of_the_old_systems(name: str, oracles: dict) -> None:
    """Those of automl's defect by the compatibility key, beside the corrected rule."""
    oracle = oracles[name]
    got = _rates(_configured(**ORACLES[name]), oracle["inputs"]["steps"])
    np.testing.assert_allclose(got, oracle["expected"], rtol=0, atol=oracle["tolerance"])


def test_manual_steps_of_the_od_api(oracles: dict) -> None:
    """Its warm-up goes from the first rate to the second until the first boundary."""
    oracle = oracles["lr.odapi.manual"]
    steps, expected = oracle["inputs"]["steps"], oracle["expected"]
    common = {"name": "step", "steps": 200, "learning_rate": 0.1}
    plain = _configured(**common, warmup_steps=0, boundaries="[50, 100]", rates="[0.01, 0.001]")
    np.testing.assert_allclose(_rates(plain, steps), expected["plain"], atol=oracle["tolerance"])
    warm = _configured(**common, warmup_steps=50, warmup_learning_rate=0.01, boundaries="[100]", rates="[0.001]")
    np.testing.assert_allclose(_rates(warm, steps), expected["warmup"], atol=oracle["tolerance"])


def test_no_entry_of_the_oracle_is_left_out(oracles: dict) -> None:
    assert {name for name in oracles if name.startswith("lr.")} == {*ORACLES, "lr.odapi.manual"}


WARMUP = Warmup(10, 0.1)
DECAYS: dict[str, Callable[..., tf.Tensor]] = {
    "cosine": functools.partial(cosine, total_steps=50),
    "polynomial": functools.partial(polynomial, total_steps=50, power=0.9),
    "square": functools.partial(polynomial, total_steps=50, power=2.0),
    "exponential": functools.partial(exponential, decay_steps=5, factor=0.3, staircase=False),
    "staircase": functools.partial(exponential, decay_steps=5, factor=0.3, staircase=True),
    "stepwise": functools.partial(stepwise, boundaries=[20, 40], rates=[0.5, 0.25]),
}


@pytest.mark.parametrize("name", DECAYS)
def test_rates_rise_to_the_peak_and_never_again(name: str) -> None:
    rates = _rates(functools.partial(DECAYS[name], peak=1.0, warmup=WARMUP), range(80))
    np.testing.assert_allclose(rates[:11], np.linspace(0.1, 1.0, 11), rtol=1e-6)
    assert (np.diff(rates[10:]) <= 0).all()
    assert rates[79] < 0.26


@pytest.mark.parametrize("name", ["cosine", "polynomial"])
def test_a_run_may_be_shorter_or_longer_than_its_schedule(name: str) -> None:
    """The rates are those of a run of `total_steps`; past it they stay at the end, where the OD API's cosine is 0."""
    keys: dict[str, Any] = {"name": name, "learning_rate": 0.08, "end_learning_rate": 0.002}
    whole = _rates(_configured(**keys, steps=1000), range(0, 1200, 50))
    for steps in (300, 1100):
        assert _rates(_configured(**keys, steps=steps, total_steps=1000), range(0, 1200, 50)) == whole
    np.testing.assert_allclose(whole[20:], [0.002] * 4, rtol=1e-6)
    assert whole[19] > 0.00205


def test_the_od_apis_total_steps(oracles: dict) -> None:
    """Its 25,000-step schedule in a run of 10,000 steps, and 0 past its end in one of 30,000."""
    oracle, keys = oracles["lr.odapi.cosine_r50_25k"], ORACLES["lr.odapi.cosine_r50_25k"]
    for steps in (10_000, 30_000):
        got = _rates(_configured(**{**keys, "steps": steps}, total_steps=25_000), [*oracle["inputs"]["steps"], 30_000])
        np.testing.assert_allclose(got, [*oracle["expected"], 0.0], rtol=0, atol=oracle["tolerance"])


@pytest.mark.parametrize("name", [name for name in DECAYS if name != "stepwise"])
def test_decay_waits_for_the_hold_and_ends_at_the_floor(name: str) -> None:
    held = functools.partial(DECAYS[name], peak=1.0, warmup=WARMUP, hold_steps=7, end=0.2)
    rates = _rates(held, range(80))
    assert rates[10:18] == [1.0] * 8
    assert rates[22 if name == "staircase" else 18] < 1.0
    np.testing.assert_allclose(rates[50:], [0.2] * 30, rtol=1e-6)


@pytest.mark.parametrize(("name", "power"), [("polynomial", 0.9), ("square", 2.0)])
def test_polynomial_by_hand(name: str, power: float) -> None:
    half_way = _rates(functools.partial(DECAYS[name], peak=1.0, warmup=WARMUP, end=0.2), [30])
    np.testing.assert_allclose(half_way, [0.2 + 0.8 * 0.5**power], rtol=1e-6)


def test_exponential_counts_fractions_unless_it_is_a_staircase() -> None:
    options: dict[str, Any] = {"peak": 2.0, "decay_steps": 4, "factor": 0.25, "warmup": Warmup()}
    smooth = _rates(functools.partial(exponential, staircase=False, **options), [0, 2, 4, 6])
    np.testing.assert_allclose(smooth, [2.0, 1.0, 0.5, 0.25], rtol=1e-6)
    stairs = _rates(functools.partial(exponential, staircase=True, **options), [0, 3, 4, 7, 8])
    np.testing.assert_allclose(stairs, [2.0, 2.0, 0.5, 0.5, 0.125], rtol=1e-6)


def test_constant_rises_then_stays() -> None:
    rising = functools.partial(constant, peak=0.5, warmup=Warmup(4, 0.1))
    np.testing.assert_allclose(_rates(rising, range(7)), [0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5], rtol=1e-6)
    burning_in = functools.partial(constant, peak=0.5, warmup=Warmup(2, 0.1, rises=False))
    np.testing.assert_allclose(_rates(burning_in, range(4)), [0.1, 0.1, 0.5, 0.5], rtol=1e-6)
    assert _rates(functools.partial(constant, peak=0.5, warmup=Warmup()), [0]) == [0.5]


def test_all_rates_scale_with_the_batch() -> None:
    keys: dict[str, Any] = {"steps": 100, "warmup_steps": 10, "learning_rate": 0.8, "warmup_learning_rate": 0.4}
    for more in (
        {"end_learning_rate": 0.2},
        {"name": "polynomial", "end_learning_rate": 0.2},
        {"name": "exponential", "decay_steps": 10, "end_learning_rate": 0.2},
        {"name": "step", "boundaries": "[40]", "rates": "[0.1]"},
        {"name": "step", "boundaries": "[40]", "factors": "[0.1]"},
        {"name": "constant"},
    ):
        small = _configured(**keys, **more, batch_size=16, reference_batch_size=64)
        usual = _configured(**keys, **more)
        np.testing.assert_allclose(4 * np.array(_rates(small, range(0, 120, 7))), _rates(usual, range(0, 120, 7)))
    unscaled = _configured(**keys, batch_size=16, reference_batch_size=64, scale_warmup="false")
    np.testing.assert_allclose(_rates(unscaled, [0, 10]), [0.4, 0.2], rtol=1e-6)


def test_late_steps_are_told_apart() -> None:
    """float32 itself does not tell 20,000,001 from 20,000,000."""
    late = functools.partial(polynomial, peak=1.0, total_steps=20_000_010, warmup=Warmup(20_000_000, 1.0), power=1.0)
    np.testing.assert_allclose(_rates(late, list(range(20_000_000, 20_000_011))), np.linspace(1, 0, 11), atol=1e-6)
