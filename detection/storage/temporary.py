"""Temporary files and folders, beside a destination or among the system's, and leftovers of killed processes.

A process killed in the middle leaves a hidden `.NAME.XXXXXXXX.tmp` beside the destination. The next
`temporary_folder` for the same destination removes it: a marker in it, and a lock that ends with the
process, distinguish it from a user's.
"""

import contextlib
import fcntl
import glob
import multiprocessing.util
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detection.storage.file_system import TEMPORARY_SUFFIX, UNFINISHED_MARKER, explain_errors
from detection.storage.paths import local_place
from detection.storage.processes import decode_record, encode_record, in_words

CACHE_VARIABLE = "COCOFLOW_CACHE"  # environment variable: local folder for copies, and for unpacked archives
# A process writes all the time. Only for folders of other machines, whose locks a shared file system may not show.
SILENT_SECONDS = 3600.0

_SCRATCH = "cocoflow"
_VARIABLE = "TMPDIR"
_CONTENT = "content"


@contextlib.contextmanager
def temporary_folder(destination: str | Path, *, mode: int = 0o777) -> Iterator[Path]:
    """Yields an empty folder on the file system of `destination`, and removes it when the block ends.

    For a remote destination, the folder is among the temporary files.

    The block may rename the yielded folder, or files in it, to `destination`. Leftovers of killed
    processes for the same destination are removed first (see `remove_leftovers`).

    Args:
        destination: file or folder that the block makes; the folders above it are made if need be.
        mode: permissions of the folder, before the umask.

    Raises:
        OSError: a parent cannot be made or written.
    """
    destination = local_place(destination)
    destination.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(destination.parent, destination.name)
    folder, owner = _hidden_sibling(destination), os.getpid()
    folder.mkdir(mode)
    with lock_local(folder, wait=True):  # for another process that looks whether it is a leftover
        try:
            # Written under the lock: a folder with a marker and without a lock is dead.
            (folder / UNFINISHED_MARKER).write_bytes(encode_record(folder=folder.name))
            (folder / _CONTENT).mkdir()
            yield folder / _CONTENT
        finally:
            if os.getpid() == owner:  # not a forked child at its end
                with contextlib.suppress(OSError):
                    _remove(folder)


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yields an empty folder among the system's temporary files, closed to other users.

    The folder is removed at the end of the block, or after a kill by the next command that
    needs one.

    Raises:
        DataError: no folder can be created there.
    """
    destination = Path(tempfile.gettempdir(), _SCRATCH)
    with contextlib.ExitStack() as stack:
        with explain_errors(destination):
            folder = stack.enter_context(temporary_folder(destination, mode=0o700))
        yield folder


@contextlib.contextmanager
def scratch_tempdir() -> Iterator[Path]:
    """Makes a scratch folder the TMPDIR of this process and of those that it starts.

    Beam creates a temporary folder per pipeline and leaves it after a kill; the next command
    removes it with the scratch folder.

    Raises:
        DataError: see `scratch_folder`.
    """
    # The socket of a forkserver is in a folder that multiprocessing removes when the process exits, after this block.
    multiprocessing.util.get_temp_dir()
    tempdir, before = tempfile.tempdir, os.environ.get(_VARIABLE)
    with scratch_folder() as folder:
        try:
            tempfile.tempdir = os.environ[_VARIABLE] = str(folder)
            yield folder
        finally:
            tempfile.tempdir = tempdir
            if before is None:
                os.environ.pop(_VARIABLE, None)
            else:
                os.environ[_VARIABLE] = before


@contextlib.contextmanager
def temporary_file(destination: Path, folder: Path | None = None) -> Iterator[Path]:
    """Yields a new path on the file system of a local `destination`; a file there is removed when the block ends.

    Args:
        destination: file that the block makes; the folders above it are made if need be.
        folder: folder of the new path; None: that of `destination`.

    Raises:
        OSError: a folder cannot be made.
    """
    unfinished = _hidden_sibling((folder or destination.parent) / destination.name)
    try:
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        destination.parent.mkdir(parents=True, exist_ok=True)
        yield unfinished
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def writer_of(destination: str | Path) -> str | None:
    """Returns the process of this machine that makes a local file or folder, in words; None: no process does."""
    destination = Path(destination)
    for folder in _siblings(destination.parent, glob.escape(destination.name)):
        with lock_local(folder) as free:
            marker = _read_marker(folder)
            if not free and marker is not None:
                return in_words(marker)
    return None


def remove_leftovers(parent: str | Path, destination: str | None = None) -> list[Path]:
    """Removes temporary folders whose process was killed, and nothing else.

    A folder counts only if it has the marker that `temporary_folder` wrote for this very
    folder, or nothing yet, and no process holds its lock. One without a marker, or that another
    machine wrote, must also have been silent for an hour.

    Args:
        parent: folder with the temporary folders; a remote one has none.
        destination: name of the file or folder that was to be made; None: any.

    Returns:
        The removed folders.
    """
    removed = []
    for leftover in _siblings(Path(parent), "*" if destination is None else glob.escape(destination)):
        with lock_local(leftover) as free, contextlib.suppress(OSError):
            if free and _is_dead(leftover):
                _remove(leftover)
                removed.append(leftover)
    return removed


def _hidden_sibling(destination: Path) -> Path:
    """A new name beside `destination`.  `tempfile`'s files and folders would be closed to everyone but their owner."""
    return destination.with_name(f".{destination.name}.{uuid.uuid4().hex[:8]}{TEMPORARY_SUFFIX}")


def _siblings(parent: Path, pattern: str) -> Iterator[Path]:
    return parent.glob(f".{pattern}.{'[0-9a-f]' * 8}{TEMPORARY_SUFFIX}")


def _remove(folder: Path) -> None:
    """Removes a temporary folder, the marker last: without it nobody would remove the leftover of a kill."""
    if (folder / _CONTENT).exists():
        shutil.rmtree(folder / _CONTENT)
    shutil.rmtree(folder)


def _is_dead(folder: Path) -> bool:
    """Whether `temporary_folder` made an unlocked folder on this machine, or elsewhere, and it has been silent."""
    marker = _read_marker(folder)
    # Empty but for its marker: its writer may have been killed.
    if marker is None and not {path.name for path in folder.iterdir()} <= {UNFINISHED_MARKER}:
        return False
    from_here = marker is not None and marker.get("host") == socket.gethostname()
    return from_here or time.time() - _last_change(folder) > SILENT_SECONDS


def _read_marker(folder: Path) -> dict[str, Any] | None:
    """Returns the marker of a temporary folder; None: it is missing, damaged or that of another folder."""
    with contextlib.suppress(OSError):
        marker = decode_record((folder / UNFINISHED_MARKER).read_bytes())
        return marker if marker.get("folder") == folder.name else None
    return None


@contextlib.contextmanager
def lock_local(folder: Path, *, wait: bool = False) -> Iterator[bool]:
    """Holds a local folder, unless another process does or its file system has no locks; yields whether it does."""
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except OSError:
            held = False
        yield held


def _last_change(folder: Path) -> float:
    """When anything in the folder last changed, seconds since 1970."""
    return max(path.lstat().st_ctime for path in [folder, *folder.rglob("*")])
