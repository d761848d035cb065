"""Runs as child processes, which end with `watch`, however it ends."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from detection.storage.processes import tied

_PROGRAM = Path(__file__).parents[2] / "pipeline_runner.py"
_END_SECONDS = 8.0  # for an orderly end; `stop_signals` ends this process after 10


class Command(Protocol):
    """Makes the command line of a run; see `run_command`."""

    def __call__(self, *, run_id: str, trigger: str, config: str) -> list[str]:
        """Returns the command line."""
        ...


def run_command(*, run_id: str, trigger: str, config: str) -> list[str]:
    """Returns the command line of a run.

    Args:
        run_id: id of the run.
        trigger: why it runs, for its record.
        config: path of its configuration.
    """
    program = [sys.executable, str(_PROGRAM)]
    return [*program, "run", "--run-id", run_id, "--trigger", trigger, "--config", config]


def start(command: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Starts a command; the kernel kills it when this process ends without `end`."""
    return subprocess.Popen(tied(command), stdin=subprocess.DEVNULL)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process in order, or kills it after some seconds."""
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
