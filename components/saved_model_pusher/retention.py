"""Retention: removes versions that are older than the newest ones to keep."""

import logging
from pathlib import Path

from components.saved_model_pusher.pushed_versions import whole_versions
from detection.storage.paths import name_of
from detection.storage.publication import remove_version
from schemas.artifacts import SAVED_MODEL_FILE
from schemas.errors import DataError

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
        try:
            remove_version(version, SAVED_MODEL_FILE)
        except OSError as error:
            raise DataError(
                f"{version}: cannot remove this old version: {error.strerror}. Check the permissions of its folder; "
                "the new version is in place."
            ) from error
        _LOGGER.info("removed version %s (push.keep_versions %d)", name_of(version), keep)
    return old
