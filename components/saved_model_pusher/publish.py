"""Publishes a SavedModel as the next version below the folder that a model server watches."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from components.history.pushed_versions import ADDED_FILES, NO_EFFECT, digest_of, read_rollback
from detection.storage.files import is_file
from detection.storage.paths import join, require_supported
from detection.storage.versions import MAX_VERSION, foreign_entries, newest_version, publish_version
from schemas.artifacts import SAVED_MODEL_FILE
from schemas.errors import DataError

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
    """Copies a complete SavedModel folder to `push_directory/<version>`, unless the newest version equals it.

    Only the newest version is compared, without its warm-up requests, so that an older model can
    be pushed again, unless it was rolled back.  The version is the time in seconds since 1970, or
    one more than the highest version, whichever is larger.  Several pushers may run at the same
    time.

    Args:
        saved_model: local or remote folder with `saved_model.pb`, copied with all its files.
        push_directory: local or remote folder, created if missing.  Leftovers of killed
            pushes in it are removed.
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
            "%s: no version: not a folder, or a number above %d; ignored", join(push_directory, name), MAX_VERSION
        )
    ignored = frozenset() if again else NO_EFFECT
    if not again:
        _require_not_rolled_back(saved_model, push_directory)
    try:
        return publish_version(saved_model, push_directory, SAVED_MODEL_FILE, added=added, check=check, ignored=ignored)
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
