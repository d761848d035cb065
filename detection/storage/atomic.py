"""Writes files and folders that others may read: they appear complete, or not at all.

Local: written beside the destination, flushed to the disk, renamed. A reader sees the old
content, or the new one; never a part. `temporary` removes the leftovers of kills.

Remote (`gs://`): bytes are sent as they are; what a block writes goes to a local temporary file or folder, and is
uploaded when the block has ended without an error. An object appears complete; a folder is complete when its last
file exists (see `file_system` and `gcs.folders`).
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from detection.storage.file_system import explain_errors
from detection.storage.files import file_system
from detection.storage.paths import is_remote, join, local_place
from detection.storage.temporary import temporary_file, temporary_folder


def write_bytes(path: str | Path, content: bytes, *, durable: bool = True) -> None:
    """Writes a file atomically, over an old one if there is one; makes its folder.

    Args:
        path: destination.
        content: content of the file.
        durable: see `new_path`.

    Raises:
        DataError: the folder cannot be made or written, or `path` is a folder.
    """
    file_system(path).write_bytes(str(path), content, durable=durable)


def write_text(path: str | Path, text: str) -> None:
    """`write_bytes` of `text` in UTF-8, line ends as they are."""
    write_bytes(path, text.encode())


def write_json(path: str | Path, value: Any) -> None:
    """`write_text` of `value` as indented JSON with a final line feed.

    Raises:
        DataError: see `write_bytes`.
        ValueError: NaN or infinity, which JSON does not have.
    """
    write_bytes(path, json_bytes(value))


def create_json(path: str | Path, value: Any) -> None:
    """Writes `value` as `write_json` does, to a file that must not exist.

    A file with the same content is a success: the service may have stored it although its response got lost.

    Raises:
        DataError: there is a file with other content, or it cannot be written.
        ValueError: NaN or infinity, which JSON does not have.
    """
    file_system(path).create(str(path), json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Returns `value` as indented JSON with a final line feed.

    Raises:
        ValueError: NaN or infinity, which JSON does not have.
    """
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_many(folder: str | Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Writes files of a folder, each atomically; remote ones several at a time. Nothing is flushed to the disk.

    Args:
        folder: made if need be.
        files: names and contents.

    Raises:
        DataError: see `write_bytes`; some may be written then.
    """

    def write(file: tuple[str, bytes]) -> None:
        write_bytes(join(folder, file[0]), file[1], durable=False)

    for _ in file_system(folder).map(write, files):
        pass


@contextlib.contextmanager
def new_file(path: str | Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Yields a file, for content of any size, that is moved to `path` when the block ends.

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
    """Yields a path for writers that open files by name; the file is moved to `path` when the block ends.

    If the block raises, the file is removed and `path` stays as it was.

    Args:
        path: destination; its folder is made.
        beside: folder for the unfinished file, on the same file system; None: that of `path`. The
            unfinished file for a remote `path` is among the temporary files.
        durable: flush the file to the disk. Files that are useless after a crash of the machine need
            no flush.

    Raises:
        DataError: the folder cannot be made or written, `path` is a folder, or the block
            raised an `OSError`.
    """
    folder = None if beside is None or is_remote(beside) else Path(beside)
    with explain_errors(path), temporary_file(local_place(path), folder) as unfinished:
        yield unfinished
        file_system(path).move_file(unfinished, str(path), durable=durable)


@contextlib.contextmanager
def new_directory(path: str | Path, *, last: Sequence[str] = (), replace: bool = False) -> Iterator[Path]:
    """Yields an empty folder that is moved to `path` when the block ends.

    If the block raises, the folder is removed and `path` stays as it was. An empty folder at
    `path` (TFX makes one for every artifact) is replaced. Local: a hidden folder beside
    `path`. Remote: a local temporary folder; empty folders in it are not uploaded.

    Args:
        path: destination.
        last: relative paths of files that are uploaded after all others, in this order; readers do not take a
            folder without them for complete, such as `saved_model.pb`.
        replace: replaces a folder with content.

    Raises:
        DataError: `path` is a file, or a folder with content and not to be replaced, or its parent
            cannot be made or written.
    """
    system = file_system(path)
    if not replace:
        system.require_free(str(path), last=last)
    with contextlib.ExitStack() as stack:
        with explain_errors(path):
            folder = stack.enter_context(temporary_folder(path))
        yield folder
        with explain_errors(path):
            system.move_folder(folder, str(path), last=last, replace=replace)


def require_writable(folder: str | Path) -> None:
    """Makes a folder, and checks that files can be written there.

    Raises:
        DataError: they cannot.
    """
    file_system(folder).require_writable(str(folder))
