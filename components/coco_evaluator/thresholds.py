"""The blessing decision: a model's metrics against the thresholds of the configuration."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
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
    results = [_judge_value(name, metrics.get(name, UNDEFINED), least) for name, least in thresholds.absolute.items()]
    not_worse = _not_worse(thresholds, has_intervals=baseline is None or bool(differences))
    if baseline is None:
        changed = dict.fromkeys((*thresholds.improvement, *thresholds.significant, *not_worse))
        results += [(True, f"{name}: no earlier blessed model to compare with") for name in changed]
    else:
        for name, least in thresholds.improvement.items():
            values = metrics.get(name, UNDEFINED), baseline.get(name, UNDEFINED)
            results.append(_judge_difference(name, *values, least))
        results += [_judge_gain(name, differences.get(name), thresholds.significant) for name in thresholds.significant]
        results += [_judge_loss(name, differences.get(name), not_worse) for name in not_worse]
    if not results:
        return NO_THRESHOLD
    reasons = [reason for _, reason in sorted(results, key=lambda result: result[0])]
    return Verdict(all(met for met, _ in results), list(dict.fromkeys(reasons)))


def both(*verdicts: Verdict) -> Verdict:
    """Combines verdicts: blessed if all are; the reasons of refusals come first."""
    ordered = sorted(verdicts, key=lambda verdict: verdict.blessed)
    reasons: Iterable[str] = dict.fromkeys(reason for verdict in ordered for reason in verdict.reasons)
    return Verdict(all(verdict.blessed for verdict in verdicts), list(reasons))


def _not_worse(thresholds: ThresholdsConfig, *, has_intervals: bool) -> Sequence[str]:
    """Returns the metrics of `not_worse`, resolving `auto`."""
    if thresholds.not_worse != "auto":
        return thresholds.not_worse
    has_threshold = "AP" in (*thresholds.improvement, *thresholds.significant)
    return () if has_threshold or not has_intervals else ("AP",)


def _judge_value(name: str, value: float, least: float) -> tuple[bool, str]:
    if value == UNDEFINED:
        return False, _undefined(name)
    if value >= least:
        return True, f"{name} {_shown(value, least)} is at least {least:.6g}"
    return False, f"{name} {_shown(value, least)} is below {least:.6g} ({_to_accept(f'absolute.{name}=0')})"


def _shown(value: float, other: float) -> str:
    """Returns a metric with four decimals, as tables have it; with more if it would equal what it is compared with."""
    rounded = round(value, 4)
    return f"{value if rounded == round(other, 4) else rounded:.6g}"


def _judge_difference(name: str, value: float, before: float, least: float) -> tuple[bool, str]:
    if UNDEFINED in (value, before):
        return False, _undefined(name)
    change = f"{name} {_shown(value, before)} against {_shown(before, value)} of the last blessed model"
    if value - before >= least:
        return True, f"{change}: a change of at least {least:+.6g}"
    return False, f"{change}: a change below {least:+.6g} ({_to_accept(f'improvement.{name}=-1')})"


def _judge_gain(name: str, difference: Interval | None, names: Sequence[str]) -> tuple[bool, str]:
    if difference is None:
        return False, _undefined(name)
    if difference.low > 0:
        return True, f"{_change(name, difference)}: a significant gain"
    return False, f"{_change(name, difference)}: no significant gain ({_to_accept_without(name, 'significant', names)})"


def _judge_loss(name: str, difference: Interval | None, names: Sequence[str]) -> tuple[bool, str]:
    if difference is None:
        return False, _undefined(name)
    if difference.high >= 0:
        return True, f"{_change(name, difference)}: no significant loss"
    return False, f"{_change(name, difference)}: a significant loss ({_to_accept_without(name, 'not_worse', names)})"


def _change(name: str, difference: Interval) -> str:
    bounds = f"{difference.low:+.4f} to {difference.high:+.4f}"
    return f"{name}: a change of {difference.value:+.4f} ({bounds}) against the last blessed model"


def _to_accept(assignment: str) -> str:
    return f"to accept it: --set {shlex.quote(f'evaluate.thresholds.{assignment}')}"


def _to_accept_without(name: str, key: str, names: Sequence[str]) -> str:
    return _to_accept(f"{key}=[{', '.join(other for other in names if other != name)}]")


def _undefined(name: str) -> str:
    return f"{name} is undefined: the split has no ground truth to measure it on, or the EvalConfig leaves it out"
