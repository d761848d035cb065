"""Cloud Storage as a file system."""

import contextlib
import errno
import fnmatch
import os
from collections.abc import Iterator, Sequence
from glob import has_magic
from pathlib import Path
from typing import BinaryIO

from detection.storage.file_system import FileState
from detection.storage.gcs import folders, objects
from detection.storage.gcs.client import REQUESTS, AbsentError, in_batches
from detection.storage.paths import join, split
from schemas.errors import DataError

_RECURSIVE = "**"


class CloudStorage:
    """Google Cloud Storage, where a folder is the common start of objects' paths; see `file_system.Files`."""

    requests = REQUESTS
    find_file = staticmethod(objects.find)
    map = staticmethod(in_batches)
    move_folder = staticmethod(folders.upload)
    require_free = staticmethod(folders.require_free)
    remove_file = staticmethod(objects.delete)

    def is_file(self, path: str) -> bool:
        """Returns False for a folder's own object, whose name ends in a slash."""
        return not path.endswith("/") and self.find_file(path) is not None

    def is_dir(self, path: str) -> bool:
        with contextlib.suppress(AbsentError):
            return objects.has_objects(path)
        return False

    def entries(self, path: str, *, follow_links: bool = True) -> tuple[list[str], list[str]]:
        return objects.list_folder(path)

    def walk_states(self, path: str, *, follow_links: bool) -> dict[str, FileState]:
        return objects.list_tree(path)

    def glob(self, pattern: str) -> list[str]:
        """Lists the folders in question, one by one."""
        if not has_magic(pattern):
            return [pattern] if self.is_file(pattern) or self.is_dir(pattern) else []
        parts = pattern.split("/")
        first = next(number for number, part in enumerate(parts) if has_magic(part))
        return sorted(set(self._matches("/".join(parts[:first]), parts[first:])))

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        with _missing_as_os_error(path):
            return objects.read(path, start, end)

    def open(self, path: str) -> BinaryIO:
        with _missing_as_os_error(path):
            return objects.open_stream(path)

    def download(self, path: str, destination: Path, *, link: bool = False) -> None:
        with _missing_as_os_error(path):
            objects.download(objects.require(path), destination)

    def write_bytes(self, path: str, content: bytes, *, durable: bool) -> None:
        objects.write(path, content)

    def create(self, path: str, content: bytes) -> None:
        objects.write(path, content, generation=0)

    def move_file(self, file: Path, path: str, *, durable: bool) -> None:
        objects.write(path, file)

    def require_writable(self, folder: str) -> None:
        folders.probe(folder)

    def remove_folder(self, path: str, *, first: Sequence[str], at_once: bool) -> None:
        if not split(path)[1]:
            raise DataError(f"{path}: this is a bucket, which is not removed. Name a folder in it.")
        for name in first:
            objects.delete(join(path, name))
        objects.delete_all(objects.list_tree(path, markers=True).values())

    def _matches(self, folder: str, parts: list[str]) -> Iterator[str]:
        """Yields paths below a folder that match the names of a pattern."""
        part, *rest = parts
        if part == "":  # a pattern that ends in a slash means folders
            if self.is_dir(folder):
                yield f"{folder}/"
        elif part == _RECURSIVE:
            if not rest:  # the folder, and everything below
                yield from self._matches(folder, [""])
                rest = ["*"]
            yield from self._matches(folder, rest)
            for name in objects.list_folder(folder)[1]:
                if not name.startswith("."):
                    yield from self._matches(join(folder, name), [part, *rest])
        else:
            for name in self._names(folder, part, folders=bool(rest)):
                yield from self._matches(join(folder, name), rest) if rest else [join(folder, name)]

    def _names(self, folder: str, part: str, *, folders: bool) -> list[str]:
        """Returns the names in a folder that match one name of a pattern; `folders`: only those of folders."""
        if not has_magic(part):
            path = join(folder, part)
            return [part] if folders or self.is_file(path) or self.is_dir(path) else []
        files, subfolders = objects.list_folder(folder)
        names = fnmatch.filter(subfolders if folders else [*files, *subfolders], part)
        return [name for name in names if part.startswith(".") or not name.startswith(".")]


@contextlib.contextmanager
def _missing_as_os_error(path: str) -> Iterator[None]:
    try:
        yield
    except AbsentError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
