"""Writes a COCO file of any size in bounded memory."""

import contextlib
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from detection.storage import paths
from detection.storage.atomic import new_path
from detection.storage.file_system import explain_errors
from detection.storage.files import is_dir
from detection.storage.temporary import temporary_folder
from schemas.errors import DataError


class CocoWriter:
    """Collects entries in a file beside the destination, and writes them sorted by id; a context manager.

    For a remote destination, the file is local.  Memory holds three integers per entry.  `path`
    does not exist before `finish`, which creates it atomically.

    Args:
        path: the COCO file to write, replacing an existing one.

    Raises:
        DataError: the folder cannot be written; also raised by every method.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = path
        with explain_errors(path), contextlib.ExitStack() as stack:
            if is_dir(paths.absolute(path)):
                raise IsADirectoryError(21, "it is a folder")
            self._folder = stack.enter_context(temporary_folder(path))
            self._file = (self._folder / "entries").open("w+b")
            self._temporary = stack.pop_all()
        self._images = _Index("images")
        self._annotations = _Index("annotations")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        self._temporary.close()

    @property
    def images(self) -> int:
        """Number of images added so far."""
        return len(self._images)

    @property
    def annotations(self) -> int:
        """Number of annotations added so far."""
        return len(self._annotations)

    def add(self, image: Mapping[str, Any], annotations: Sequence[Mapping[str, Any]], *, where: str) -> None:
        """Adds an image and its annotations, which are written unchanged.

        Args:
            image: entry of `images`; has an int `id`.
            annotations: entries of `annotations`; each has an int `id`.
            where: the record of the entries, for messages.

        Raises:
            DataError: the id of an entry is not an integer, or a value is not valid JSON.
        """
        for index, entries in ((self._images, [image]), (self._annotations, annotations)):
            for entry in entries:
                identity = entry.get("id")
                if not isinstance(identity, int) or not -(2**63) <= identity < 2**63:
                    raise DataError(
                        f"{where}: an entry of {index.key} has the id {identity!r}, not a 64-bit integer. "
                        "Correct the source and write the records again."
                    )
                try:
                    line = json.dumps(entry, allow_nan=False).encode()
                except ValueError as error:
                    raise DataError(
                        f"{where}: {index.key}, id {identity}: {error}. Correct the source and write the records again."
                    ) from None
                with explain_errors(self._path):
                    index.add(identity, self._file.tell(), len(line))
                    self._file.write(line)

    def finish(self, head: Mapping[str, Any]) -> None:
        """Writes the COCO file.

        Args:
            head: members before the lists: info, licenses, categories.

        Raises:
            DataError: a duplicate id.
        """
        with new_path(self._path, beside=self._folder) as unfinished, unfinished.open("wb") as file:
            file.write(b"{")
            for key, value in head.items():
                file.write(f"{json.dumps(key)}: {json.dumps(value)},\n".encode())
            for index, end in ((self._images, b"],\n"), (self._annotations, b"]}\n")):
                file.write(f'"{index.key}": ['.encode())
                separator = b"\n"
                for line in index.lines(self._file, str(self._path)):
                    file.write(separator + line)
                    separator = b",\n"
                file.write(end)


class _Index:
    """Ids of entries, and their positions in the file."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._ids, self._offsets, self._lengths = array("q"), array("q"), array("q")

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, identity: int, offset: int, length: int) -> None:
        self._ids.append(identity)
        self._offsets.append(offset)
        self._lengths.append(length)

    def lines(self, file: IO[bytes], path: str) -> Iterator[bytes]:
        """Yields the entries in the order of their ids."""
        ids = np.array(self._ids, np.int64)
        order = np.argsort(ids, kind="stable")
        twice = np.flatnonzero(np.diff(ids[order]) == 0)
        if twice.size:
            raise DataError(
                f"{path}: {self.key}: duplicate id {ids[order[twice[0]]]} in the records. "
                "Pass each shard of one data set once."
            )
        for row in order.tolist():
            file.seek(self._offsets[row])
            yield file.read(self._lengths[row])
