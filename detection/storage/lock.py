"""Folders that one process at a time may use, and who uses one."""

import contextlib
import fcntl
import functools
import json
import logging
import os
import shlex
import socket
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from detection.storage.atomic import explained, require_writable
from schemas.errors import CocoflowError

LOCK_FILE = ".lock"  # in a folder that is held; a kill leaves it, and nobody minds

_LOGGER = logging.getLogger("cocoflow.lock")
_MAX_BYTES = 8192  # of a lock file
_MAX_COMMAND = 200  # characters of a command line
_SECONDS_TO_WRITE = 0.5  # from a lock to its holder's name it takes microseconds

_held: set[int] = set()


@contextlib.contextmanager
def exclusive_use(folder: str | Path, *, instead: str) -> Iterator[bool]:
    """Holds a folder until the block or this process ends, however it ends; does not wait.

    What counts is flock(2)'s lock on a file in the folder, not the file, which only names
    the holder.  Child processes do not inherit it.

    Args:
        folder: made if need be.
        instead: what the user can do other than wait, for the message.

    Yields:
        True; False, after a warning, if the file system has no locks.

    Raises:
        CocoflowError: another process holds the folder; says which one.
        DataError: the folder cannot be written.
    """
    folder = Path(folder)
    require_writable(folder)
    path = folder / LOCK_FILE
    descriptor, held = _acquire(path, instead)
    try:
        if held:
            _held.add(descriptor)
            _write_holder(descriptor)
        yield held
    finally:
        with contextlib.suppress(OSError):
            if _is_at(path, descriptor):
                path.unlink()
        _held.discard(descriptor)
        os.close(descriptor)


def _acquire(path: Path, instead: str) -> tuple[int, bool]:
    """Opens and locks the lock file; returns its descriptor, and whether it is locked."""
    while True:
        with explained(path):
            # A link could lead to a file that is not ours to write.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read_holder(descriptor)
            os.close(descriptor)
            raise CocoflowError(f"{path.parent}: in use by {holder}. Wait until it has ended, or {instead}.") from None
        except OSError as error:
            _warn_of_missing_locks(path.parent, error.strerror)
            return descriptor, False
        if _is_at(path, descriptor):
            return descriptor, True
        os.close(descriptor)  # its holder removed it between the open and the lock


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _write_holder(descriptor: int) -> None:
    holder = {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "since": datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
    }
    # Without a name, as on a full disk, the lock still holds.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def _read_holder(descriptor: int) -> str:
    deadline = time.monotonic() + _SECONDS_TO_WRITE
    while True:
        try:
            return _holder_in_words(json.loads(os.pread(descriptor, _MAX_BYTES, 0)))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            if time.monotonic() > deadline:
                return "another process"
        time.sleep(0.02)


def _holder_in_words(holder: Any) -> str:
    command = str(holder["command"])
    if len(command) > _MAX_COMMAND:
        command = f"{command[:_MAX_COMMAND]}..."
    words = f"process {int(holder['process'])} on {holder['host']}, since {holder['since']} ({command})"
    return "".join(character if character.isprintable() else "?" for character in words)


@functools.cache
def _warn_of_missing_locks(folder: Path, reason: str) -> None:
    _LOGGER.warning(
        "%s: this file system has no locks (%s). See to it yourself that one process at a time uses the folder.",
        folder,
        reason,
    )


def _close_in_child() -> None:
    """A forked child that outlives this process must not hold its locks."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)
