"""Publishes a SavedModel as the next version below the folder that a model server watches.

TF Serving loads a folder with an all-digits name as soon as it sees it.  So a version is
copied under a hidden name in the same folder, flushed to the disk and renamed: it appears
whole or not at all.  On Cloud Storage, which cannot rename a folder, it appears object by
object, `saved_model.pb` last; see `detection.storage.gcs.versions`.
"""

import contextlib
import errno
import fcntl
import filecmp
import logging
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from detection.storage.atomic import fsync_path, fsync_tree, remove_leftovers, temporary_folder
from detection.storage.files import is_file
from detection.storage.gcs.versions import publish_version
from detection.storage.paths import is_remote, join, require_supported
from detection.storage.staging import local_copy
from schemas.errors import DataError

_MARKER = "saved_model.pb"
_TEMPORARY_STEM = "push"
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)

_LOGGER = logging.getLogger("cocoflow.pusher")


def publish(saved_model: str | Path, push_directory: str | Path) -> str:
    """Copies a SavedModel folder, whole, to `push_directory/<version>`, unless the newest version equals it.

    Only the newest version is compared, so that an older model can be pushed again.  The
    version is the time in seconds since 1970, or one more than the highest version, whichever
    is larger.  Several pushers may run at the same time.

    Args:
        saved_model: local or remote folder with `saved_model.pb`, copied with all its files.
        push_directory: local or remote folder, created if missing.  Leftovers of killed
            pushes in it are removed (see `temporary_folder` and `gcs.versions.sweep`).

    Returns:
        Absolute path of the new version, or of the newest one if it equals this model.

    Raises:
        DataError: no SavedModel, or `push_directory` cannot be written.
    """
    require_supported(push_directory, "push.directory")
    if not is_file(join(saved_model, _MARKER)):
        raise DataError(
            f"{saved_model}: no {_MARKER} in this folder, so nothing was pushed. Train and export the model again."
        )
    if is_remote(push_directory):
        return publish_version(str(saved_model), str(push_directory), _MARKER)
    directory = Path(push_directory).absolute()
    try:
        return str(_publish(local_copy(saved_model, complete=_MARKER), directory))
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise DataError(
            f"push.directory {push_directory}: cannot push: {error.strerror}{where}. "
            "Choose a writable folder with space for the model with --set push.directory=DIR."
        ) from error


def versions(push_directory: str | Path) -> list[int]:
    """Returns the versions that a model server sees, oldest first."""
    return sorted(int(entry.name) for entry in Path(push_directory).iterdir() if entry.name.isdecimal())


def _publish(source: Path, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    remove_leftovers(directory, _TEMPORARY_STEM)
    newest = _newest(directory)
    if newest is not None and _same_files(source, newest):
        _LOGGER.info("version %s already holds this model", newest.name)
        return newest
    with temporary_folder(directory / _TEMPORARY_STEM) as beside:
        _copy_tree(source, beside)
        fsync_tree(beside)
        with _one_at_a_time(directory):
            destination = _rename_to_next_version(beside, directory)
        fsync_path(directory)
    _LOGGER.info("pushed as version %s", destination.name)
    return destination


def _newest(directory: Path) -> Path | None:
    """Returns the version that a model server serves."""
    numbered = [entry for entry in directory.iterdir() if entry.name.isdecimal()]
    return max(numbered, key=lambda entry: int(entry.name), default=None)


def _same_files(source: Path, version: Path) -> bool:
    names = _file_names(source)
    if names != _file_names(version):
        return False
    return all(filecmp.cmp(source / name, version / name, shallow=False) for name in names)


def _file_names(folder: Path) -> set[Path]:
    return {
        Path(current, name).relative_to(folder)
        for current, _, files in os.walk(folder, followlinks=True)
        for name in files
    }


def _copy_tree(source: Path, destination: Path) -> None:
    # `shutil.copytree` would copy the folders' permissions, and a server of another user
    # could not read a folder that was a private temporary one.
    for current, _, files in os.walk(source, followlinks=True):
        target = destination / Path(current).relative_to(source)
        target.mkdir(exist_ok=True)
        for name in files:
            shutil.copyfile(Path(current, name), target / name)


def _rename_to_next_version(beside: Path, directory: Path) -> Path:
    while True:
        destination = directory / str(max([int(time.time()), *(version + 1 for version in versions(directory))]))
        try:
            return beside.rename(destination)
        except OSError as error:
            # A pusher on another machine was faster: versions() now lists its folder.
            if error.errno not in _TAKEN:
                raise


@contextlib.contextmanager
def _one_at_a_time(directory: Path) -> Iterator[None]:
    """Serialises the pushers of this machine, so that versions appear in ascending order."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        # Some network file systems cannot lock a folder; the rename stays safe.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
