"""The versions below a push directory, local or remote: reads and compares them.

A rollback publishes the files of an earlier version once more, under a new highest number, with a record of that
in `assets.extra`.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from detection.storage.checksums import contents
from detection.storage.files import is_file
from detection.storage.json_files import parse_file
from detection.storage.paths import join
from detection.storage.versions import numbered_versions
from schemas.artifacts import (
    EXTRA_FILES,
    MEDIAPIPE_FILE,
    POINTER_JSON,
    ROLLBACK_JSON,
    SAVED_MODEL_FILE,
    SCORE_THRESHOLDS_JSON,
    WARMUP_REQUESTS,
)

ROLLBACK_RECORD = join(EXTRA_FILES, ROLLBACK_JSON)
ORIGIN_FILE = join(EXTRA_FILES, POINTER_JSON)
WARMUP_FILE = join(EXTRA_FILES, WARMUP_REQUESTS)
PHONE_FILE = join(EXTRA_FILES, MEDIAPIPE_FILE)
# Files without effect on the answers of a version, and those that a push adds to a model.
NO_EFFECT = frozenset({ROLLBACK_RECORD, WARMUP_FILE, ORIGIN_FILE})
ADDED_FILES = NO_EFFECT | {join(EXTRA_FILES, SCORE_THRESHOLDS_JSON), PHONE_FILE}


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
    """Returns the paths of the complete versions by number, oldest first; empty if there is no such folder.

    Raises:
        DataError: the folder cannot be read.
    """
    return {number: path for number, path in numbered_versions(directory) if is_file(join(path, SAVED_MODEL_FILE))}


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
    listed = sorted((name, *content) for name, content in contents(folder).items() if name not in ignored)
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()
