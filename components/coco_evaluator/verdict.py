"""When a model is blessed."""

from collections.abc import Mapping
from typing import NamedTuple

from detection.coco.figures import FIGURES, UNDEFINED
from schemas.errors import ConfigError

Figures = Mapping[str, float]


class Verdict(NamedTuple):
    """Whether a model is blessed, and a sentence for each threshold."""

    blessed: bool
    reasons: list[str]


def judge(figures: Figures, baseline: Figures | None, *, absolute: Figures, improvement: Figures) -> Verdict:
    """Compares a model's figures with the thresholds; without any it is blessed.

    Args:
        figures: of the candidate, by name; -1 where undefined.
        baseline: of the last blessed model on the same images; None: there is none,
            and `improvement` asks nothing.
        absolute: figure -> least value.
        improvement: figure -> least difference to the baseline; may be negative.
    """
    findings = [_judge_value(name, figures[name], least) for name, least in absolute.items()]
    for name, least in improvement.items():
        if baseline is None:
            findings.append((True, f"{name}: no earlier blessed model to compare with"))
        else:
            findings.append(_judge_difference(name, figures[name], baseline[name], least))
    reasons = [reason for _, reason in findings] or ["no threshold is set"]
    return Verdict(all(met for met, _ in findings), reasons)


def check_thresholds(thresholds: Figures) -> None:
    """Refuses names that an evaluation of boxes does not give.

    Raises:
        ConfigError: an unknown figure.
    """
    known = [figure.name for figure in FIGURES["bbox"]]
    unknown = sorted(set(thresholds) - set(known))
    if unknown:
        raise ConfigError(f"thresholds: unknown metric {', '.join(unknown)}. Known are {', '.join(known)}.")


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


def _undefined(name: str) -> str:
    return f"{name} is undefined: the split has no object to measure it on"
