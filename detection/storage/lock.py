"""Folders that one process at a time works in: their locks, and local folders for programs that write in place."""

import contextlib
import fcntl
import functools
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from detection.storage.atomic import require_writable
from detection.storage.file_system import LOCK_FILE, FolderLock, WorkingFolder, explain_errors, in_use
from detection.storage.files import make_folder
from detection.storage.gcs import copies, lease
from detection.storage.paths import is_remote
from detection.storage.processes import decode_record, encode_record, in_words

_LOGGER = logging.getLogger("cocoflow.lock")
_MAX_BYTES = 8192  # that are read of a lock file

_held: set[int] = set()


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
    return (lease.hold_folder if is_remote(folder) else _hold_local_folder)(str(folder), instead=instead)


def open_working_folder(
    path: str | Path, *, last: Sequence[str] = (), exclude: Sequence[str] = (), use: FolderLock | None = None
) -> AbstractContextManager[WorkingFolder]:
    """Yields a folder to work in, with the content of `path`; the block calls `push`.

    Remote: a temporary folder, which is removed when the block ends, without a `push`: the
    block decides which state others see. A `CocoflowError` of the block names `path` instead of it.

    Args:
        path: local or remote folder; a remote one need not exist, a local one is made.
        last: patterns of relative paths or names of files that name others, such as `*.index` and
            `checkpoint`; they are uploaded after all others, in this order.
        exclude: patterns of files that are neither pulled nor pushed.
        use: lock of the folder, checked by every `push`; None: nobody holds it.

    Raises:
        DataError: see `WorkingFolder.pull`; or a local folder cannot be made.
    """
    if is_remote(path):
        return copies.open_working_folder(str(path), last=last, exclude=exclude, use=use)
    make_folder(path)
    return contextlib.nullcontext(WorkingFolder(str(path), Path(path)))


@contextlib.contextmanager
def _hold_local_folder(path: str, *, instead: str) -> Iterator[FolderLock]:
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


def _acquire(path: Path, instead: str) -> tuple[int, bool]:
    """Opens and locks the lock file; returns its descriptor, and whether it is locked."""
    while True:
        with explain_errors(path):
            # A link could lead to a file that is not ours to write.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = in_words(decode_record(os.pread(descriptor, _MAX_BYTES, 0)))
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
        os.pwrite(descriptor, encode_record(), 0)


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
