"""Cloud Storage as a file system; see `detection.storage.file_system`."""

import contextlib
import errno
import fnmatch
import os
from collections.abc import Iterator, Sequence
from glob import has_magic
from pathlib import Path
from typing import BinaryIO

from detection.storage.atomic import explained
from detection.storage.file_system import FileState
from detection.storage.gcs import copies, folders, lease, mirror, objects
from detection.storage.gcs.client import REQUESTS, AbsentError, absent, in_batches
from detection.storage.gcs.versions import RemoteVersions
from detection.storage.paths import absolute, is_remote, join, name_of, relative, split
from schemas.errors import DataError

_RECURSIVE = "**"


class CloudStorage:
    """Google Cloud Storage: a folder is the common start of objects' paths."""

    requests = REQUESTS
    resolve = staticmethod(absolute)
    map = staticmethod(in_batches)
    local_copy = staticmethod(copies.local_copy)
    move_folder = staticmethod(folders.upload)
    require_free = staticmethod(folders.require_free)
    require_writable = staticmethod(folders.probe)
    remove_file = staticmethod(objects.delete)
    lock = staticmethod(lease.hold_folder)
    working_folder = staticmethod(mirror.working_folder)
    versions = RemoteVersions

    def find(self, path: str) -> FileState | None:
        """Returns the state of an object."""
        return objects.find(path) if split(path)[1] else None

    def is_file(self, path: str) -> bool:
        """Returns False for a folder's own object, whose name ends in a slash."""
        return not path.endswith("/") and self.find(path) is not None

    def is_dir(self, path: str) -> bool:
        """Returns whether there is an object below."""
        try:
            return objects.has_objects(path)
        except AbsentError:
            return False

    def entries(self, path: str, *, follow_links: bool = True) -> tuple[list[str], list[str]]:
        """Lists by one request per page."""
        files, subfolders = objects.list_folder(path)
        return [name_of(one.path) for one in files], [name_of(one) for one in subfolders]

    def walk(self, path: str, *, follow_links: bool) -> dict[str, FileState]:
        """Lists by one request per page."""
        return {relative(one.path, path): one for one in objects.list_tree(path)}

    def glob(self, pattern: str) -> list[str]:
        """Lists the folders in question, one by one."""
        if not has_magic(pattern):
            return [pattern] if self.is_file(pattern) or self.is_dir(pattern) else []
        parts = pattern.split("/")
        first = next(number for number, part in enumerate(parts) if has_magic(part))
        return sorted(set(self._matches("/".join(parts[:first]), parts[first:])))

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Reads an object by one request."""
        with _missing_as_os_error(path):
            return objects.read(path, start, end)

    def open(self, path: str) -> BinaryIO:
        """Opens an object for reading."""
        with _missing_as_os_error(path):
            return objects.open_stream(path)

    def download(self, path: str, destination: Path, *, link: bool = False) -> None:
        """Downloads an object."""
        with _missing_as_os_error(path):
            objects.download(self._require(path), destination)

    def write(self, path: str, content: bytes, *, durable: bool) -> None:
        """Writes an object over an old one."""
        objects.write(path, content)

    def create(self, path: str, content: bytes) -> None:
        """Writes an object on the condition that there is none."""
        objects.write(path, content, generation=0)

    def copy(self, source: str, path: str) -> None:
        """Copies within the service, or uploads a local file."""
        if is_remote(source):
            objects.copy(self._require(source), path)
            return
        with explained(path):
            objects.write(path, Path(source))

    def move_file(self, file: Path, path: str, *, durable: bool) -> None:
        """Uploads the file."""
        objects.write(path, file)

    @contextlib.contextmanager
    def shared_directory(self, path: str, *, last: str) -> Iterator[str | Path]:
        """Yields the folder itself, and holds it."""
        with self.lock(path, instead="name another folder"), folders.claimed(path, last=(last,)):
            yield path.rstrip("/")

    def make_folder(self, path: str) -> None:
        """Does nothing: folders need no making."""

    def remove_folder(self, path: str, *, first: Sequence[str], at_once: bool) -> None:
        """Deletes objects, those of `first` one by one."""
        if not split(path)[1]:
            raise DataError(f"{path}: this is a bucket, which is not removed. Name a folder in it.")
        for name in first:
            objects.delete(join(path, name))
        objects.delete_all(objects.list_tree(path, markers=True))

    def _require(self, path: str) -> FileState:
        state = self.find(path)
        if state is None:
            raise absent(path)
        return state

    def _matches(self, folder: str, parts: list[str]) -> Iterator[str]:
        """Yields paths below a folder that match the names of a pattern."""
        part, rest = parts[0], parts[1:]
        if part == "":  # a pattern that ends in a slash means folders
            if self.is_dir(folder):
                yield f"{folder}/"
        elif part == _RECURSIVE:
            if self.is_dir(folder):
                yield from self._matches(folder, rest) if rest else [f"{folder}/"]
                yield from self._matches_below(folder, rest)
        elif not has_magic(part):
            path = join(folder, part)
            if rest:
                yield from self._matches(path, rest)
            elif self.is_file(path) or self.is_dir(path):
                yield path
        else:
            files, subfolders = objects.list_folder(folder)
            for path in subfolders:
                if _matches_name(path, part):
                    yield from self._matches(path, rest) if rest else [path]
            yield from (file.path for file in files if not rest and _matches_name(file.path, part))

    def _matches_below(self, folder: str, rest: list[str]) -> Iterator[str]:
        """Yields what `**` and the names after it match below a folder's subfolders."""
        files, subfolders = objects.list_folder(folder)
        if not rest:
            yield from (file.path for file in files if not _is_hidden(file.path))
        for path in subfolders:
            if not _is_hidden(path):
                yield from self._matches(path, rest) if rest else [path]
                yield from self._matches_below(path, rest)


def _matches_name(path: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name_of(path), pattern) and (not _is_hidden(path) or pattern.startswith("."))


def _is_hidden(path: str) -> bool:
    return name_of(path).startswith(".")


@contextlib.contextmanager
def _missing_as_os_error(path: str) -> Iterator[None]:
    try:
        yield
    except AbsentError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
