"""What `local` and `gcs` implement: a file system, the lock of a folder, a folder to work in; and the errors of both.

When is a folder complete? A local one if it exists: it appears by one rename. A remote one if its last file exists:
one of its own that is written last, and that readers require, such as `saved_model.pb`.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from schemas.errors import CocoflowError, DataError

# JSON, the record of the writer: in a remote folder, or a hidden local one, that is being written or removed.
UNFINISHED_MARKER = ".unfinished"
# JSON, the record of the process that holds the folder; not part of the folder's content.
LOCK_FILE = ".lock"
# Ends `.NAME.XXXXXXXX.tmp`, the name of a file or folder beside NAME until it is complete.
TEMPORARY_SUFFIX = ".tmp"
# NAME of the hidden folders beside numbered versions, in which these are made or removed.
PUSH_STEM = "push"
# Written and removed to test that a folder can be written; one name, so the next probe removes the leftover of a kill.
PROBE = f".probe{TEMPORARY_SUFFIX}"

OWN_FILES = (UNFINISHED_MARKER, PROBE, LOCK_FILE)  # in a remote folder, but not of its content

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


class Files(Protocol):
    """A file system; `files.file_system` returns the one of a path.

    A method without a description does what the function of its name in `files` or `atomic` says.
    `read`, `open` and `download` raise `OSError` for a local or missing file; other errors are `DataError`s.

    requests: how many requests to make at a time.
    """

    requests: int

    def is_file(self, path: str) -> bool: ...
    def is_dir(self, path: str) -> bool: ...
    def find_file(self, path: str) -> FileState | None: ...
    def walk_states(self, path: str, *, follow_links: bool) -> dict[str, FileState]: ...
    def glob(self, pattern: str) -> list[str]: ...
    def remove_file(self, path: str) -> None: ...
    def remove_folder(self, path: str, *, first: Sequence[str], at_once: bool) -> None: ...
    def require_writable(self, folder: str) -> None: ...
    def write_bytes(self, path: str, content: bytes, *, durable: bool) -> None: ...

    def entries(self, path: str, *, follow_links: bool = True) -> tuple[list[str], list[str]]:
        """Returns the names of the files and of the folders directly in a folder, sorted; none if there is no folder.

        Links to folders are among the folders, or with `follow_links=False` among the files.
        """

    def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """Returns the bytes of a file from `start` to before `end`, or to the file's end; all of a pipe."""

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading, with `seek`."""

    def download(self, path: str, destination: Path, *, link: bool = False) -> None:
        """Copies a file to a new local one; `link`: links it, if it is local and the file system has hard links."""

    def create(self, path: str, content: bytes) -> None:
        """Writes a file that must not exist with other content; see `atomic.create_json`."""

    def move_file(self, file: Path, path: str, *, durable: bool) -> None:
        """Moves a complete local file to `path`; see `atomic.new_path`."""

    def move_folder(self, folder: Path, path: str, *, last: Sequence[str], replace: bool) -> None:
        """Moves a complete local folder to `path`; see `atomic.new_directory`."""

    def require_free(self, path: str, *, last: Sequence[str]) -> None:
        """Requires that a new folder may be written: it is missing or empty, or the leftover of a failed writer.

        Raises:
            DataError: there is a file, or content.
        """

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yields `work` of every item, in order; `requests` at a time."""


class FolderLock:
    """A folder in use; true if it is held against other processes.

    Args:
        held: whether the file system has locks.
    """

    def __init__(self, held: bool) -> None:
        self._held = held

    def __bool__(self) -> bool:
        return self._held

    def require_held(self) -> None:
        """Checks that the folder is still held; to be called before a write that others read.

        A remote folder is lost if the network or the process stood still for a minute, and another
        process wanted it. A local one is held until its process ends.

        Raises:
            CocoflowError: another process holds it by now.
            DataError: Cloud Storage cannot be asked.
        """


class WorkingFolder:
    """A folder to work in, and the path that it belongs to.

    For a local path, the folder is the path itself, and there is nothing to pull or push;
    `gcs.copies.RemoteWorkingFolder` is the one for a remote path.

    Attributes:
        path: path that the folder belongs to.
        local: folder to read and write.
    """

    def __init__(self, path: str, local: Path) -> None:
        self.path = path
        self.local = local

    def pull(self) -> None:
        """Makes the local folder's files those of the remote one, as of one moment.

        Local files that were never pushed stay, unless the remote folder has files of their names.

        Raises:
            DataError: the remote folder cannot be read, or changes all the time.
        """

    def push(self) -> None:
        """Uploads the files that changed since the last `pull` or `push`, and deletes the removed ones.

        Files come first, then those of `last` in order, so that the files they name exist; deletions
        come at the end. After a failure, the next `push` uploads the rest.

        Raises:
            ConflictError: another process wrote or removed one of these objects, or the response to an
                earlier write got lost.
            CocoflowError: another process holds the folder by now.
            DataError: the remote folder cannot be written.
        """

    def push_folder(self, name: str, *, last: Sequence[str]) -> None:
        """Uploads a folder that `push` excludes, over an old one, so that it appears complete.

        Args:
            name: relative path of the folder.
            last: see `atomic.new_directory`.

        Raises:
            DataError: the remote folder cannot be written.
        """


class FolderInUseError(CocoflowError):
    """Another process holds the folder."""


def in_use(folder: str | Path, holder: str, instead: str) -> FolderInUseError:
    """Returns the error for a folder that another process holds."""
    return FolderInUseError(f"{folder}: in use by {holder}. Wait until it has ended, or {instead}.")


def not_empty(path: str | Path) -> DataError:
    """Returns the error for a destination that is a file, or a folder with content."""
    return DataError(f"{path}: cannot write: not a new or empty folder. Remove what is there, or name another folder.")


@contextlib.contextmanager
def explain_errors(path: str | Path, action: str = "write") -> Iterator[None]:
    """Turns an `OSError` of the block into a message that names the failed action and the path, with a remedy.

    Raises:
        DataError: the block raised an `OSError`.
    """
    try:
        yield
    except OSError as error:
        named = f" ({error.filename})" if error.filename and error.filename != str(path) else ""
        raise DataError(
            f"{path}: cannot {action}: {error.strerror}{named}. Check that its folder exists, that you may use it and "
            "that it has free space, or name another."
        ) from error
