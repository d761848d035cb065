"""Writing files and folders that others may read: they appear whole, or not at all.

Local: written beside the destination, flushed to the disk, renamed.  A reader sees the old
content, or the new one, whole; never a part.  For what a kill leaves, see `temporary`.

Remote (`gs://`): written to a local temporary folder, and uploaded when the block has ended
without an error.  An object appears whole; a folder is whole when its marker is there, which
is written last (see `gcs.folders`).
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from detection.storage.files import remove_folder
from detection.storage.gcs import folders, objects
from detection.storage.gcs.client import in_batches
from detection.storage.paths import is_remote, join, name_of
from detection.storage.temporary import hidden_sibling, temporary_folder
from schemas.errors import DataError

COMPLETE_MARKER = folders.COMPLETE
UNFINISHED_MARKER = folders.UNFINISHED  # in a remote folder while it is written


def write_bytes(path: str | Path, content: bytes, *, durable: bool = True) -> None:
    """Writes a file atomically, over an old one if there is one; makes its folder.

    Args:
        path: destination.
        content: of the file.
        durable: see `new_path`.

    Raises:
        DataError: the folder cannot be made or written, or `path` is a folder.
    """
    if is_remote(path):
        objects.write(str(path), content)
        return
    with new_path(path, durable=durable) as unfinished:
        unfinished.write_bytes(content)


def write_many(folder: str | Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Writes files of a folder, each atomically; remote ones several at a time.  Nothing is flushed to the disk.

    Args:
        folder: made if need be.
        files: names and contents.

    Raises:
        DataError: see `write_bytes`; some may be written then.
    """

    def write(file: tuple[str, bytes]) -> None:
        write_bytes(join(folder, file[0]), file[1], durable=False)

    for _ in in_batches(write, files) if is_remote(folder) else map(write, files):
        pass


@contextlib.contextmanager
def new_file(path: str | Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Yields a file, for content of any size, that takes its place at `path` when the block ends.

    Args:
        path: destination.
        durable: see `new_path`.

    Raises:
        DataError: see `new_path`.
    """
    with new_path(path, durable=durable) as unfinished, unfinished.open("wb") as file:
        yield file


@contextlib.contextmanager
def new_path(path: str | Path, *, beside: str | Path | None = None, durable: bool = True) -> Iterator[Path]:
    """Yields a path for writers that open files by name; the file moves to `path` when the block ends.

    If the block raises, the file is removed and `path` stays as it was.

    Args:
        path: destination; its folder is made.
        beside: folder for the unfinished file, on the same file system; None: that of `path`.
            Without meaning for a remote `path`.
        durable: flush the file to the disk.  Files that are useless after a crash of the machine need
            no flush.

    Raises:
        DataError: the folder cannot be made or written, `path` is a folder, or the block
            raised an `OSError`.
    """
    if is_remote(path):
        with explained(path), _local_stand_in() as folder:
            unfinished = folder / name_of(path)
            yield unfinished
            objects.write(str(path), unfinished)
        return
    destination = Path(path)
    unfinished = hidden_sibling(destination if beside is None else Path(beside, destination.name))
    try:
        with explained(destination):
            destination.parent.mkdir(parents=True, exist_ok=True)
            yield unfinished
            if durable:
                fsync_path(unfinished)
            unfinished.replace(destination)
            if durable:
                fsync_path(destination.parent)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()


def write_text(path: str | Path, text: str) -> None:
    """`write_bytes` of `text` in UTF-8, line ends as they are."""
    write_bytes(path, text.encode())


def write_json(path: str | Path, value: Any) -> None:
    """`write_text` of `value` as indented JSON with a final line feed.

    Raises:
        DataError: see `write_bytes`.
        ValueError: NaN or infinity, which JSON does not have.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@contextlib.contextmanager
def new_directory(path: str | Path, *, last: Sequence[str] = (), replace: bool = False) -> Iterator[Path]:
    """Yields an empty folder that takes its place at `path` when the block ends.

    If the block raises, the folder is removed and `path` stays as it was.  An empty folder at
    `path` (TFX makes one for every artifact) is replaced.  Local: a hidden folder beside
    `path`.  Remote: a local temporary folder; empty folders in it are left out.

    Args:
        path: destination.
        last: relative paths of files without which readers do not take the folder for whole, such as
            `saved_model.pb`; the order in which they are uploaded after all others.  Without any, a remote
            folder gets `COMPLETE_MARKER`.
        replace: replaces a folder with content.

    Raises:
        DataError: `path` is a file, or a folder with content and not to be replaced, or its parent
            cannot be made or written.
    """
    if is_remote(path):
        if not replace:
            folders.require_free(str(path), last=last)
        with _local_stand_in() as folder:
            yield folder
            with explained(path):
                folders.upload(folder, str(path), last=last, replace=replace)
        return
    destination = Path(path)
    with contextlib.ExitStack() as stack:
        with explained(destination):
            beside = stack.enter_context(temporary_folder(destination))
        yield beside
        fsync_tree(beside)
        with explained(destination):
            if replace and destination.is_dir():
                old = stack.enter_context(temporary_folder(destination))
                destination.rename(old / destination.name)
            beside.rename(destination)
            fsync_path(destination.parent)


def is_complete(path: str | Path) -> bool:
    """Returns whether there is a folder of `new_directory` without `last`."""
    return objects.find(join(path, COMPLETE_MARKER)) is not None if is_remote(path) else os.path.isdir(path)


@contextlib.contextmanager
def shared_directory(path: str | Path, *, last: str) -> Iterator[str | Path]:
    """As `new_directory`, for files that several machines write and read before the block ends.

    Local: yields the hidden folder of `new_directory`.  Remote: yields `path` itself; if the block
    raises, its objects are removed, and after a kill the next writer removes them.

    Args:
        path: destination.
        last: relative path of the file that makes the folder whole; the block writes it after all others.

    Raises:
        DataError: see `new_directory`.
    """
    if is_remote(path):
        with folders.claimed(str(path), last=(last,)):
            yield str(path).rstrip("/")
    else:
        with new_directory(path) as folder:
            yield folder


def remove_directory(path: str | Path, *, first: Sequence[str] = ()) -> None:
    """Removes a folder, if there is one, so that readers do not take a part of it for the whole.

    A local one disappears by one rename; what a kill leaves is removed by `remove_leftovers`.

    Args:
        path: folder.
        first: relative paths of files of a remote folder that go before the others, in this order.

    Raises:
        DataError: it cannot be removed.
    """
    if is_remote(path):
        remove_folder(path, first=first)
        return
    with explained(path), contextlib.suppress(FileNotFoundError), temporary_folder(path) as hidden:
        Path(path).rename(hidden / name_of(path))


@contextlib.contextmanager
def _local_stand_in() -> Iterator[Path]:
    """A local folder for what is uploaded when it is whole."""
    with tempfile.TemporaryDirectory(prefix="cocoflow-upload-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def explained(path: str | Path) -> Iterator[None]:
    """Turns the block's `OSError` into one that says what to do about `path`, which the block writes.

    Raises:
        DataError: the block raised an `OSError`.
    """
    try:
        yield
    except OSError as error:
        folder = tempfile.gettempdir() if is_remote(path) else Path(path).parent
        raise DataError(
            f"{path}: cannot write: {error.strerror}. "
            f"Check that {folder} is a folder you may write to and that it has free space, or name another."
        ) from error


def require_writable(folder: str | Path) -> None:
    """Makes a folder, and checks that files can be written there.

    Raises:
        DataError: they cannot.
    """
    if is_remote(folder):
        folders.probe(str(folder))
        return
    probe = hidden_sibling(Path(folder) / "probe")
    with explained(Path(folder)):
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()


def fsync_tree(folder: str | Path) -> None:
    """Flushes every file and folder below `folder`, and itself, to the disk."""
    for current, _, files in os.walk(folder, topdown=False):
        for name in files:
            fsync_path(Path(current, name))
        fsync_path(current)


def fsync_path(path: str | Path) -> None:
    """Flushes one file's content, or one folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
