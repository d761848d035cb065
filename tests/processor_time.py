"""Seconds of the processors by test file, printed after the tests: `make test` keeps what it costs in sight.

Elapsed time depends on what else the machine does; this depends on the tests, their fixtures and the processes that
they start and wait for.  After a run of the whole suite, a file that takes more than its share fails it.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

BUDGET = 10.0  # seconds of a file, of SUITE seconds of all; the summary lists the files that take more
SUITE = 1_300.0
WHOLE = 8_000  # tests from which on a run is one of the whole suite
_NOISE = 2.5  # factor by which a file's share varies between machines, and with the tests that they skip
_KEY = "processor_time"
SESSION = "the session's own fixtures"

# Files that need more, with the reason; at most 12.
EXPENSIVE = {
    "tests/components/beam/test_dask_runner.py": "workers are processes that import Beam",
    "tests/components/coco_evaluator/test_executor.py": "whole evaluations by Beam",
    "tests/detection/input_pipeline/test_training_batches.py": "pipelines of every augmentation are traced",
    "tests/detection/interop/od_api/test_models.py": "detectors of their original size, against the original's numbers",
    "tests/detection/models/test_compiled.py": "XLA compiles the gradients of a detector of each kind",
    "tests/detection/models/test_harness.py": "all that holds for every detector",
    "tests/detection/pretrained/test_imagenet.py": "backbones of their original size, against keras.applications",
    "tests/detection/training/engine/test_loop.py": "loops are traced, also on two replicas",
    "tests/detection/training/test_distribution.py": "clusters of processes train",
    "tests/detection/training/validation/test_whole_runs.py": "whole trainings with evaluations and exports",
    "tests/pipelines/commands/test_export.py": "models of every format and signature are traced",
    "tests/pipelines/test_run.py": "whole pipelines, one of them compiled, with a process for each task",
}


def _seconds() -> float:
    return sum(os.times()[:4])  # user and system, of this process and of children that ended


def too_expensive(by_file: dict[str, float]) -> list[str]:
    """Returns the files that take more than their share of the processor time and are not listed as expensive.

    A share, as seconds differ between machines.
    """
    most = _NOISE * BUDGET / SUITE * sum(by_file.values())
    return sorted(path for path, seconds in by_file.items() if seconds > most and path not in (*EXPENSIVE, SESSION))


class ProcessorTime:
    """Pytest plugin, of the process that runs tests and of the one that reports."""

    def __init__(self) -> None:
        self.by_file: defaultdict[str, float] = defaultdict(float)
        self.too_expensive: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        """Adds what a test with its fixtures takes to its file, but for the last one, which ends those of the session.

        Processes that tests share, such as the one that forks, are counted when they end.
        """
        before = _seconds()
        try:
            return (yield)
        finally:
            self.by_file[item.nodeid.split("::")[0] if nextitem else SESSION] += _seconds() - before

    def pytest_sessionfinish(self, session: Any) -> None:
        """Hands the seconds of a worker of pytest-xdist to the process that reports, which fails the whole suite."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_KEY] = dict(self.by_file)
            return
        self.too_expensive = too_expensive(self.by_file) if session.testscollected >= WHOLE else []
        if self.too_expensive and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Takes the seconds of a worker."""
        for path, seconds in getattr(node, "workeroutput", {}).get(_KEY, {}).items():
            self.by_file[path] += seconds

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Prints the sum, and the files above the budget."""
        terminalreporter.section(f"processor time: {sum(self.by_file.values()):.0f} s")
        for path, seconds in sorted(self.by_file.items(), key=lambda item: -item[1]):
            if seconds > BUDGET:
                terminalreporter.write_line(f"{seconds:7.1f} s  {path}")
        for path in self.too_expensive:
            terminalreporter.write_line(
                f"{path} takes more than its share: make it cheaper, mark what repeats a quicker test as extended, or "
                "list it in tests/processor_time.py with the reason",
                red=True,
            )
