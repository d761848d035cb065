"""Inspects, copies and removes files and folders, local or on Cloud Storage.

Both kinds give the same answers. A remote folder is the common start of its objects' paths: it needs no
making, and disappears with its last object. Local functions follow links.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from detection.storage.file_system import Files, FileState, explain_errors
from detection.storage.local import LocalFiles
from detection.storage.paths import REMOTE_PREFIX, absolute, is_remote, split
from schemas.errors import DataError


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
