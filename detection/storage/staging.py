"""Local copies of remote files and folders, for code that opens, maps or seeks in local files."""

from collections.abc import Sequence
from pathlib import Path

from detection.storage.file_system import file_system

CACHE_VARIABLE = "COCOFLOW_CACHE"  # environment variable: local folder for copies, and for unpacked archives


def local_copy(path: str | Path, *, complete: str | None = None, only: Sequence[str] = ()) -> Path:
    """Returns a local file or folder with the content of `path`, for reading only.

    Remote ones are downloaded, several files at a time, unless this process has these very
    generations; checksums are compared. The last name of the path stays. See `gcs.copies`.

    Args:
        path: file or folder. A local one is returned as it is.
        complete: for a folder: the file that a complete one has, such as `saved_model.pb` or
            `markers.COMPLETE_MARKER`; a remote folder without it is refused. None: any folder.
        only: for a folder: patterns of the relative paths to copy, as of `fnmatch`; none: all.

    Raises:
        DataError: there is no such file or folder, or it is not complete, is written all the time,
            or cannot be read; or there is no space for it.
        ConfigError: `$COCOFLOW_CACHE` is remote.
    """
    return file_system(path).local_copy(str(path), complete=complete, only=only)
