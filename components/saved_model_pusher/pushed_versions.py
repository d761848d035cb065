"""The versions below a push directory, local or remote: which are whole, what they hold, which one is served.

A model server serves the version of the highest number.  A rollback publishes the files of an
earlier version once more, under a new highest number, with a record of that in `assets.extra`.
"""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from detection.storage.files import is_dir, is_file, list_folder, list_folders, walk_states
from detection.storage.gcs.objects import crc32c
from detection.storage.json_files import read_json
from detection.storage.paths import is_remote, join
from schemas.artifacts import EXTRA_FILES, ROLLBACK_JSON, SCORE_THRESHOLDS_JSON, WARMUP_REQUESTS
from schemas.errors import DataError

MARKER = "saved_model.pb"
ROLLBACK_RECORD = join(EXTRA_FILES, ROLLBACK_JSON)
WARMUP_FILE = join(EXTRA_FILES, WARMUP_REQUESTS)
# Files without effect on the answers of a version, and those that an evaluation adds to a model.
NO_EFFECT = frozenset({ROLLBACK_RECORD, WARMUP_FILE})
ADDED_FILES = NO_EFFECT | {join(EXTRA_FILES, SCORE_THRESHOLDS_JSON)}


class Rollback(NamedTuple):
    """The record in a version that a rollback published.

    version: number of the version whose files these are.
    replaced: number of the version that was served before.
    refused_models: `digest_of` the models that were rolled back, which are not pushed again.
    """

    version: int
    replaced: int
    refused_models: list[str]

    def as_bytes(self) -> bytes:
        """Returns the record's content."""
        return (json.dumps(self._asdict(), indent=2) + "\n").encode()


def whole_versions(directory: str | Path) -> dict[int, str]:
    """Returns the paths of the whole versions by number, oldest first; empty if there is no such folder.

    Raises:
        DataError: the folder cannot be read.
    """
    return {number: path for number, path in _numbered(directory) if is_file(join(path, MARKER))}


def served_version(directory: str | Path) -> str | None:
    """Returns the path of the highest whole version; None: there is none.

    Raises:
        DataError: the folder cannot be read.
    """
    newest_first = reversed(_numbered(directory))
    return next((path for _, path in newest_first if is_file(join(path, MARKER))), None)


def _numbered(directory: str | Path) -> list[tuple[int, str]]:
    """Numbers and paths of the versions, whole or not, oldest first."""
    return sorted((int(name), join(directory, name)) for name in _names(directory) if name.isdecimal())


def _names(directory: str | Path) -> list[str]:
    """The names of the folders in a push directory, links included."""
    if is_remote(directory):
        return list_folders(directory)
    return list_folder(directory) if is_dir(directory) else []


def read_rollback(version: str) -> Rollback | None:
    """Reads the record of a rollback; None: the version was pushed.

    Raises:
        DataError: the record is damaged.
    """
    path = join(version, ROLLBACK_RECORD)
    if not is_file(path):
        return None
    content = read_json(path)
    try:
        refused = [str(digest) for digest in content["refused_models"]]
        return Rollback(int(content["version"]), int(content["replaced"]), refused)
    except (TypeError, KeyError, ValueError):
        raise DataError(f"{path}: no record of a rollback. Restore the file, or remove this version.") from None


def digest_of(folder: str | Path, *, ignored: frozenset[str]) -> str:
    """Returns a digest of the names, sizes and checksums of the files in a folder.

    Args:
        folder: SavedModel, local or remote.
        ignored: relative paths of files that do not count: `NO_EFFECT` makes it the digest of a
            version, `ADDED_FILES` that of the model, before and after its push.
    """
    listed = sorted(
        (name, state.size, state.checksum if is_remote(folder) else crc32c(Path(folder, name)))
        for name, state in walk_states(folder).items()
        if name not in ignored
    )
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()
