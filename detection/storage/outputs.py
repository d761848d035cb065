"""Outputs of commands: tests of paths and of free disk space before the work, and folders that appear complete."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from detection.storage.atomic import new_directory, require_writable
from detection.storage.file_system import in_use
from detection.storage.files import file_system, is_dir, is_file, resolve
from detection.storage.gcs import folders
from detection.storage.lock import lock_folder
from detection.storage.paths import is_remote, local_place, parent
from detection.storage.temporary import writer_of
from schemas.errors import CocoflowError, DataError

_SMALL = 50_000_000  # bytes of any output with its log
_MEGABYTE = 1e6


def require_output_file(path: str, flag: str) -> None:
    """Requires that a file can be written; creates nothing.

    Args:
        path: local or remote file, new or to be replaced.
        flag: flag with the path, for the message.

    Raises:
        DataError: the path is a folder, or the folder around it cannot be written.
        CocoflowError: its disk has less than 50 MB free.
    """
    destination = resolve(path)
    if is_dir(destination):
        raise DataError(f"{flag} {path}: this is a folder. Name a file in it.")
    _require_usable(parent(destination), path, flag)


def require_output_folder(path: str, flag: str, *, new: bool = False) -> None:
    """Requires that files can be written to a folder; creates nothing.

    Args:
        path: local or remote folder; it need not exist.
        flag: flag with the path, for the message.
        new: the folder has to be empty if it exists.

    Raises:
        DataError: the path is a file, or the folder has content or cannot be written.
        CocoflowError: its disk has less than 50 MB free.
    """
    destination = resolve(path)
    if is_file(destination):
        raise DataError(f"{flag} {path}: this is a file. Name a folder.")
    if new:
        file_system(destination).require_free(destination, last=())
    _require_usable(destination, path, flag)


def require_room(path: str | Path, size: int, *, advice: str) -> None:
    """Requires free space on the disk of an output; files for a remote path are first among the temporary files.

    Args:
        path: local or remote file or folder; it need not exist.
        size: bytes that will be written at least.
        advice: remedy, for the message.

    Raises:
        CocoflowError: the disk has less.
    """
    folder = _existing(local_place(path).absolute())
    free = shutil.disk_usage(folder).free
    if free < size:
        raise CocoflowError(
            f"{path}: needs at least {size / _MEGABYTE:,.0f} MB, and the disk of {folder} has "
            f"{free / _MEGABYTE:,.0f} MB free. {advice}"
        )


@contextlib.contextmanager
def output_folder(output: str, *, last: str, shared: bool = True) -> Iterator[str | Path]:
    """Yields an empty folder that becomes `output` when the block ends; leftovers of killed runs are removed.

    Args:
        output: folder, new or empty.
        last: file that makes the folder complete; the block writes it after all others.
        shared: for a remote folder, yields itself, so that other machines write there; otherwise a local one.

    Raises:
        CocoflowError: another process writes the folder.
        DataError: the folder has content, or cannot be written.
    """
    destination = resolve(output)
    if destination == os.getcwd():  # replacing it would leave the shell in a removed folder
        raise DataError(f"{destination}: --output is the current folder. Choose another, or one below it.")
    holder = None if is_remote(destination) else writer_of(destination)
    if holder is not None:  # otherwise it would work to its end, for a folder that is not free any more then
        raise in_use(destination, holder, "name another folder with --output")
    if shared and is_remote(destination):
        with lock_folder(destination, instead="name another folder"), folders.claim_folder(destination, last=[last]):
            yield destination
    else:
        with new_directory(destination, last=[last]) as folder:
            yield folder


def _require_usable(folder: str, path: str, flag: str) -> None:
    """Tests a folder, or the existing one that it would be made in."""
    if is_remote(folder):
        require_writable(folder)
    else:
        existing = _existing(Path(folder))
        if not existing.is_dir():
            raise DataError(f"{flag} {path}: cannot write: {existing} is a file. Check the path, or name another.")
        require_writable(existing)
    require_room(path, _SMALL, advice="Free space, or name a path on another disk.")


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())
