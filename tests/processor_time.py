"""Seconds of the processors by test file, printed after the tests: `make test` keeps what it costs in sight.

Elapsed time depends on what else the machine does; this depends on the tests, their fixtures and the processes that
they start and wait for.
"""

import os
from collections import defaultdict
from collections.abc import Iterator

import pytest

BUDGET = 10.0  # seconds of a file; the summary lists the files that take more
_KEY = "processor_time"


def _seconds() -> float:
    return sum(os.times()[:4])  # user and system, of this process and of children that ended


class ProcessorTime:
    """Pytest plugin, of the process that runs tests and of the one that reports."""

    def __init__(self) -> None:
        self.by_file: defaultdict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Adds what a test with its fixtures takes to its file."""
        before = _seconds()
        try:
            return (yield)
        finally:
            self.by_file[item.nodeid.split("::")[0]] += _seconds() - before

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hands the seconds of a worker of pytest-xdist to the process that reports."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_KEY] = dict(self.by_file)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Takes the seconds of a worker."""
        for path, seconds in getattr(node, "workeroutput", {}).get(_KEY, {}).items():
            self.by_file[path] += seconds

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints the sum, and the files above the budget."""
        terminalreporter.section(f"processor time: {sum(self.by_file.values()):.0f} s")
        for path, seconds in sorted(self.by_file.items(), key=lambda item: -item[1]):
            if seconds > BUDGET:
                terminalreporter.write_line(f"{seconds:7.1f} s  {path}")
