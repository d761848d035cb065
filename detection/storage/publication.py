"""Publishes folders as numbered versions: a model server never sees an incomplete version.

A server loads a folder with an all-digits name as soon as it sees it. So a version is copied under a
hidden name in the same folder, checked there, and renamed. On Cloud Storage, which cannot rename a
folder, its objects are copied, the marker last; see `gcs.versions`.
"""

import contextlib
import errno
import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from detection.storage.atomic import write_many
from detection.storage.checksums import contents
from detection.storage.gcs.objects import crc32c
from detection.storage.gcs.versions import RemoteVersions
from detection.storage.local import fsync_path, fsync_tree
from detection.storage.paths import absolute, is_remote, join, name_of, parent
from detection.storage.reading import local_copy
from detection.storage.temporary import remove_leftovers, temporary_folder
from detection.storage.versions import TEMPORARY_STEM, next_version, numbered_versions
from schemas.errors import DataError

_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)

_LOGGER = logging.getLogger("cocoflow.storage")


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
    return (RemoteVersions if is_remote(directory) else LocalVersions)(str(directory))


class LocalVersions:
    """A local folder of versions."""

    def __init__(self, directory: str) -> None:
        self.directory = absolute(directory)

    def sweep(self, marker: str) -> None:
        """Makes the folder, and removes leftovers of killed processes."""
        os.makedirs(self.directory, exist_ok=True)
        remove_leftovers(self.directory, TEMPORARY_STEM)

    @contextlib.contextmanager
    def staging(self) -> Iterator[str]:
        """Yields a new folder that servers ignore, and removes it when the block ends."""
        with temporary_folder(join(self.directory, TEMPORARY_STEM)) as folder:
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
        with self._one_at_a_time():
            version = self._rename_to_next(Path(staged))
        fsync_path(self.directory)
        return str(version)

    def remove(self, version: str, marker: str) -> None:
        """Removes a version by one rename, and deletes it then."""
        folder = Path(version)
        # Another process may be faster.
        with contextlib.suppress(FileNotFoundError), temporary_folder(folder.with_name(TEMPORARY_STEM)) as hidden:
            folder.rename(hidden / folder.name)

    def _rename_to_next(self, staged: Path) -> Path:
        while True:
            number = next_version(self.directory, (version for version, _ in numbered_versions(self.directory)))
            while os.path.lexists(join(self.directory, str(number))):  # no folder
                number = next_version(self.directory, [number])
            try:
                return staged.rename(Path(self.directory, str(number)))
            except OSError as error:
                # A process on another machine was faster: its folder is listed now.
                if error.errno not in _TAKEN:
                    raise

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Serialises the processes of this machine, so that versions appear in ascending order."""
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            # Some network file systems cannot lock a folder; the rename stays safe.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _newest(directory: str) -> str | None:
    """Returns the version that a model server tries to serve, complete or not."""
    return numbered[-1][1] if (numbered := numbered_versions(directory)) else None


def _is_same(version: str, files: dict[str, tuple[int, str]], ignored: frozenset[str]) -> bool:
    """Returns whether a version has these files and no others."""
    one, other = (
        {name: fact for name, fact in each.items() if name not in ignored} for each in (files, contents(version))
    )
    if one != other:
        return False
    _LOGGER.info("version %s already holds these files", name_of(version))
    return True
