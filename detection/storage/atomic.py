"""Writing files and folders that others may read: beside, fsync, rename.

A reader sees the old content, or the new one, whole; never a part.  A process
killed in the middle leaves at most a hidden `.NAME.XXXXXXXX.tmp` beside the goal.
The next `new_directory` of the same goal removes such folders.

Local (POSIX) file systems only: renaming within a folder is atomic there.  Remote
ones such as `gs://` or `s3://` have no atomic rename of a folder; write there
through the client library, which publishes single objects whole.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from detection.storage.temporary_folder import hidden_sibling, temporary_folder
from schemas.errors import DataError


def write_bytes(path: str | Path, content: bytes) -> None:
    """Writes a file atomically, over an old one if there is one; makes its folder.

    Raises:
        DataError: the folder cannot be made or written, or `path` is a folder.
    """
    with new_file(path) as file:
        file.write(content)


@contextlib.contextmanager
def new_file(path: str | Path) -> Iterator[BinaryIO]:
    """Yields a file, for content of any size, that takes its place at `path` when the block ends.

    Where the block raises, the file is removed and `path` stays as it was.

    Raises:
        DataError: see `write_bytes`; also where the block itself raises an `OSError`.
    """
    goal = Path(path)
    beside = hidden_sibling(goal)
    try:
        with explained(goal):
            goal.parent.mkdir(parents=True, exist_ok=True)
            with beside.open("wb") as file:
                yield file
            fsync_path(beside)
            beside.replace(goal)
            fsync_path(goal.parent)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def write_text(path: str | Path, text: str) -> None:
    """`write_bytes` of `text` in UTF-8, line ends as they are."""
    write_bytes(path, text.encode())


def write_json(path: str | Path, value: Any) -> None:
    """`write_text` of `value` as JSON, one line a level, ending in a line feed.

    Raises:
        DataError: see `write_bytes`.
        ValueError: NaN or infinity, which JSON does not have.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@contextlib.contextmanager
def new_directory(path: str | Path) -> Iterator[Path]:
    """Yields an empty folder in a hidden one beside `path`; it takes its place when the block ends.

    Where the block raises, the folder is removed and `path` stays as it was.  An
    empty folder at `path` (as TFX makes for every artifact) is replaced.

    Raises:
        DataError: `path` is a file or a folder with content, or its parent cannot
            be made or written.
    """
    goal = Path(path)
    with contextlib.ExitStack() as stack:
        with explained(goal):
            beside = stack.enter_context(temporary_folder(goal))
        yield beside
        fsync_tree(beside)
        with explained(goal):
            beside.rename(goal)
            fsync_path(goal.parent)


@contextlib.contextmanager
def explained(path: str | Path) -> Iterator[None]:
    """Turns the block's `OSError` into one that says what to do about `path`, which the block writes.

    Raises:
        DataError: the block raised an `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path}: cannot write: {error.strerror}. "
            f"Check that {Path(path).parent} is a folder you may write to and that it has free space, or name another."
        ) from error


def require_writable(folder: str | Path) -> None:
    """Makes a folder, and sees that files can be written there.

    Raises:
        DataError: they cannot.
    """
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
