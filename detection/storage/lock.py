"""Folders that one process at a time may use, and who uses one."""

import contextlib
import fcntl
import functools
import json
import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from detection.storage.atomic import require_writable
from detection.storage.file_system import file_system
from detection.storage.files import explained
from detection.storage.markers import LOCK_FILE
from detection.storage.processes import in_words, this_process
from schemas.errors import CocoflowError

_LOGGER = logging.getLogger("cocoflow.lock")
_MAX_BYTES = 8192  # of a lock file

_held: set[int] = set()


class FolderLock:
    """A folder in use; true if it is held against other processes.

    Args:
        held: whether the file system has locks.
    """

    def __init__(self, held: bool) -> None:
        self._held = held

    def __bool__(self) -> bool:
        return self._held

    def require_held(self) -> None:
        """Checks that the folder is still held; to be called before a write that others read.

        A remote folder is lost if the network or the process stood still for a minute, and another
        process wanted it. A local one is held until its process ends.

        Raises:
            CocoflowError: another process holds it by now.
            DataError: Cloud Storage cannot be asked.
        """


def lock_folder(folder: str | Path, *, instead: str) -> AbstractContextManager[FolderLock]:
    """Holds a folder until the block or this process ends, however it ends.

    Local: flock(2) locks a file in the folder; the file itself only names the holder. This does not wait, and child
    processes do not inherit the lock. Remote: an object that is renewed (see `gcs.lease`); this waits, a minute at
    most, only if the holder may have been killed on another machine.

    Args:
        folder: made if need be.
        instead: alternative to waiting, for the message.

    Yields:
        The folder's use; a false one, after a warning, if the file system has no locks.

    Raises:
        FolderInUseError: another process holds the folder; says which one.
        DataError: the folder cannot be written.
    """
    return file_system(folder).lock(str(folder), instead=instead)


@contextlib.contextmanager
def hold_local_folder(path: str, *, instead: str) -> Iterator[FolderLock]:
    """Holds a local folder; see `lock_folder`."""
    require_writable(path)
    file = Path(path, LOCK_FILE)
    descriptor, held = _acquire(file, instead)
    try:
        if held:
            _held.add(descriptor)
            _write_holder(descriptor)
        yield FolderLock(held)
    finally:
        with contextlib.suppress(OSError):
            if _is_at(file, descriptor):
                file.unlink()
        _held.discard(descriptor)
        os.close(descriptor)


class FolderInUseError(CocoflowError):
    """Another process holds the folder."""


def in_use(folder: str | Path, holder: str, instead: str) -> FolderInUseError:
    """Returns the error for a folder that another process holds."""
    return FolderInUseError(f"{folder}: in use by {holder}. Wait until it has ended, or {instead}.")


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
            raise in_use(path.parent, holder, instead) from None
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
    # Without a name, as on a full disk, the lock still holds.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(this_process()).encode(), 0)


def _read_holder(descriptor: int) -> str:
    try:
        return in_words(json.loads(os.pread(descriptor, _MAX_BYTES, 0)))
    except (OSError, ValueError, RecursionError):  # it has the lock since microseconds, and has not written its name
        return in_words(None)


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
