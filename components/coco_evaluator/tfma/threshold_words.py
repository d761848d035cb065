"""Thresholds of TFMA in words."""

import math
from typing import Any


def asked(threshold: Any) -> str:
    """What a `GenericValueThreshold` or `GenericChangeThreshold` asks for, such as "at least 0.4"."""
    if hasattr(threshold, "direction"):
        return _asked_change(threshold)
    bounds = []
    if threshold.HasField("lower_bound"):
        bounds.append(f"at least {threshold.lower_bound.value:.6g}")
    if threshold.HasField("upper_bound"):
        bounds.append(f"at most {threshold.upper_bound.value:.6g}")
    return " and ".join(bounds)


def compared(figure: str, value: float, before: float | None, threshold: Any, *, met: bool) -> str:
    """A sentence on one figure and one threshold.

    Args:
        figure: its name.
        value: of the candidate; NaN where undefined.
        before: of the baseline; None for a threshold on the value itself.
        threshold: what `asked` takes.
        met: as TFMA has judged.
    """
    if math.isnan(value) or (before is not None and math.isnan(before)):
        return f"{figure} is undefined: there is no object to measure it on"
    wanted = ("" if met else "not ") + asked(threshold)
    if before is None:
        return f"{figure} is {value:.6g}, {wanted}"
    change = f"{value - before:+.6g}" + (f" ({(value - before) / before:+.2%})" if before else "")
    return f"{figure} is {value:.6g} against {before:.6g} of the baseline, a change of {change}, {wanted}"


def _asked_change(threshold: Any) -> str:
    from tensorflow_model_analysis.proto import config_pb2

    higher = threshold.direction == config_pb2.MetricDirection.HIGHER_IS_BETTER
    bounds = []
    if threshold.HasField("absolute"):
        bounds.append(f"{threshold.absolute.value:+.6g}")
    if threshold.HasField("relative"):
        bounds.append(f"{threshold.relative.value:+.6g} of the baseline's")
    return ("at least " if higher else "at most ") + " and ".join(bounds)
