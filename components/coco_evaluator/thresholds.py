"""The blessing decision: a model's metrics against the thresholds of the configuration."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from detection.analysis.analysis_file import Interval
from detection.coco.metrics import UNDEFINED
from schemas.config.config import ThresholdsConfig

Metrics = Mapping[str, float]


class Verdict(NamedTuple):
    """The blessing decision, and a sentence per threshold."""

    blessed: bool
    reasons: list[str]


def judge(
    metrics: Metrics, baseline: Metrics | None, differences: Mapping[str, Interval], thresholds: ThresholdsConfig
) -> Verdict:
    """Compares a model's metrics with the thresholds.

    Args:
        metrics: metrics of the candidate by name; -1 or missing if undefined.
        baseline: metrics of the last blessed model on the same images; None: no baseline,
            thresholds on the change are met.
        differences: metric -> candidate minus baseline, without undefined ones.
        thresholds: the thresholds.
    """
    results = [_judge_value(name, metrics.get(name, UNDEFINED), least) for name, least in thresholds.absolute.items()]
    for name, least in thresholds.improvement.items():
        if baseline is None:
            results.append(_nothing_to_compare_with(name))
        else:
            results.append(_judge_difference(name, metrics.get(name, UNDEFINED), baseline.get(name, UNDEFINED), least))
    for name in thresholds.significant:
        result = _nothing_to_compare_with(name) if baseline is None else _judge_gain(name, differences.get(name))
        results.append(result)
    reasons = [reason for _, reason in results] or ["no threshold is set"]
    return Verdict(all(met for met, _ in results), list(dict.fromkeys(reasons)))


def both(*verdicts: Verdict) -> Verdict:
    """Combines verdicts: blessed if all are."""
    reasons: Iterable[str] = dict.fromkeys(reason for verdict in verdicts for reason in verdict.reasons)
    return Verdict(all(verdict.blessed for verdict in verdicts), list(reasons))


def _judge_value(name: str, value: float, least: float) -> tuple[bool, str]:
    if value == UNDEFINED:
        return False, _undefined(name)
    if value >= least:
        return True, f"{name} {value:.6g} is at least {least:.6g}"
    return False, f"{name} {value:.6g} is below {least:.6g}"


def _judge_difference(name: str, value: float, before: float, least: float) -> tuple[bool, str]:
    if UNDEFINED in (value, before):
        return False, _undefined(name)
    change = f"{name} {value:.6g} against {before:.6g} of the last blessed model"
    if value - before >= least:
        return True, f"{change}: a change of at least {least:+.6g}"
    return False, f"{change}: a change below {least:+.6g}"


def _judge_gain(name: str, gain: Interval | None) -> tuple[bool, str]:
    if gain is None:
        return False, _undefined(name)
    bounds = f"{gain.low:+.4f} to {gain.high:+.4f}"
    change = f"{name}: a change of {gain.value:+.4f} ({bounds}) against the last blessed model"
    if gain.low > 0:
        return True, f"{change}: a significant gain"
    return False, f"{change}: no significant gain"


def _nothing_to_compare_with(name: str) -> tuple[bool, str]:
    return True, f"{name}: no earlier blessed model to compare with"


def _undefined(name: str) -> str:
    return f"{name} is undefined: the split has no ground truth to measure it on, or the EvalConfig leaves it out"
