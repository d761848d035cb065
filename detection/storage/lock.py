"""Folders that one process at a time may use, and who uses one."""

import contextlib
import fcntl
import functools
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from detection.storage.atomic import explained, require_writable
from detection.storage.gcs.folders import probe
from detection.storage.gcs.lease import HeldError, Lease, acquire, words_of
from detection.storage.paths import is_remote, join
from detection.storage.processes import LOCK_FILE, in_words, this_process
from schemas.errors import CocoflowError

_LOGGER = logging.getLogger("cocoflow.lock")
_MAX_BYTES = 8192  # of a lock file
_SECONDS_TO_WRITE = 0.5  # from a lock to its holder's name it takes microseconds

_held: set[int] = set()


class Use:
    """A folder in use; true if it is held against other processes."""

    def __init__(self, held: bool, lease: Lease | None = None) -> None:
        self._held = held
        self._lease = lease

    def __bool__(self) -> bool:
        return self._held

    def require_held(self) -> None:
        """Checks that the folder is still held; to be called before what others read is written there.

        A remote folder is lost if the network or the process stood still for a minute, and another
        process wanted it.  A local one is held until its process ends.

        Raises:
            CocoflowError: another process holds it by now.
            DataError: Cloud Storage cannot be asked.
        """
        if self._lease is not None:
            self._lease.require_held()


@contextlib.contextmanager
def exclusive_use(folder: str | Path, *, instead: str) -> Iterator[Use]:
    """Holds a folder until the block or this process ends, however it ends.

    Local: what counts is flock(2)'s lock on a file in the folder, not the file, which only names
    the holder; does not wait.  Child processes do not inherit it.  Remote: an object that is renewed
    (see `gcs.lease`); this waits, a minute at most, only if the holder may have been killed on another machine.

    Args:
        folder: made if need be.
        instead: what the user can do other than wait, for the message.

    Yields:
        The folder's use; a false one, after a warning, if the file system has no locks.

    Raises:
        CocoflowError: another process holds the folder; says which one.
        DataError: the folder cannot be written.
    """
    if is_remote(folder):
        with _leased(str(folder), instead) as lease:
            yield Use(True, lease)
        return
    folder = Path(folder)
    require_writable(folder)
    path = folder / LOCK_FILE
    descriptor, held = _acquire(path, instead)
    try:
        if held:
            _held.add(descriptor)
            _write_holder(descriptor)
        yield Use(held)
    finally:
        with contextlib.suppress(OSError):
            if _is_at(path, descriptor):
                path.unlink()
        _held.discard(descriptor)
        os.close(descriptor)


@contextlib.contextmanager
def _leased(folder: str, instead: str) -> Iterator[Lease]:
    now = probe(folder)
    try:
        lease = acquire(join(folder, LOCK_FILE), this_process(), now)
    except HeldError as error:
        raise _in_use(folder, words_of(error.holder), instead) from None
    try:
        yield lease
    finally:
        lease.release()


def _in_use(folder: str | Path, holder: str, instead: str) -> CocoflowError:
    return CocoflowError(f"{folder}: in use by {holder}. Wait until it has ended, or {instead}.")


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
            raise _in_use(path.parent, holder, instead) from None
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
    deadline = time.monotonic() + _SECONDS_TO_WRITE
    while True:
        try:
            return in_words(json.loads(os.pread(descriptor, _MAX_BYTES, 0)))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            if time.monotonic() > deadline:
                return "another process"
        time.sleep(0.02)


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
