"""Numbered versions of a folder, such as the models below a push directory: found, published, removed.

A model server serves the version of the highest number, and loads a folder with an all-digits name as soon as it sees
it. So a version is copied under a hidden name in the same folder, checked there, and renamed. On Cloud Storage, which
cannot rename a folder, its objects are copied, the marker last; see `gcs.versions`.
"""

import contextlib
import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from detection.storage.atomic import write_many
from detection.storage.checksums import contents
from detection.storage.file_system import PUSH_STEM
from detection.storage.files import file_system, is_file, local_copy
from detection.storage.gcs.objects import crc32c
from detection.storage.gcs.versions import RemoteVersions
from detection.storage.local import fsync_path, fsync_tree
from detection.storage.paths import absolute, is_remote, join, name_of, parent
from detection.storage.temporary import lock_local, remove_leftovers, temporary_folder
from schemas.errors import DataError

MAX_VERSION = 2**63 - 2  # that a model server takes; 19 digits
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)

_LOGGER = logging.getLogger("cocoflow.storage")


def version_number(name: str) -> int | None:
    """Returns the number of a version from the name of its folder; None: a model server takes no such name.

    Servers read the number as int64. The highest one is excluded, as no version could follow it.

    >>> version_number("17"), version_number("v17"), version_number("9223372036854775807")
    (17, None, None)
    """
    if not (name.isascii() and name.isdecimal() and len(name) <= len(str(MAX_VERSION))):
        return None
    number = int(name)
    return number if number <= MAX_VERSION else None


def numbered_versions(directory: str | Path) -> list[tuple[int, str]]:
    """Returns numbers and paths of the versions, complete or not, oldest first; none if there is no such folder.

    Raises:
        DataError: the folder cannot be read.
    """
    numbers = ((version_number(name), name) for name in file_system(directory).entries(str(directory))[1])
    return sorted((number, join(directory, name)) for number, name in numbers if number is not None)


def newest_version(directory: str | Path, marker: str) -> str | None:
    """Returns the path of the highest complete version; None: no such version.

    Args:
        directory: local or remote folder of versions.
        marker: relative path of the file that a complete version has.

    Raises:
        DataError: the folder cannot be read.
    """
    newest_first = reversed(numbered_versions(directory))
    return next((path for _, path in newest_first if is_file(join(path, marker))), None)


def foreign_entries(directory: str | Path) -> list[str]:
    """Returns the names of digits that are no versions: those of files, and numbers beyond a model server's."""
    files, folders = file_system(directory).entries(str(directory))
    invalid = [name for name in folders if version_number(name) is None]
    return sorted(name for name in [*files, *invalid] if name.isdecimal())


def next_version(directory: str | Path, *, after: int = 0) -> int:
    """Returns the number of the next version: the time in seconds since 1970, or one more than the highest.

    Args:
        directory: local or remote folder of versions.
        after: number that is taken as well, by something that is no version.

    Raises:
        DataError: the highest version has the highest number that a model server takes.
    """
    highest = max([after, *(number for number, _ in numbered_versions(directory))])
    number = max(int(time.time()), highest + 1)
    if number > MAX_VERSION:
        raise DataError(
            f"{directory}: no number is left after version {MAX_VERSION}, as a model server reads 64 bits. "
            "Move that folder away."
        )
    return number


def publish_version(
    source: str | Path,
    directory: str | Path,
    marker: str,
    *,
    added: Mapping[str, bytes] | None = None,
    check: Callable[[Path], None] | None = None,
    ignored: frozenset[str] = frozenset(),
) -> str:
    """Copies a folder's files to `directory/<version>`, unless the newest version equals it.

    The version is the time in seconds since 1970, or one more than the highest version, whichever is
    larger. Several processes may publish at the same time. Leftovers of killed ones are removed first.

    Args:
        source: local or remote folder with the file `marker`.
        directory: local or remote folder of versions, made if missing.
        marker: relative path of the file without which no version is complete.
        added: relative path -> content of further files of the version.
        check: takes a local folder with exactly the version's files before the version becomes
            visible, and raises an error to refuse it; nothing is left behind then.
        ignored: relative paths that are not compared with the newest version.

    Returns:
        Absolute path of the new version, or of the newest one if it equals `source`.

    Raises:
        DataError: the source cannot be read or changed meanwhile, or a remote directory cannot be written.
        OSError: a local directory cannot be written.
    """
    versions = _versions_of(directory)
    versions.sweep(marker)
    added = added or {}
    files = contents(source) | {name: (len(content), crc32c(content)) for name, content in added.items()}
    if marker not in files:  # removed meanwhile, so that others may be missing
        raise DataError(f"{source}: no {marker} any more, so it was not published. Write the folder again.")
    newest = _newest(versions.directory)
    if newest is not None and _is_same(newest, files, ignored):
        return newest
    with versions.staging() as staged:
        versions.copy(source, staged, [name for name in files if name not in added], marker)
        write_many(staged, added.items())
        if contents(staged) != files:
            raise DataError(f"{source}: changed while it was copied, so it was not published. Rerun.")
        if check is not None:
            check(local_copy(staged))
        latest = _newest(versions.directory)
        if latest is not None and latest != newest and _is_same(latest, files, ignored):  # another process was faster
            return latest
        version = versions.publish(staged, marker)
    _LOGGER.info("published as version %s", name_of(version))
    return version


def sweep_versions(directory: str | Path, marker: str) -> None:
    """Removes what killed publications and removals left in a folder of versions, as the next publication does.

    Args:
        directory: local or remote folder of versions.
        marker: see `publish_version`.
    """
    _versions_of(directory).sweep(marker)


def remove_version(version: str, marker: str) -> None:
    """Removes a version so that no server loads a part of it; the next publication completes a killed removal.

    Args:
        version: folder of the version.
        marker: see `publish_version`.

    Raises:
        DataError: something on Cloud Storage cannot be removed.
        OSError: the local version cannot be removed.
    """
    _versions_of(parent(version)).remove(version, marker)


def _versions_of(directory: str | Path) -> "LocalVersions | RemoteVersions":
    return RemoteVersions(str(directory), next_version) if is_remote(directory) else LocalVersions(str(directory))


class LocalVersions:
    """A local folder of versions."""

    def __init__(self, directory: str) -> None:
        self.directory = absolute(directory)

    def sweep(self, marker: str) -> None:
        """Makes the folder, and removes leftovers of killed processes."""
        os.makedirs(self.directory, exist_ok=True)
        remove_leftovers(self.directory, PUSH_STEM)

    @contextlib.contextmanager
    def staging(self) -> Iterator[str]:
        """Yields a new folder that servers ignore, and removes it when the block ends."""
        with temporary_folder(join(self.directory, PUSH_STEM)) as folder:
            yield str(folder)

    def copy(self, source: str | Path, staged: str, names: list[str], marker: str) -> None:
        """Copies files."""
        local = local_copy(source, complete=marker)
        for name in names:
            # `shutil.copytree` would copy the folders' permissions, and a server of another user
            # could not read a folder that was a private temporary one.
            Path(staged, name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(local / name, Path(staged, name))

    def publish(self, staged: str, marker: str) -> str:
        """Makes a staged folder the next version; returns its path."""
        fsync_tree(staged)
        # Versions of this machine's processes appear in ascending order. Without a lock the rename is safe as well.
        with lock_local(Path(os.path.realpath(self.directory)), wait=True):
            version = self._rename_to_next(Path(staged))
        fsync_path(self.directory)
        return str(version)

    def remove(self, version: str, marker: str) -> None:
        """Removes a version by one rename, and deletes it then."""
        folder = Path(version)
        # Another process may be faster.
        with contextlib.suppress(FileNotFoundError), temporary_folder(folder.with_name(PUSH_STEM)) as hidden:
            folder.rename(hidden / folder.name)

    def _rename_to_next(self, staged: Path) -> Path:
        while True:
            number = next_version(self.directory)
            while os.path.lexists(join(self.directory, str(number))):  # no folder
                number = next_version(self.directory, after=number)
            try:
                return staged.rename(Path(self.directory, str(number)))
            except OSError as error:
                # A process on another machine was faster: its folder is listed now.
                if error.errno not in _TAKEN:
                    raise


def _newest(directory: str) -> str | None:
    """Returns the version that a model server tries to serve, complete or not."""
    return numbered[-1][1] if (numbered := numbered_versions(directory)) else None


def _is_same(version: str, files: dict[str, tuple[int, str]], ignored: frozenset[str]) -> bool:
    """Returns whether a version has these files and no others."""
    compared = [
        {name: content for name, content in folder.items() if name not in ignored}
        for folder in (files, contents(version))
    ]
    if compared[0] != compared[1]:
        return False
    _LOGGER.info("version %s already holds these files", name_of(version))
    return True
