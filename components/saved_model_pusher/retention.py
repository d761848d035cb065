"""Retention: removes versions that are older than the newest ones to keep."""

import logging
from pathlib import Path

from components.saved_model_pusher.pushed_versions import whole_versions
from detection.storage.atomic import temporary_folder
from detection.storage.gcs.versions import remove_version
from detection.storage.paths import is_remote, name_of
from schemas.artifacts import SAVED_MODEL_FILE
from schemas.errors import DataError

_TEMPORARY_STEM = "push"  # as of a push, so that the next one removes what a killed removal leaves

_LOGGER = logging.getLogger("cocoflow.pusher")


def remove_old_versions(push_directory: str | Path, *, keep: int) -> list[str]:
    """Removes all whole versions but the newest, of which the highest is the one that is served.

    A local version disappears by one rename, and is deleted then.  A remote one loses
    `saved_model.pb` first.  Folders without that file are left alone.

    Args:
        push_directory: local or remote folder of versions.
        keep: number of versions that stay, at least 1.

    Returns:
        The paths of the removed versions.

    Raises:
        DataError: a version cannot be removed.
    """
    versions = whole_versions(push_directory)
    old = [versions[number] for number in sorted(versions)[:-keep]]
    for version in old:
        _remove(version)
        _LOGGER.info("removed version %s (push.keep_versions %d)", name_of(version), keep)
    return old


def _remove(version: str) -> None:
    if is_remote(version):
        remove_version(version, SAVED_MODEL_FILE)
        return
    folder = Path(version)
    try:
        with temporary_folder(folder.with_name(_TEMPORARY_STEM)) as hidden:
            folder.rename(hidden / folder.name)
    except FileNotFoundError:  # another pusher was faster
        return
    except OSError as error:
        raise DataError(
            f"{version}: cannot remove this old version: {error.strerror}. Check the permissions of its folder; the "
            "new version is in place."
        ) from error
