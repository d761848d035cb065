"""The blessing decision: a model's metrics against the thresholds of the configuration."""

import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from detection.analysis.analysis_file import Interval
from detection.coco.metrics import UNDEFINED
from schemas.config.evaluate import ThresholdsConfig

Metrics = Mapping[str, float]


class Verdict(NamedTuple):
    """The blessing decision, and a sentence per threshold, those that are not met first."""

    blessed: bool
    reasons: list[str]


NO_THRESHOLD = Verdict(True, ["no threshold is set"])


def verdict_of(results: Sequence[tuple[bool, str]]) -> Verdict:
    """Returns the verdict of thresholds: whether each is met, and a sentence."""
    reasons = [reason for _, reason in sorted(results, key=lambda result: result[0])]
    return Verdict(all(met for met, _ in results), list(dict.fromkeys(reasons))) if results else NO_THRESHOLD


def judge(
    metrics: Metrics, baseline: Metrics | None, differences: Mapping[str, Interval], thresholds: ThresholdsConfig
) -> Verdict:
    """Compares a model's metrics with the thresholds.

    Args:
        metrics: metrics of the candidate by name; -1 or missing if undefined.
        baseline: metrics of the last blessed model on the same images; None: no baseline,
            thresholds on the change are met.
        differences: metric -> candidate minus baseline, without undefined ones; empty without
            bootstrap replicates.
        thresholds: the thresholds.
    """
    not_worse = _not_worse(thresholds, has_intervals=baseline is None or bool(differences))
    results = [_judge_value(name, metrics.get(name, UNDEFINED), value) for name, value in thresholds.absolute.items()]
    if baseline is None:
        changed = dict.fromkeys((*thresholds.improvement, *thresholds.significant, *not_worse))
        return verdict_of(results + [(True, f"{name}: no earlier blessed model to compare with") for name in changed])
    results += [
        _judge_difference(name, metrics.get(name, UNDEFINED), baseline.get(name, UNDEFINED), change)
        for name, change in thresholds.improvement.items()
    ]
    for key, names in (("significant", thresholds.significant), ("not_worse", not_worse)):
        results += [_judge_interval(name, differences.get(name), key, names) for name in names]
    return verdict_of(results)


def combine_verdicts(*verdicts: Verdict) -> Verdict:
    """Combines verdicts: blessed if all are; the reasons of refusals come first."""
    return verdict_of([(verdict.blessed, reason) for verdict in verdicts for reason in verdict.reasons])


def _not_worse(thresholds: ThresholdsConfig, *, has_intervals: bool) -> Sequence[str]:
    """Returns the metrics of `not_worse`, resolving `auto`."""
    if thresholds.not_worse != "auto":
        return thresholds.not_worse
    has_threshold = "AP" in (*thresholds.improvement, *thresholds.significant)
    return () if has_threshold or not has_intervals else ("AP",)


def _judge_value(name: str, value: float, min_value: float) -> tuple[bool, str]:
    if value == UNDEFINED:
        return False, _undefined(name)
    shown = f"{name} {_shown(value, min_value)}"
    if value >= min_value:
        return True, f"{shown} is at least {min_value:.6g}"
    return False, f"{shown} is below {min_value:.6g} ({_to_accept(f'absolute.{name}=0')})"


def _judge_difference(name: str, value: float, before: float, min_change: float) -> tuple[bool, str]:
    if UNDEFINED in (value, before):
        return False, _undefined(name)
    change = f"{name} {_shown(value, before)} against {_shown(before, value)} of the last blessed model"
    if value - before >= min_change:
        return True, f"{change}: a change of at least {min_change:+.6g}"
    return False, f"{change}: a change below {min_change:+.6g} ({_to_accept(f'improvement.{name}=-1')})"


def _judge_interval(name: str, difference: Interval | None, key: str, names: Sequence[str]) -> tuple[bool, str]:
    """Judges by `significant`: the interval is above 0; or by `not_worse`: it is not below 0."""
    if difference is None:
        return False, _undefined(name)
    if key == "significant":
        met, change = difference.low > 0, "gain"
    else:
        met, change = difference.high >= 0, "loss"
    reason = (
        f"{name}: a change of {difference.value:+.4f} ({difference.low:+.4f} to {difference.high:+.4f}) "
        f"against the last blessed model: {'a' if met == (change == 'gain') else 'no'} significant {change}"
    )
    others = ", ".join(other for other in names if other != name)
    return met, reason if met else f"{reason} ({_to_accept(f'{key}=[{others}]')})"


def _shown(value: float, other: float) -> str:
    """Returns a metric with four decimals, as tables have it; with more if it would equal what it is compared with."""
    rounded = round(value, 4)
    return f"{value if rounded == round(other, 4) else rounded:.6g}"


def _to_accept(assignment: str) -> str:
    return f"to accept it: --set {shlex.quote(f'evaluate.thresholds.{assignment}')}"


def _undefined(name: str) -> str:
    return f"{name} is undefined: the split has no ground truth to measure it on, or the EvalConfig leaves it out"
