"""The file system of a path, and the state of a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from detection.storage.paths import is_remote

if TYPE_CHECKING:
    from detection.storage.gcs.file_system import CloudStorage
    from detection.storage.local import LocalFiles


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


def file_system(path: str | Path) -> "LocalFiles | CloudStorage":
    """Returns the file system of a path.

    Both have the same methods, which `files`, `reading`, `atomic`, `staging`, `mirror`, `lock` and `publication`
    describe. Reading raises `OSError` for a local or missing file; other errors are `DataError`s.

    Raises:
        ValueError: see `paths.is_remote`.
    """
    if is_remote(path):
        from detection.storage.gcs.file_system import CloudStorage

        return CloudStorage()
    from detection.storage.local import LocalFiles

    return LocalFiles()
