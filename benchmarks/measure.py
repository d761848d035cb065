"""Seconds of the clock and of the processors, and how they spread over rounds."""

import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
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


class OtherModel:
    """A process that runs a model of `other_models`.

    Args:
        python: interpreter of an environment with the model's packages.
        model: name of the model.
        batch: images per call.
        objects: per image.

    Raises:
        SystemExit: a package is missing; the message says what.
    """

    def __init__(self, python: str, model: str, batch: int, objects: int) -> None:
        script = Path(__file__).with_name("other_models.py")
        self._process = subprocess.Popen(
            [python, str(script), model, str(batch), str(objects)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        answer = self._answer()
        if not answer.startswith("ready: "):
            raise SystemExit(f"{python}: {answer or 'it does not start'}")
        print(answer.removeprefix("ready: "))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __call__(self, way: str) -> Measured:
        """Measures one call of `train` or `detect`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{way}\n")
        self._process.stdin.flush()
        return Measured(*map(float, self._answer().split()))


def measure_rounds(
    ways: Mapping[str, Callable[[], Any]],
    rounds: int,
    calls: int = 1,
    others: Mapping[str, Callable[[], Measured]] | None = None,
) -> dict[str, list[Measured]]:
    """Measures all ways in turn, round after round, after one call each that is not counted.

    `others` measure a call themselves, and have their turn after `ways`.
    """
    measured = {name: partial(measure, way, calls) for name, way in ways.items()} | dict(others or {})
    for way in [*ways.values(), *(others or {}).values()]:
        way()
    results: dict[str, list[Measured]] = {name: [] for name in measured}
    for _ in range(rounds):
        for name, one in measured.items():
            results[name].append(one())
    return results


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Formats the median, min and max."""
    median, low, high = statistics.median(values), min(values), max(values)
    return f"{median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def milliseconds(rounds: Sequence[Measured]) -> str:
    """Formats the milliseconds of the clock and of the processors."""
    clock, processors = ([1000 * value for value in values] for values in zip(*rounds, strict=True))
    return f"{spread(clock):>28}   {spread(processors):>28}"
