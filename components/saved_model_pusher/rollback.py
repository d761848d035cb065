"""Rollback: makes an earlier version the one that a model server picks, in one atomic step.

A server picks the highest number.  So the earlier version's files are published once more under
a new highest number, as a push does: locally by one rename, on Cloud Storage with
`saved_model.pb` last.  That is one step however many versions are between, and removes nothing.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from components.history.pushed_versions import (
    ADDED_FILES,
    NO_EFFECT,
    ROLLBACK_RECORD,
    Rollback,
    digest_of,
    read_rollback,
    whole_versions,
)
from components.saved_model_pusher.publish import publish
from detection.storage.files import is_file
from detection.storage.paths import join, name_of
from detection.storage.versions import numbered_versions, sweep_versions
from schemas.artifacts import SAVED_MODEL_FILE
from schemas.errors import DataError

_WEIGHTS = "variables/variables.index"  # without it TF Serving serves uninitialised weights

_LOGGER = logging.getLogger("cocoflow.pusher")


class RolledBack(NamedTuple):
    """A rollback.

    version: path of the version that is served now.
    files_of: number of the version whose files it has.
    replaced: number of the version that was served before; the same as of `version` if it
        already held these files.
    """

    version: str
    files_of: int
    replaced: int


def roll_back(push_directory: str | Path, *, to: int | None = None) -> RolledBack:
    """Publishes an earlier version once more, as the newest.

    Args:
        push_directory: local or remote folder of versions.
        to: number of the version; None: the newest one before the served model with another model.

    Returns:
        The rollback; without a new version if the served one already has the files of `to`.

    Raises:
        DataError: no such version, no earlier one, or a damaged one; the folder cannot be written.
    """
    versions = whole_versions(push_directory)
    if not versions:
        raise DataError(f"{push_directory}: no version there. Name the folder that holds the numbered versions.")
    # If a killed call has rolled back already, nothing is published.
    sweep_versions(push_directory, SAVED_MODEL_FILE)
    served = max(versions)
    target = _find_earlier(versions, push_directory) if to is None else to
    _require_whole(versions, target, push_directory)
    if _answers_alike(versions[target], versions[served]):
        return RolledBack(versions[served], target, served)
    record = read_rollback(versions[served])
    bad, good = (digest_of(versions[number], ignored=ADDED_FILES) for number in (served, target))
    refused = {*(record.refused_models if record else ()), bad} - {good}
    rollback = Rollback(version=origin(versions, target), replaced=served, refused_models=sorted(refused))
    version = publish(versions[target], push_directory, added={ROLLBACK_RECORD: rollback.as_bytes()}, again=True)
    _LOGGER.info("version %s has the files of version %d, and replaces %d", name_of(version), target, served)
    return RolledBack(version, target, served)


def origin(versions: Mapping[int, str], number: int) -> int:
    """Returns the number under which the files of a version were pushed first."""
    record = read_rollback(versions[number])
    return number if record is None else record.version


def _answers_alike(one: str, other: str) -> bool:
    """Returns whether two versions have the same model and score thresholds."""
    return digest_of(one, ignored=NO_EFFECT) == digest_of(other, ignored=NO_EFFECT)


def _find_earlier(versions: Mapping[int, str], push_directory: str | Path) -> int:
    """Returns the newest version that was there before the served model, and is another model.

    Raises:
        DataError: there is none.
    """
    served = max(versions)
    first = origin(versions, served)
    for number in sorted((number for number in versions if number < first), reverse=True):
        if not _answers_alike(versions[number], versions[served]):
            return number
    raise DataError(
        f"{push_directory}: no version before the served model, version {served}, so there is nothing to roll "
        f"back to. The versions are {_listed(versions)}; choose one with --to."
    )


def _require_whole(versions: Mapping[int, str], number: int, push_directory: str | Path) -> None:
    """Requires a version that a server can load.

    Raises:
        DataError: there is none, or it is damaged.
    """
    folders = dict(numbered_versions(push_directory))
    if number not in folders:
        raise DataError(f"{push_directory}: no version {number}, only {_listed(versions)}. Correct --to.")
    path = folders[number]
    missing = [name for name in (SAVED_MODEL_FILE, _WEIGHTS) if not is_file(join(path, name))]
    if missing:
        raise DataError(f"{path}: damaged, {', '.join(missing)} is missing. Choose another version with --to.")


def _listed(versions: Mapping[int, str]) -> str:
    return ", ".join(map(str, sorted(versions)))
