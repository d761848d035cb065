"""Publishes a SavedModel as the next version below the folder that a model server watches.

TF Serving loads a folder with an all-digits name as soon as it sees it.  So a version is
copied under a hidden name in the same folder, checked there, flushed to the disk and renamed:
it appears whole or not at all.  On Cloud Storage, which cannot rename a folder, it appears
object by object, `saved_model.pb` last; see `detection.storage.gcs.versions`.
"""

import contextlib
import errno
import fcntl
import filecmp
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from components.saved_model_pusher.pushed_versions import ADDED_FILES, NO_EFFECT, digest_of, read_rollback
from detection.storage.atomic import fsync_path, fsync_tree, remove_leftovers, temporary_folder
from detection.storage.files import is_file, walk_files, walk_folders
from detection.storage.gcs.versions import publish_version
from detection.storage.paths import is_remote, join, require_supported
from detection.storage.staging import local_copy
from detection.storage.versions import MAX_VERSION, foreign_entries, newest_version, next_version, numbered_versions
from schemas.artifacts import SAVED_MODEL_FILE
from schemas.errors import DataError

_TEMPORARY_STEM = "push"
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)

Check = Callable[[Path], None]

_LOGGER = logging.getLogger("cocoflow.pusher")


def publish(
    saved_model: str | Path,
    push_directory: str | Path,
    *,
    added: Mapping[str, bytes] | None = None,
    check: Check | None = None,
    again: bool = False,
) -> str:
    """Copies a SavedModel folder, whole, to `push_directory/<version>`, unless the newest version equals it.

    Only the newest version is compared, without its warm-up requests, so that an older model can
    be pushed again, unless it was rolled back.  The version is the time in seconds since 1970, or
    one more than the highest version, whichever is larger.  Several pushers may run at the same
    time.

    Args:
        saved_model: local or remote folder with `saved_model.pb`, copied with all its files.
        push_directory: local or remote folder, created if missing.  Leftovers of killed
            pushes in it are removed (see `temporary_folder` and `gcs.versions.sweep`).
        added: relative path -> content of further files of the version.
        check: takes a local folder with exactly the version's files before the version becomes
            visible, and raises an error to refuse it; nothing is left behind then.
        again: for a rollback: pushes whatever the newest version is.

    Returns:
        Absolute path of the new version, or of the newest one if it equals this model.

    Raises:
        DataError: no SavedModel, one that was rolled back, or `push_directory` cannot be written.
    """
    require_supported(push_directory, "push.directory")
    if not is_file(join(saved_model, SAVED_MODEL_FILE)):
        raise DataError(
            f"{saved_model}: no {SAVED_MODEL_FILE} in this folder, so nothing was pushed. Train and export the model "
            "again."
        )
    for name in foreign_entries(push_directory):
        _LOGGER.warning(
            "%s: no version: not a folder, or a number above %d; left out", join(push_directory, name), MAX_VERSION
        )
    added = added or {}
    ignored = frozenset() if again else NO_EFFECT
    if not again:
        _require_not_rolled_back(saved_model, push_directory)
    if is_remote(push_directory):
        return publish_version(
            str(saved_model), str(push_directory), SAVED_MODEL_FILE, added=added, check=check, ignored=ignored
        )
    directory = Path(push_directory).absolute()
    try:
        source = local_copy(saved_model, complete=SAVED_MODEL_FILE)
        return str(_publish(source, directory, added=added, check=check, ignored=ignored))
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        advice = (
            "Free space on its disk, or make it writable, and roll back again."
            if again
            else "Choose a writable folder with space for the model with --set push.directory=DIR."
        )
        raise DataError(
            f"push.directory {push_directory}: cannot push: {error.strerror or error}{where}. {advice}"
        ) from error


def _require_not_rolled_back(saved_model: str | Path, push_directory: str | Path) -> None:
    """Requires a model other than those that the served version replaced by a rollback.

    Raises:
        DataError: it is one of them.
    """
    served = newest_version(push_directory, SAVED_MODEL_FILE)
    rollback = None if served is None else read_rollback(served)
    if rollback is not None and digest_of(saved_model, ignored=ADDED_FILES) in rollback.refused_models:
        raise DataError(
            f"{saved_model}: not pushed: this model was served from {push_directory}, and rolled back to version "
            f"{rollback.version}. Push another model, or publish a kept version again with the command rollback --to."
        )


def _publish(
    source: Path, directory: Path, *, added: Mapping[str, bytes], check: Check | None, ignored: frozenset[str]
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    remove_leftovers(directory, _TEMPORARY_STEM)
    newest = _newest(directory)
    if newest is not None and _same_files(source, added, newest, ignored):
        return _there_already(newest)
    with temporary_folder(directory / _TEMPORARY_STEM) as beside:
        _copy_tree(source, beside, added)
        if check is not None:
            check(beside)
        fsync_tree(beside)
        with _one_at_a_time(directory):
            latest = _newest(directory)
            # Another pusher may have been faster.
            if latest is not None and latest != newest and _same_files(beside, {}, latest, ignored):
                return _there_already(latest)
            destination = _rename_to_next_version(beside, directory)
        fsync_path(directory)
    _LOGGER.info("pushed as version %s", destination.name)
    return destination


def _there_already(version: Path) -> Path:
    _LOGGER.info("version %s already holds this model", version.name)
    return version


def _newest(directory: Path) -> Path | None:
    """Returns the version that a model server tries to serve, whole or not."""
    return Path(numbered[-1][1]) if (numbered := numbered_versions(directory)) else None


def _same_files(source: Path, added: Mapping[str, bytes], version: Path, ignored: frozenset[str]) -> bool:
    """Returns whether a version has the files of `source` with those that are added, and no others."""
    left_out = {Path(name) for name in ignored}
    contents = {Path(name): content for name, content in added.items()}
    names = (_file_names(source) | contents.keys()) - left_out
    if names != _file_names(version) - left_out:
        return False
    return all(
        is_file(version / name) and (version / name).read_bytes() == contents[name]
        if name in contents
        else filecmp.cmp(source / name, version / name, shallow=False)
        for name in names
    )


def _file_names(folder: Path) -> set[Path]:
    return set(map(Path, walk_files(folder)))


def _copy_tree(source: Path, destination: Path, added: Mapping[str, bytes]) -> None:
    # `shutil.copytree` would copy the folders' permissions, and a server of another user
    # could not read a folder that was a private temporary one.
    for current, files in walk_folders(source):
        target = destination / Path(current).relative_to(source)
        target.mkdir(exist_ok=True)
        for name in files:
            shutil.copyfile(Path(current, name), target / name)
    for name, content in added.items():
        (destination / name).parent.mkdir(parents=True, exist_ok=True)
        (destination / name).write_bytes(content)
    if not is_file(source / SAVED_MODEL_FILE):  # removed meanwhile, so that not all may have been copied
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source / SAVED_MODEL_FILE))


def _rename_to_next_version(beside: Path, directory: Path) -> Path:
    while True:
        number = next_version(directory, (version for version, _ in numbered_versions(directory)))
        while os.path.lexists(directory / str(number)):  # no folder
            number = next_version(directory, [number])
        try:
            return beside.rename(directory / str(number))
        except OSError as error:
            # A pusher on another machine was faster: its folder is listed now.
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
