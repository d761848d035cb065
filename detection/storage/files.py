"""Inspects, reads, copies and removes files and folders, local or on Cloud Storage.

Both kinds give the same answers. A remote folder is the common start of its objects' paths: it needs no
making, and disappears with its last object. Local functions follow links.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from detection.storage.file_system import Files, FileState, explain_errors
from detection.storage.local import LocalFiles
from detection.storage.paths import REMOTE_PREFIX, absolute, is_remote, join, parent, split
from schemas.errors import DataError
from schemas.quoting import one_line


def file_system(path: str | Path) -> Files:
    """Returns the file system of a path.

    Raises:
        ValueError: see `paths.is_remote`.
    """
    if not is_remote(path):
        return LocalFiles()
    from detection.storage.gcs.file_system import CloudStorage

    return CloudStorage()


def exists(path: str | Path) -> bool:
    """Returns whether there is a file or folder."""
    return find_file(path) is not None or is_dir(path)


def is_file(path: str | Path) -> bool:
    """Returns whether there is a file that can be read more than once, so no pipe.

    The object that marks an empty remote folder is not a file.
    """
    return file_system(path).is_file(str(path))


def is_dir(path: str | Path) -> bool:
    """Returns whether there is a folder; a bucket is one."""
    return file_system(path).is_dir(str(path))


def is_bucket_missing(path: str | Path) -> bool:
    """Returns whether a remote path names a missing bucket.

    Raises:
        DataError: the service cannot be asked, or refuses access.
    """
    return is_remote(path) and not is_dir(REMOTE_PREFIX + split(path)[0])


def find_file(path: str | Path) -> FileState | None:
    """Returns size and version of a file; None: no such file."""
    return file_system(path).find_file(str(path))


def walk_states(path: str | Path, *, follow_links: bool = True) -> dict[str, FileState]:
    """Returns the states of all files below a folder by relative path; see `walk_files`."""
    return file_system(path).walk_states(str(path), follow_links=follow_links)


def walk_files(path: str | Path, *, follow_links: bool = True) -> list[str]:
    """Returns the paths of all files below a folder, relative to it, with `/` between names, sorted.

    A missing folder has no files.

    Args:
        path: folder.
        follow_links: also enters local folders that are links.

    Raises:
        DataError: a link leads back to a folder that contains it.
    """
    return list(walk_states(path, follow_links=follow_links))


def list_folders(path: str | Path) -> list[str]:
    """Returns the names of the folders directly in a folder, sorted, without links; none if there is no such folder.

    Raises:
        DataError: it cannot be read.
    """
    return file_system(path).entries(str(path), follow_links=False)[1]


def list_files(path: str | Path) -> list[str]:
    """Returns the names of the files directly in a folder, sorted; none if there is no such folder.

    Raises:
        DataError: it cannot be read.
    """
    return file_system(path).entries(str(path))[0]


def list_folder(path: str | Path) -> list[str]:
    """Returns the names directly in a folder, sorted.

    Raises:
        DataError: there is no such folder, or it cannot be read.
    """
    names, folders = file_system(path).entries(str(path))
    if not names and not folders and not is_dir(path):
        raise DataError(f"{path}: cannot list the folder: No such folder. Check the path and its permissions.")
    return sorted({*names, *folders})


def resolve(path: str | Path) -> str:
    """Returns the absolute path, without links; a remote one as it is, without a last slash."""
    return absolute(path) if is_remote(path) else os.path.realpath(path)


def glob(pattern: str | Path) -> list[str]:
    """Returns the paths that match a pattern, sorted.

    `*`, `?` and `[...]` match within one name, and no leading dot unless it is written; `**` as
    a complete name matches any number of folders except hidden ones. `paths.escape` makes a path a literal one.
    """
    return file_system(pattern).glob(str(pattern))


def make_folder(path: str | Path) -> None:
    """Makes a local folder and those above it; a remote one needs none.

    Raises:
        DataError: it cannot be made.
    """
    if not is_remote(path):
        with explain_errors(path, "make the folder"):
            os.makedirs(path, exist_ok=True)


def remove_file(path: str | Path) -> None:
    """Removes a file, if there is one.

    Raises:
        DataError: it cannot be removed.
    """
    file_system(path).remove_file(str(path))


def remove_folder(path: str | Path, *, first: Sequence[str] = (), at_once: bool = False) -> None:
    """Removes a folder and everything below it, if there is one.

    Args:
        path: folder.
        first: relative paths of files that are removed before all others, in this order: those without which
            readers do not take the folder for complete.
        at_once: a local folder disappears by one rename; `temporary.remove_leftovers` removes the leftover of a kill.

    Raises:
        DataError: something below cannot be removed, or the path is a bucket.
    """
    file_system(path).remove_folder(str(path), first=first, at_once=at_once)


def copy_file(source: str | Path, destination: str | Path) -> None:
    """Copies a file between any two paths, over an old one; a remote copy appears complete.

    A local copy is written in place: `atomic.new_path` makes one that appears complete.

    Raises:
        DataError: the source cannot be read, or the destination cannot be written.
    """
    with explain_errors(destination):
        if is_remote(destination):
            from detection.storage.gcs import objects

            objects.copy_file(str(source), str(destination))
        else:
            os.makedirs(os.path.dirname(os.path.abspath(destination)), exist_ok=True)
            file_system(source).download(str(source), Path(destination))


def link_file(source: str | Path, destination: Path) -> None:
    """Links a file, over an old one, or copies it if it is remote or the file system has no hard links.

    Raises:
        FileNotFoundError: it does not exist, or was removed meanwhile.
        DataError: it cannot be read or written.
    """
    destination.unlink(missing_ok=True)
    file_system(source).download(str(source), destination, link=True)


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
    return file_system(folder).map(read_bytes, (join(folder, name) for name in names))


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
    if not is_remote(path):
        return Path(path)
    from detection.storage.gcs import copies

    return copies.local_copy(str(path), complete=complete, only=only)


def cannot_read(path: str | Path, error: OSError) -> DataError:
    """Returns the error for a file that cannot be opened, which names the JSON files beside it."""
    folder = parent(path)
    names = [name for name in list_files(folder) if name.endswith(".json")]
    beside = ", ".join(names[:8]) or "none"
    return DataError(
        f"{path}: cannot read the file: {error.strerror}. JSON files in {folder}: {beside}. Check the path."
    )
