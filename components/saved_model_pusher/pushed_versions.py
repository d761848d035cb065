"""The versions below a push directory, local or remote: which are whole, what they hold, which one is served.

A model server serves the version of the highest number.  A rollback publishes the files of an
earlier version once more, under a new highest number, with a record of that in `assets.extra`.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from detection.storage.files import is_dir, is_file, list_folder, list_folders, walk_states
from detection.storage.gcs.objects import crc32c
from detection.storage.json_files import parse_file
from detection.storage.paths import is_remote, join, version_number
from schemas.artifacts import EXTRA_FILES, ROLLBACK_JSON, SCORE_THRESHOLDS_JSON, WARMUP_REQUESTS

MARKER = "saved_model.pb"
ROLLBACK_RECORD = join(EXTRA_FILES, ROLLBACK_JSON)
WARMUP_FILE = join(EXTRA_FILES, WARMUP_REQUESTS)
# Files without effect on the answers of a version, and those that an evaluation adds to a model.
NO_EFFECT = frozenset({ROLLBACK_RECORD, WARMUP_FILE})
ADDED_FILES = NO_EFFECT | {join(EXTRA_FILES, SCORE_THRESHOLDS_JSON)}


@dataclass(frozen=True)
class Rollback:
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
        return (json.dumps(asdict(self), indent=2) + "\n").encode()


_ROLLBACK = TypeAdapter(Rollback)


def whole_versions(directory: str | Path) -> dict[int, str]:
    """Returns the paths of the whole versions by number, oldest first; empty if there is no such folder.

    Raises:
        DataError: the folder cannot be read.
    """
    return {number: path for number, path in numbered_versions(directory) if is_file(join(path, MARKER))}


def served_version(directory: str | Path) -> str | None:
    """Returns the path of the highest whole version; None: there is none.

    Raises:
        DataError: the folder cannot be read.
    """
    newest_first = reversed(numbered_versions(directory))
    return next((path for _, path in newest_first if is_file(join(path, MARKER))), None)


def numbered_versions(directory: str | Path) -> list[tuple[int, str]]:
    """Returns numbers and paths of the versions, whole or not, oldest first.

    Raises:
        DataError: the folder cannot be read.
    """
    numbers = ((version_number(name), join(directory, name)) for name in _names(directory))
    return sorted((number, path) for number, path in numbers if number is not None and _is_folder(path))


def foreign_entries(directory: str | Path) -> list[str]:
    """Returns the names with digits only that are no versions: of files, or beyond the numbers of a model server."""
    names = (name for name in _names(directory) if name.isdecimal())
    return [name for name in names if version_number(name) is None or not _is_folder(join(directory, name))]


def _names(directory: str | Path) -> list[str]:
    """The names in a push directory, of a remote one those of folders."""
    if is_remote(directory):
        return list_folders(directory)
    return list_folder(directory) if is_dir(directory) else []


def _is_folder(path: str) -> bool:
    return is_remote(path) or is_dir(path)  # only folders are listed of a remote one


def read_rollback(version: str) -> Rollback | None:
    """Reads the record of a rollback; None: the version was pushed.

    Raises:
        DataError: the record is damaged.
    """
    path = join(version, ROLLBACK_RECORD)
    if not is_file(path):
        return None
    remedy = "Restore the file, or remove this version."
    return parse_file(_ROLLBACK, path, what="the record of a rollback", remedy=remedy)


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
