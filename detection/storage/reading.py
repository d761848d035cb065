"""Reads files that users name: in full, as streams, or by local copies of what is on Cloud Storage."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from detection.storage import files, paths
from detection.storage.files import file_system
from schemas.errors import DataError
from schemas.quoting import one_line


def read_bytes(path: str | Path, limit: int | None = None) -> bytes:
    """Reads a file or a pipe.

    Args:
        path: file.
        limit: max size in bytes; None: no limit.

    Raises:
        DataError: the file cannot be read, has more than `limit` bytes, or is a device; more than
            `local.MAX_PIPE_BYTES` came through a pipe.
    """
    content = read_range(path, 0, None if limit is None else limit + 1)
    if limit is not None and len(content) > limit:
        raise DataError(f"{path}: more than {limit} bytes. Check that it is the file you mean.")
    return content


def read_range(path: str | Path, offset: int, length: int | None) -> bytes:
    """Reads `length` bytes of a file from byte `offset`, or up to its end; of a remote file nothing else is fetched.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return file_system(path).read(str(path), offset, None if length is None else offset + length)
    except OSError as error:
        raise cannot_read(path, error) from None
    except ValueError as error:  # a NUL character
        raise DataError(f"{one_line(path)}: no path: {error}. Check the path.") from None


def count_readers(path: str | Path, threads: int = 1) -> int:
    """Returns how many threads read a folder's files: `threads`, or more for a remote one, as they mostly wait."""
    return max(threads, file_system(path).requests)


def read_many(folder: str | Path, names: Iterable[str]) -> Iterator[bytes]:
    """Yields the content of files of a folder, in the order of the names; remote ones are read several at a time.

    Raises:
        DataError: a file cannot be read.
    """
    return file_system(folder).map(read_bytes, (paths.join(folder, name) for name in names))


def read_text(path: str | Path) -> str:
    """Reads a text file in UTF-8, line ends as they are.

    Raises:
        DataError: the file cannot be read, or is not UTF-8.
    """
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file in UTF-8 ({error}). Check that it is the file you mean.") from None


def open_stream(path: str | Path) -> BinaryIO:
    """Opens a file for reading, with `seek`; the caller closes it.

    Remote files arrive in blocks of 8 MiB, all of one generation: for many seeks, or several
    readings, `local_copy` is faster.

    Raises:
        DataError: the file cannot be opened.
    """
    try:
        return file_system(path).open(str(path))
    except OSError as error:
        raise cannot_read(path, error) from None


def local_copy(path: str | Path, *, complete: str | None = None, only: Sequence[str] = ()) -> Path:
    """Returns a local file or folder with the content of `path`, for reading only: for code that opens, maps or seeks.

    Remote ones are downloaded, several files at a time, unless this process has these very
    generations; checksums are compared. The last name of the path stays. See `gcs.copies`.

    Args:
        path: file or folder. A local one is returned as it is.
        complete: for a folder: the file that a complete one has, such as `saved_model.pb`; a remote folder without it
            is refused. None: any folder.
        only: for a folder: patterns of the relative paths to copy, as of `fnmatch`; none: all.

    Raises:
        DataError: there is no such file or folder, or it is not complete, is written all the time,
            or cannot be read; or there is no space for it.
        ConfigError: `$COCOFLOW_CACHE` is remote.
    """
    if not paths.is_remote(path):
        return Path(path)
    from detection.storage.gcs import copies

    return copies.local_copy(str(path), complete=complete, only=only)


def cannot_read(path: str | Path, error: OSError) -> DataError:
    """Returns the error for a file that cannot be opened, which names the JSON files beside it."""
    folder = paths.parent(path)
    names = [name for name in files.list_files(folder) if name.endswith(".json")]
    beside = ", ".join(names[:8]) or "none"
    return DataError(
        f"{path}: cannot read the file: {error.strerror}. JSON files in {folder}: {beside}. Check the path."
    )
