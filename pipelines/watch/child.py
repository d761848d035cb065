"""Runs as child processes, which end with `watch`, however it ends."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

_PROGRAM = Path(__file__).parents[2] / "pipeline_runner.py"
_END_SECONDS = 8.0  # for an orderly end; `stop_signals` ends this process after 10
# Linux ends the process with its parent (PR_SET_PDEATHSIG = 1), and keeps that over `exec`.  A program of its
# own sets it: in a fork of this process, other threads may hold locks that the call needs.
_TIED = """
import ctypes, os, signal, sys
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if prctl is not None:
    prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


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
    tied = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid())]
    return subprocess.Popen([*tied, *command], stdin=subprocess.DEVNULL)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process in order, or kills it after some seconds."""
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
