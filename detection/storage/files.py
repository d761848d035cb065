"""Looking at, copying and removing files and folders, local or on Cloud Storage.

Both kinds answer alike.  A remote folder is what objects lie below; it needs no making, and
goes with its last object.  Local functions follow links.
"""

import contextlib
import fnmatch
import glob as local_glob
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from detection.storage.gcs import objects as gcs
from detection.storage.gcs.client import AbsentError, absent
from detection.storage.paths import absolute, is_remote, join, name_of, relative, split
from schemas.errors import DataError

_RECURSIVE = "**"


@dataclass(frozen=True)
class FileState:
    """What tells one content of a file from another without reading it.

    Attributes:
        size: bytes.
        version: local: time of the last change in ns; remote: generation.
        modified: time of the last change, seconds since 1970.
        checksum: remote: CRC32C of the content in base64, "" if the service did not tell; local: "".
    """

    size: int
    version: int
    modified: float
    checksum: str = ""


def exists(path: str | Path) -> bool:
    """Returns whether there is a file or folder."""
    return os.path.exists(path) if not is_remote(path) else is_file(path) or is_dir(path)


def is_file(path: str | Path) -> bool:
    """Returns whether there is a file; a remote folder's own object, whose name ends in a slash, is none."""
    if not is_remote(path):
        return os.path.isfile(path)
    text = str(path)
    return not text.endswith("/") and _has_key(text) and gcs.find(text) is not None


def is_dir(path: str | Path) -> bool:
    """Returns whether there is a folder; a bucket is one."""
    if not is_remote(path):
        return os.path.isdir(path)
    try:
        return gcs.has_objects(str(path))
    except AbsentError:
        return False


def state(path: str | Path) -> FileState | None:
    """Returns size and version of a file; None: there is none."""
    if not is_remote(path):
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None
        return FileState(status.st_size, status.st_mtime_ns, status.st_mtime)
    stored = gcs.find(str(path)) if _has_key(str(path)) else None
    return None if stored is None else _state_of(stored)


def walk_states(path: str | Path) -> dict[str, FileState]:
    """Returns the states of all files below a folder, by their paths as in `walk_files`."""
    if is_remote(path):
        return {relative(one.path, path): _state_of(one) for one in gcs.list_tree(str(path))}
    states = ((name, state(join(path, name))) for name in walk_files(path))
    return {name: one for name, one in states if one is not None}


def _state_of(stored: gcs.Stored) -> FileState:
    return FileState(stored.size, stored.generation, stored.updated, stored.crc32c)


def list_folders(path: str | Path) -> list[str]:
    """Returns the names of the folders directly in a folder, sorted, without links; none if there is no such folder.

    Raises:
        DataError: it cannot be read.
    """
    if is_remote(path):
        return [name_of(folder) for folder in gcs.list_folder(str(path))[1]]
    if not os.path.isdir(path):
        return []
    with _explained(path, "list the folder"), os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def list_files(path: str | Path) -> list[str]:
    """Returns the names directly in a folder that are no folders, sorted; none if there is no such folder.

    Raises:
        DataError: see `list_folders`.
    """
    if is_remote(path):
        return [name_of(stored.path) for stored in gcs.list_folder(str(path))[0]]
    if not os.path.isdir(path or "."):
        return []
    with _explained(path, "list the folder"), os.scandir(path or ".") as entries:
        return sorted(entry.name for entry in entries if not entry.is_dir())


def list_folder(path: str | Path) -> list[str]:
    """Returns the names directly in a folder, sorted.

    Raises:
        DataError: there is no such folder, or it cannot be read.
    """
    if not is_remote(path):
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            raise _cannot_list(path, error.strerror or "") from None
    objects, folders = gcs.list_folder(str(path))
    names = sorted({*(name_of(one.path) for one in objects), *map(name_of, folders)})
    if not names and not is_dir(path):
        raise _cannot_list(path, "No such folder")
    return names


def resolve(path: str | Path) -> str:
    """Returns the absolute path, without links; a remote one as it is, without a last slash."""
    return absolute(path) if is_remote(path) else os.path.realpath(path)


def walk_files(path: str | Path, *, follow_links: bool = True, regular: bool = False) -> list[str]:
    """Returns the paths of all files below a folder, relative to it, with `/` between names, sorted.

    A folder that is not there has none.

    Args:
        path: folder.
        follow_links: also goes into local folders that are links.
        regular: leaves out local pipes, sockets, devices and links that lead nowhere.

    Raises:
        DataError: see `walk_folders`.
    """
    if is_remote(path):
        return [relative(one.path, path) for one in gcs.list_tree(str(path))]
    folders = walk_folders(path, follow_links=follow_links)
    found = (Path(current, name) for current, names in folders for name in names)
    return sorted(file.relative_to(path).as_posix() for file in found if not regular or file.is_file())


def walk_folders(path: str | Path, *, follow_links: bool = True) -> Iterator[tuple[str, list[str]]]:
    """Yields a local folder and those below it, each with the names of its files.

    Raises:
        DataError: a link that is followed leads back to a folder that it lies in, so that there is no end.
    """
    for current, folders, names in os.walk(path, followlinks=follow_links):
        for link in (os.path.join(current, name) for name in folders if follow_links):
            if os.path.islink(link) and any(os.path.samefile(link, one) for one in _and_parents(current)):
                raise DataError(f"{link}: this link leads back to a folder that it lies in. Remove it.")
        yield current, names


def _and_parents(folder: str) -> list[Path]:
    return [Path(folder), *Path(folder).parents]


def require_files(local: Iterable[str]) -> None:
    """Requires that local paths are files: libraries wait for a pipe's writer, and read a device without end.

    Raises:
        DataError: one is a pipe, a socket, a device or a folder, or leads nowhere.
    """
    for path in local:
        if not os.path.isfile(path):
            raise DataError(f"{path}: a pipe, socket, device or folder; a file is expected. Move it away.")


def glob(pattern: str | Path) -> list[str]:
    """Returns the paths that match a pattern, sorted.

    `*`, `?` and `[...]` match within one name, and no leading dot unless it is written; `**` as
    a whole name matches any number of folders, hidden ones left out.  `paths.escape` makes a path a literal one.
    """
    if not is_remote(pattern):
        paths = local_glob.glob(str(pattern), recursive=True)
        # Older Pythons take a file for a folder in front of `**`.
        return sorted({path for path in paths if not path.endswith("/") or os.path.isdir(path)})
    text = str(pattern)
    if not local_glob.has_magic(text):
        return [text] if exists(text) else []
    parts = text.split("/")
    first = next(number for number, part in enumerate(parts) if local_glob.has_magic(part))
    return sorted(set(_matches("/".join(parts[:first]), parts[first:])))


def _matches(folder: str, parts: list[str]) -> Iterator[str]:
    """Paths below a remote folder that match the names of a pattern."""
    part, rest = parts[0], parts[1:]
    if part == "":  # a pattern that ends in a slash means folders
        if is_dir(folder):
            yield f"{folder}/"
    elif part == _RECURSIVE:
        if is_dir(folder):
            yield from _matches(folder, rest) if rest else [f"{folder}/"]
            yield from _matches_below(folder, rest)
    elif not local_glob.has_magic(part):
        path = join(folder, part)
        if rest:
            yield from _matches(path, rest)
        elif exists(path):
            yield path
    else:
        files, folders = gcs.list_folder(folder)
        for path in folders:
            if _matches_name(path, part):
                yield from _matches(path, rest) if rest else [path]
        yield from (file.path for file in files if not rest and _matches_name(file.path, part))


def _matches_below(folder: str, rest: list[str]) -> Iterator[str]:
    """What `**` and the names after it match below a folder's subfolders."""
    files, folders = gcs.list_folder(folder)
    if not rest:
        yield from (file.path for file in files if not _is_hidden(file.path))
    for path in folders:
        if not _is_hidden(path):
            yield from _matches(path, rest) if rest else [path]
            yield from _matches_below(path, rest)


def _matches_name(path: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name_of(path), pattern) and (not _is_hidden(path) or pattern.startswith("."))


def _is_hidden(path: str) -> bool:
    return name_of(path).startswith(".")


def make_folder(path: str | Path) -> None:
    """Makes a local folder and those above it; a remote one needs none.

    Raises:
        DataError: it cannot be made.
    """
    if not is_remote(path):
        with _explained(path, "make the folder"):
            os.makedirs(path, exist_ok=True)


def remove_file(path: str | Path) -> None:
    """Removes a file, if there is one.

    Raises:
        DataError: it cannot be removed.
    """
    if is_remote(path):
        gcs.delete(str(path))
        return
    with _explained(path, "remove"), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_folder(path: str | Path, *, first: Sequence[str] = ()) -> None:
    """Removes a folder with all that lies below, if there is one.

    Args:
        path: folder.
        first: relative paths of files without which readers do not take the folder for whole: a remote
            folder goes object by object, and these go first.

    Raises:
        DataError: something below cannot be removed.
    """
    if not is_remote(path):
        with _explained(path, "remove"), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)
        return
    if not _has_key(str(path)):
        raise DataError(f"{path}: this is a whole bucket, which is not removed. Name a folder in it.")
    for name in first:
        gcs.delete(join(path, name))
    gcs.delete_all(gcs.list_tree(str(path), markers=True))


def copy_file(source: str | Path, destination: str | Path) -> None:
    """Copies a file between any two places, over an old one; a remote one appears whole.

    A local one is written in place: `atomic.new_path` makes one that appears whole.

    Raises:
        DataError: the source cannot be read, or the destination cannot be written.
    """
    stored = gcs.find(str(source)) if is_remote(source) else None
    if is_remote(source) and stored is None:
        raise absent(str(source))
    if stored is not None and is_remote(destination):
        gcs.copy(stored, str(destination))
        return
    with _explained(destination, "write"):
        if is_remote(destination):
            gcs.write(str(destination), Path(source))
            return
        os.makedirs(Path(destination).parent, exist_ok=True)
        if stored is not None:
            gcs.download(stored, Path(destination))
        else:
            shutil.copyfile(source, destination)


def link_file(source: str | Path, destination: Path) -> None:
    """Links a file, over an old one, or copies it if it is remote or the file system has no hard links.

    Raises:
        FileNotFoundError: it does not exist, or was removed meanwhile.
        DataError: it cannot be read or written.
    """
    destination.unlink(missing_ok=True)
    if not is_remote(source):
        try:
            os.link(source, destination)
        except FileNotFoundError:
            raise
        except OSError:  # another file system, or one without links
            shutil.copy2(source, destination)
        return
    try:
        copy_file(source, destination)
    except AbsentError:
        raise FileNotFoundError(source) from None


@contextlib.contextmanager
def _explained(path: str | Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        named = f" ({error.filename})" if error.filename and error.filename != str(path) else ""
        raise DataError(
            f"{path}: cannot {what}: {error.strerror}{named}. Check the path and its permissions."
        ) from None


def _cannot_list(path: str | Path, reason: str) -> DataError:
    return DataError(f"{path}: cannot list the folder: {reason}. Check the path and its permissions.")


def _has_key(path: str) -> bool:
    return bool(split(path)[1])
