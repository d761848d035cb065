"""Processes that the emulator kills in the middle of their work."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tests.storage_emulator.fixture import Bucket

# Children are forked from a process that has imported what they need.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["google.cloud.storage", "google.auth.transport.requests", __name__])


def killed_at_write(
    gcs: Bucket, number: int, work: Callable[..., Any], *arguments: Any, after: bool = False, seconds: float = 60.0
) -> bool:
    """Runs `work` in another process, which is killed at one of its writes.

    Args:
        gcs: the bucket that it writes to.
        number: of the write, from 0 on.
        work: function of a module.
        arguments: of `work`.
        after: the write takes effect before the kill.
        seconds: that the work may take.

    Returns:
        Whether there was such a write; the work has ended otherwise.
    """
    receiver, sender = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_work_when_told, args=(receiver, work, arguments))
    process.start()
    gcs.emulator.fail("kill", method="write", path="/b/", skip=number, process=process.pid, after=after)
    sender.send(dict(os.environ))
    process.join(seconds)
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return bool(gcs.emulator.clear())


def in_processes(work: Callable[..., None], arguments: list[tuple[Any, ...]]) -> list[int | None]:
    """Runs `work` with each of the arguments, all at once; returns the exit codes."""
    pipes = [_PROCESSES.Pipe(duplex=False) for _ in arguments]
    processes = [
        _PROCESSES.Process(target=_work_when_told, args=(receiver, work, one))
        for (receiver, _), one in zip(pipes, arguments, strict=True)
    ]
    for process in processes:
        process.start()
    for _, sender in pipes:
        sender.send(dict(os.environ))
    for process in processes:
        process.join(60)
    return [process.exitcode for process in processes]


def _work_when_told(receiver: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.update(receiver.recv())
    work(*arguments)
