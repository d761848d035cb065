"""Seconds of the clock and of the processors, and how they spread over rounds."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Measured(NamedTuple):
    """Seconds per call of the clock and of the processors; the latter suffer less where others use the machine."""

    clock: float
    processors: float


def measure(way: Callable[[], Any], calls: int = 1) -> Measured:
    """Calls `way`, and returns the means per call."""
    clock, processors = time.perf_counter(), time.process_time()
    for _ in range(calls):
        way()
    return Measured((time.perf_counter() - clock) / calls, (time.process_time() - processors) / calls)


def measure_rounds(ways: Mapping[str, Callable[[], Any]], rounds: int, calls: int = 1) -> dict[str, list[Measured]]:
    """Measures all ways in turn, round after round, after one call each that is not counted."""
    for way in ways.values():
        way()
    results: dict[str, list[Measured]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            results[name].append(measure(way, calls))
    return results


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Formats the median, min and max."""
    median, low, high = statistics.median(values), min(values), max(values)
    return f"{median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def milliseconds(rounds: Sequence[Measured]) -> str:
    """Formats the milliseconds of the clock and of the processors."""
    clock, processors = ([1000 * value for value in values] for values in zip(*rounds, strict=True))
    return f"{spread(clock):>28}   {spread(processors):>28}"
