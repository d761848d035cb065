"""File systems: the operations that storage needs, and the file system of a path."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeVar

from detection.storage.paths import is_remote

if TYPE_CHECKING:
    from detection.storage.gcs.versions import RemoteVersions
    from detection.storage.lock import Use
    from detection.storage.mirror import Mirror
    from detection.storage.publication import LocalVersions

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class FileState:
    """A file and its version, which changes with its content; to find out, nothing of the content is read.

    Attributes:
        path: path of the file.
        size: bytes.
        version: local: time of the last change in ns; remote: generation, which every write increases.
        modified: time of the last change, seconds since 1970, by the clock of the file system.
        checksum: remote: CRC32C of the content in base64, "" if the service did not send it; local: "".
    """

    path: str
    size: int
    version: int
    modified: float
    checksum: str = ""


class FileSystem(Protocol):
    """Operations on paths of one kind: `local.LocalFiles` or `gcs.file_system.CloudStorage`.

    `files`, `reading`, `atomic`, `staging`, `mirror`, `lock` and `publication` describe them. Reading raises
    `OSError` for a local or missing file; other errors are `DataError`s.
    """

    requests: int  # to make at a time: 1 if a response takes no time

    def find(self, path: str, /) -> FileState | None:
        """Returns the state of a file; None: no such file."""

    def is_file(self, path: str, /) -> bool:
        """Returns whether there is a file that can be read more than once."""

    def is_dir(self, path: str, /) -> bool:
        """Returns whether there is a folder."""

    def entries(self, path: str, *, follow_links: bool = True) -> tuple[list[str], list[str]]:
        """Lists the names of the files and of the folders in a folder, sorted; none if there is no such folder."""

    def walk(self, path: str, *, follow_links: bool) -> dict[str, FileState]:
        """Lists the files below a folder by relative path, sorted; see `files.walk_files`."""

    def glob(self, pattern: str, /) -> list[str]:
        """Lists the paths that match a pattern; see `files.glob`."""

    def resolve(self, path: str, /) -> str:
        """Returns the absolute path without links."""

    def map(self, work: Callable[[T], R], items: Iterable[T], /) -> Iterator[R]:
        """Yields `work` of every item in order, `requests` at a time."""

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Reads a file from byte `start` to before `end`; None: to its end."""

    def open(self, path: str, /) -> BinaryIO:
        """Opens a file for reading; see `reading.open_stream`."""

    def download(self, path: str, destination: Path, *, link: bool = False) -> None:
        """Copies a file to a local path; `link`: by a hard link where possible."""

    def local_copy(self, path: str, *, complete: str | None, only: Sequence[str]) -> Path:
        """Returns a local file or folder of the same content; see `staging.local_copy`."""

    def create(self, path: str, content: bytes) -> None:
        """Writes a file that must not exist, except with the same content."""

    def copy(self, source: str, path: str) -> None:
        """Copies a file of any file system to a path of this one."""

    def move_file(self, file: Path, path: str, *, durable: bool) -> None:
        """Makes a local file, which is deleted later, the content of `path`, over an old one."""

    def move_folder(self, folder: Path, path: str, *, last: Sequence[str], replace: bool) -> None:
        """Makes the content of a local folder, which is deleted later, a folder; see `atomic.new_directory`."""

    def require_free(self, path: str, *, last: Sequence[str]) -> None:
        """Requires that `move_folder` replaces nothing but an empty folder, or the leftover of a failed writer."""

    def shared_directory(self, path: str, *, last: str) -> AbstractContextManager[str | Path]:
        """Yields a folder of this file system that becomes `path`; see `atomic.shared_directory`."""

    def make_folder(self, path: str, /) -> None:
        """Makes a folder and those above it."""

    def require_writable(self, path: str, /) -> object:
        """Makes a folder and checks that files can be written there."""

    def remove_file(self, path: str, /) -> object:
        """Removes a file, if there is one."""

    def remove_folder(self, path: str, *, first: Sequence[str], at_once: bool) -> None:
        """Removes a folder, if there is one; see `files.remove_folder`."""

    def lock(self, path: str, *, instead: str) -> "AbstractContextManager[Use]":
        """Holds a folder; see `lock.exclusive_use`."""

    def working_folder(
        self, path: str, *, last: Sequence[str], exclude: Sequence[str], use: "Use | None"
    ) -> "AbstractContextManager[Mirror]":
        """Yields a local folder to work in; see `mirror.working_folder`."""

    def versions(self, path: str, /) -> "LocalVersions | RemoteVersions":
        """Returns a folder of numbered versions; see `publication`."""


def file_system(path: str | Path) -> FileSystem:
    """Returns the file system of a path.

    Raises:
        ValueError: see `paths.is_remote`.
    """
    return _cloud_storage() if is_remote(path) else _local_files()


@functools.cache
def _cloud_storage() -> FileSystem:
    from detection.storage.gcs.file_system import CloudStorage

    return CloudStorage()


@functools.cache
def _local_files() -> FileSystem:
    from detection.storage.local import LocalFiles

    return LocalFiles()
