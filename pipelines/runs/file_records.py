"""Records of the files of output artifacts, so that a later run sees a file that was removed, cut off or changed."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ml_metadata.proto import metadata_store_pb2 as mlmd

from detection.storage.atomic import write_json
from pipelines.runs.expected_files import first_missing, own_files

_RECORDS_CARRY_CHECKSUMS = "Examples"  # every reader of a TFRecord verifies them


class FileState(NamedTuple):
    """A file when it was recorded.

    size: bytes.
    modified: modification time in nanoseconds since 1970.  A file that still has it counts as
        unchanged; of any other the checksum decides.
    sha256: hexadecimal; None: only the size counts.
    """

    size: int
    modified: int
    sha256: str | None


class FileRecords:
    """Records of a run folder's artifacts, one JSON file each.

    Beside ML Metadata, not in it: a changed artifact there would make every later
    component's cache miss.

    Args:
        folder: of the records; made if need be.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self, artifact: mlmd.Artifact) -> str | None:
        """Says why an artifact is not whole; None: it is, and then it has a record.

        Without a record, as after a kill, the files count that every artifact of its type has.

        Raises:
            DataError: a record cannot be written.
        """
        missing = first_missing(artifact)
        if missing is not None:
            return f"{missing} is missing"
        recorded = self._read(artifact)
        files: dict[str, FileState] = {}
        for path in map(str, own_files(artifact)) if recorded is None else recorded:
            before = None if recorded is None else recorded[path]
            try:
                files[path] = _state(path, before, checksum=artifact.type != _RECORDS_CARRY_CHECKSUMS)
            except (FileNotFoundError, NotADirectoryError):
                return f"{path} is missing"
            except OSError as error:
                return f"{path} cannot be read: {error.strerror}"
            if before and files[path].size != before.size:
                return f"{path} has {files[path].size} bytes instead of {before.size}"
            if before and files[path].sha256 != before.sha256:
                return f"{path} was changed"
        if files != recorded:
            self._write(artifact, files)
        return None

    def forget(self, artifact: mlmd.Artifact) -> None:
        """Removes the record of an artifact that will not be used again."""
        self._path(artifact).unlink(missing_ok=True)

    def _path(self, artifact: mlmd.Artifact) -> Path:
        return self._folder / f"{artifact.id}.json"

    def _read(self, artifact: mlmd.Artifact) -> dict[str, FileState] | None:
        try:
            record = json.loads(self._path(artifact).read_bytes())
            if record["artifact"] != _identity(artifact):
                return None
            return {path: FileState(*state) for path, state in record["files"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def _write(self, artifact: mlmd.Artifact, files: Mapping[str, FileState]) -> None:
        write_json(self._path(artifact), {"artifact": _identity(artifact), "files": files})


def _identity(artifact: mlmd.Artifact) -> dict[str, Any]:
    # A new metadata database gives the same ids again.
    return {"uri": artifact.uri, "created": artifact.create_time_since_epoch}


def _state(path: str, before: FileState | None, *, checksum: bool) -> FileState:
    """A file's state now.  The checksum is read only if the rest does not tell it."""
    found = os.stat(path)
    if before and (found.st_size != before.size or found.st_mtime_ns == before.modified):
        return FileState(found.st_size, found.st_mtime_ns, before.sha256)
    return FileState(found.st_size, found.st_mtime_ns, _sha256(path) if checksum else None)


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
