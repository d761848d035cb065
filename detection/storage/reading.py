"""Reading files that users name: whole, or as streams; local files, pipes and objects of Cloud Storage."""

import errno
import os
import select
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from detection.storage import files, paths
from detection.storage.gcs import objects, streams
from detection.storage.gcs.client import AbsentError, in_batches
from schemas.errors import DataError
from schemas.quoting import one_line

PIPE_BYTES = 512 << 20  # that is read from a pipe, at most
WRITER_SECONDS = 10.0  # that a pipe may stay without a writer
_REMOTE_READERS = 8  # threads
_NO_FILE = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def read_bytes(path: str | Path, limit: int | None = None) -> bytes:
    """Reads a file, or what comes through a pipe.

    Args:
        path: of the file.
        limit: most bytes that it may have; None: as many as it has.

    Raises:
        DataError: the file cannot be read or is larger; it is a device, which may have no
            end; a pipe that nothing is written to, or more than `PIPE_BYTES`.
    """
    try:
        if paths.is_remote(path):
            return objects.read(str(path)) if limit is None else objects.read_small(str(path), limit)
        mode = os.stat(path).st_mode
        if stat.S_ISFIFO(mode):
            content = _read_pipe(path)
        elif stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            with open(path, "rb") as file:
                content = file.read(-1 if limit is None else limit + 1)
        else:
            raise DataError(f"{path}: this is a device or socket. Name a file, or a pipe.")
    except AbsentError:
        raise cannot_read(path, _NO_FILE) from None
    except OSError as error:
        raise cannot_read(path, error) from None
    except ValueError as error:  # a NUL character
        raise DataError(f"{one_line(path)}: no path: {error}. Check the path.") from None
    return _limited(path, content, limit)


def _limited(path: str | Path, content: bytes, limit: int | None) -> bytes:
    if limit is not None and len(content) > limit:
        raise DataError(f"{path}: more than {limit} bytes. Check that it is the file you mean.")
    return content


def read_range(path: str | Path, offset: int, length: int) -> bytes:
    """Reads `length` bytes of a file from byte `offset` on; of a remote file nothing else is fetched.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        if paths.is_remote(path):
            return objects.read(str(path), offset, offset + length)
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(length)
    except AbsentError:
        raise cannot_read(path, _NO_FILE) from None
    except OSError as error:
        raise cannot_read(path, error) from None


def read_remote(path: str, limit: int) -> bytes | None:
    """Reads a remote file by one request; None: there is none.

    Raises:
        TooLargeError: it has more than `limit` bytes.
        DataError: it cannot be read.
    """
    try:
        return objects.read_small(path, limit)
    except AbsentError:
        return None


def readers(path: str | Path, threads: int = 1) -> int:
    """Returns how many threads read a folder's files: `threads`, or more for a remote one, as they mostly wait."""
    return max(threads, _REMOTE_READERS) if paths.is_remote(path) else threads


def read_many(folder: str | Path, names: Iterable[str]) -> Iterator[bytes]:
    """Yields the content of files of a folder, in the order of the names; remote ones are read several at a time.

    Raises:
        DataError: see `read_bytes`.
    """
    files_of_names = (paths.join(folder, name) for name in names)
    return in_batches(read_bytes, files_of_names) if paths.is_remote(folder) else map(read_bytes, files_of_names)


def read_text(path: str | Path) -> str:
    """Reads a text file in UTF-8, line ends as they are.

    Raises:
        DataError: see `read_bytes`; or it is not UTF-8.
    """
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file in UTF-8 ({error}). Check that it is the file you mean.") from None


def open_stream(path: str | Path) -> BinaryIO:
    """Opens a file for reading from its start on, or with `seek`; the caller closes it.

    Remote ones arrive in blocks of 8 MiB, all of one generation: for many seeks, or several
    readings, `staging.local_copy` is faster.

    Raises:
        DataError: the file cannot be opened.
    """
    try:
        return streams.stream(str(path)) if paths.is_remote(path) else open(path, "rb")
    except AbsentError:
        raise cannot_read(path, _NO_FILE) from None
    except OSError as error:
        raise cannot_read(path, error) from None


def is_pipe(path: str | Path) -> bool:
    """Returns whether a path is a pipe, which can be read once."""
    try:
        return not paths.is_remote(path) and stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _read_pipe(path: str | Path) -> bytes:
    # Opened without waiting: a pipe that nobody writes to would block for ever.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not select.select([file], [], [], WRITER_SECONDS)[0]:
            raise DataError(f"{path}: nothing came through this pipe for {WRITER_SECONDS:g} s. Name a file.")
        os.set_blocking(file.fileno(), True)
        content = file.read(PIPE_BYTES + 1)
    if len(content) > PIPE_BYTES:
        raise DataError(f"{path}: more than {PIPE_BYTES >> 20} MiB came through this pipe. Write it to a file first.")
    return content


def cannot_read(path: str | Path, error: OSError) -> DataError:
    """Returns the error for a file that cannot be opened, which names the files beside it."""
    return DataError(f"{path}: cannot read the file: {error.strerror}. {_what_is_there(path)}")


def _what_is_there(path: str | Path) -> str:
    folder = paths.parent(path)
    if not files.is_dir(folder):
        return f"The folder {folder} does not exist either; check the path."
    names = files.list_folder(folder) if os.access(folder, os.R_OK) or paths.is_remote(folder) else []
    names = [name for name in names if name.endswith(".json")]
    if not names:
        return f"There is no JSON file in {folder}; check the path."
    return f"JSON files in {folder}: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}."
