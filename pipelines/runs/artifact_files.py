"""The files of output artifacts: which ones each type needs, and records that show whether one was changed."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ml_metadata.proto import metadata_store_pb2 as mlmd

from detection.storage import files
from detection.storage.atomic import COMPLETE_MARKER, write_json
from detection.storage.checksums import sha256
from detection.storage.json_files import read_json
from detection.storage.paths import is_remote, join, name_of, parent
from schemas.artifacts import (
    ANALYSIS_JSON,
    BLESSING_JSON,
    CHECKPOINTS,
    CONFIG_YAML,
    DATASET_JSON,
    DETECTIONS_JSON,
    LABELS_JSON,
    METRICS_JSON,
    POINTER_JSON,
    QUARANTINE_JSONL,
    REFUSED_JSON,
    REPORT_HTML,
    SAVED_MODEL_FILE,
    TRAINING_JSON,
    VALIDATION,
    split_dir,
)
from schemas.errors import DataError

_ANY = "*"  # last part of a path: at least one file in that folder

# Names of TFX, defined here because importing TFX takes half a minute.
SERVING_DIR = "Format-Serving"
_STATISTICS_FILE = "FeatureStats.pb"
_ANOMALIES_FILE = "SchemaDiff.pb"
_SCHEMA_FILE = "schema.pbtxt"
_BLESSED, _NOT_BLESSED = "BLESSED", "NOT_BLESSED"


class PresentFiles:
    """The files of an artifact that are there; remote folders are listed once.

    Args:
        artifact: of which the folder, and that of the pushed version, are looked at.
    """

    def __init__(self, artifact: mlmd.Artifact) -> None:
        roots = [root for root in (artifact.uri, *_destination(artifact)) if is_remote(root)]
        self._remote = {
            join(root, name): state for root in dict.fromkeys(roots) for name, state in files.walk_states(root).items()
        }

    def has_folder(self, path: str) -> bool:
        """Returns whether there is a local file or folder, or a file below a remote folder."""
        return bool(self.below(path)) if is_remote(path) else os.path.exists(path)

    def has_file(self, path: str) -> bool:
        """Returns whether there is a file."""
        return path in self._remote if is_remote(path) else os.path.isfile(path)

    def below(self, path: str) -> list[str]:
        """Lists the files, without hidden ones, which file systems and desktops create; `path` itself if it is one."""
        if self.has_file(path):
            return [path]
        if is_remote(path):
            names = [other for other in self._remote if other.startswith(f"{path}/")]
            return sorted(name for name in names if not _is_hidden(name))
        return sorted(str(found) for found in Path(path).rglob("*") if found.is_file() and not _is_hidden(found))

    def state(self, path: str, before: "FileState | None", *, checksum: bool) -> "FileState":
        """Returns the current state of a file; reads it only if size and time leave its content open.

        Raises:
            OSError: the file is not there, or cannot be read.
        """
        if is_remote(path):
            stored = self._remote.get(path) or files.state(path)
            if stored is None:
                raise FileNotFoundError(path)
            return FileState(stored.size, stored.version, stored.checksum if checksum else None)
        return _local_state(path, before, checksum=checksum)


def _is_hidden(path: str | Path) -> bool:
    name = name_of(path)
    return name.startswith(".") and name != COMPLETE_MARKER


def first_missing(artifact: mlmd.Artifact, present: PresentFiles | None = None) -> str | None:
    """Returns the first missing file, or empty folder, of those that the artifact's type needs; None: all exist."""
    present = present or PresentFiles(artifact)
    if not present.has_folder(artifact.uri):
        return str(artifact.uri)
    expected = _EXPECTED.get(artifact.type, lambda _: ())
    return next((path for path in expected(artifact) if not _is_there(path, present)), None)


def own_files(artifact: mlmd.Artifact, present: PresentFiles) -> list[str]:
    """Lists the files that the component wrote and that must not change.

    TensorBoard logs of a training, the files that `follow` adds, and the pusher's record of a
    refusal are left out.  The files of a pushed model include those of the pushed version.
    """
    roots = [artifact.uri]
    if artifact.type == "ModelRun":
        roots = list(_below(artifact, LABELS_JSON, TRAINING_JSON, CHECKPOINTS, VALIDATION))
    if artifact.type == "PushedModel":
        roots += _destination(artifact)
    changing = join(artifact.uri, REFUSED_JSON)
    return [file for start in roots for file in present.below(start) if file != changing]


def _examples(artifact: mlmd.Artifact) -> Iterable[str]:
    return _below(artifact, DATASET_JSON, QUARANTINE_JSONL, *(f"{folder}/{_ANY}" for folder in _split_dirs(artifact)))


def _statistics(artifact: mlmd.Artifact) -> Iterable[str]:
    return _below(artifact, *(f"{folder}/{_STATISTICS_FILE}" for folder in _split_dirs(artifact)))


def _anomalies(artifact: mlmd.Artifact) -> Iterable[str]:
    return _below(artifact, *(f"{folder}/{_ANOMALIES_FILE}" for folder in _split_dirs(artifact)))


def _schema(artifact: mlmd.Artifact) -> Iterable[str]:
    return _below(artifact, _SCHEMA_FILE)


def _model(artifact: mlmd.Artifact) -> Iterable[str]:
    return (*_saved_model(join(artifact.uri, SERVING_DIR)), join(artifact.uri, CONFIG_YAML))


def _model_run(artifact: mlmd.Artifact) -> Iterable[str]:
    return _below(artifact, LABELS_JSON, f"{CHECKPOINTS}/{_ANY}")


def _evaluation(artifact: mlmd.Artifact) -> Iterable[str]:
    return _below(artifact, METRICS_JSON, BLESSING_JSON, DETECTIONS_JSON, ANALYSIS_JSON, REPORT_HTML)


def _blessing(artifact: mlmd.Artifact) -> Iterable[str]:
    return _below(artifact, _BLESSED if artifact.custom_properties["blessed"].int_value == 1 else _NOT_BLESSED)


def _pushed_model(artifact: mlmd.Artifact) -> Iterable[str]:
    return [
        path
        for destination in _destination(artifact)
        for path in (join(artifact.uri, POINTER_JSON), *_saved_model(destination))
    ]


_EXPECTED: Mapping[str, Callable[[mlmd.Artifact], Iterable[str]]] = {
    "Examples": _examples,
    "ExampleStatistics": _statistics,
    "ExampleAnomalies": _anomalies,
    "Schema": _schema,
    "Model": _model,
    "ModelRun": _model_run,
    "ModelEvaluation": _evaluation,
    "ModelBlessing": _blessing,
    "PushedModel": _pushed_model,
}


def pushed_path(artifact: mlmd.Artifact) -> str | None:
    """Returns the folder of the pushed version; None: an artifact of another type, or the model was not pushed."""
    properties: Mapping[str, Any] = artifact.custom_properties
    if "pushed" not in properties or not properties["pushed"].int_value:
        return None
    return str(properties["pushed_destination"].string_value)


def _destination(artifact: mlmd.Artifact) -> list[str]:
    path = pushed_path(artifact)
    return [] if path is None else [path]


def _saved_model(folder: str) -> tuple[str, str]:
    return join(folder, SAVED_MODEL_FILE), join(folder, "variables", "variables.index")


def _split_dirs(artifact: mlmd.Artifact) -> list[str]:
    return [split_dir(name) for name in json.loads(artifact.properties["split_names"].string_value)]


def _below(artifact: mlmd.Artifact, *names: str) -> list[str]:
    return [join(artifact.uri, name) for name in names]


def _is_there(path: str, present: PresentFiles) -> bool:
    if name_of(path) == _ANY:
        return bool(present.below(parent(path)))
    return present.has_file(path)


_HAS_CHECKSUMS = "Examples"  # TFRecords hold checksums, which every reader verifies


class FileState(NamedTuple):
    """State of a file when it was recorded.

    size: bytes.
    modified: local: modification time in nanoseconds since 1970; remote: generation.  A file
        with the same one counts as unchanged; for any other the checksum decides.
    checksum: local: SHA-256, hexadecimal; remote: what the service tells, CRC32C in base64;
        None: only the size counts.
    """

    size: int
    modified: int
    checksum: str | None


class FileRecords:
    """Records of the files of a run's artifacts, one JSON file per artifact.

    They lie beside ML Metadata, as a changed artifact there would invalidate the cache of
    every later component.

    Args:
        folder: folder of the records; created if missing.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = folder

    def check(self, artifact: mlmd.Artifact) -> str | None:
        """Returns why an artifact is damaged; None: it is complete, and then it has a record.

        Without a record, as after a kill, only the files that its type needs are checked.

        Raises:
            DataError: a record cannot be written.
        """
        present = PresentFiles(artifact)
        missing = first_missing(artifact, present)
        if missing is not None:
            return f"{missing} is missing"
        recorded = self._read(artifact)
        states: dict[str, FileState] = {}
        for path in own_files(artifact, present) if recorded is None else recorded:
            before = None if recorded is None else recorded[path]
            try:
                states[path] = present.state(path, before, checksum=artifact.type != _HAS_CHECKSUMS)
            except (FileNotFoundError, NotADirectoryError):
                return f"{path} is missing"
            except OSError as error:
                return f"{path} cannot be read: {error.strerror}"
            if before and states[path].size != before.size:
                return f"{path} has {states[path].size} bytes instead of {before.size}"
            if before and states[path].checksum != before.checksum:
                return f"{path} was changed"
        if states != recorded:
            self._write(artifact, states)
        return None

    def forget(self, artifact: mlmd.Artifact) -> None:
        """Removes the record of an artifact."""
        files.remove_file(self._path(artifact))

    def _path(self, artifact: mlmd.Artifact) -> str:
        return join(self._folder, f"{artifact.id}.json")

    def _read(self, artifact: mlmd.Artifact) -> dict[str, FileState] | None:
        if files.state(self._path(artifact)) is None:
            return None
        try:
            record = read_json(self._path(artifact))
            if record["artifact"] != _identity(artifact):
                return None
            return {path: FileState(*state) for path, state in record["files"].items()}
        except (DataError, TypeError, KeyError, AttributeError):
            return None

    def _write(self, artifact: mlmd.Artifact, states: Mapping[str, FileState]) -> None:
        write_json(self._path(artifact), {"artifact": _identity(artifact), "files": states})


def _identity(artifact: mlmd.Artifact) -> dict[str, Any]:
    # A new metadata database starts with the same ids.
    return {"uri": artifact.uri, "created": artifact.create_time_since_epoch}


def _local_state(path: str, before: FileState | None, *, checksum: bool) -> FileState:
    status = os.stat(path)
    if before and (status.st_size != before.size or status.st_mtime_ns == before.modified):
        return FileState(status.st_size, status.st_mtime_ns, before.checksum)
    return FileState(status.st_size, status.st_mtime_ns, sha256(path) if checksum else None)
