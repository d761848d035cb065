"""The files of output artifacts: which ones each type needs, and records that show whether one was changed."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from ml_metadata.proto import metadata_store_pb2 as mlmd
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
    REPORT_HTML,
    TRAINING_JSON,
    VALIDATION,
    split_dir,
)
import hashlib
import os
from collections.abc import Mapping
from typing import Any, NamedTuple
from detection.storage.atomic import write_json

_ANY = "*"  # last part of a path: at least one file in that folder

# Names of TFX, defined here because importing TFX takes half a minute.
SERVING_DIR = "Format-Serving"
_STATISTICS_FILE = "FeatureStats.pb"
_ANOMALIES_FILE = "SchemaDiff.pb"
_SCHEMA_FILE = "schema.pbtxt"
_BLESSED, _NOT_BLESSED = "BLESSED", "NOT_BLESSED"


def first_missing(artifact: mlmd.Artifact) -> Path | None:
    """Returns the first missing file, or empty folder, of those that the artifact's type needs; None: all exist."""
    root = Path(artifact.uri)
    if not root.exists():
        return root
    expected = _EXPECTED.get(artifact.type, lambda _: ())
    return next((path for path in expected(artifact) if not _is_there(path)), None)


def own_files(artifact: mlmd.Artifact) -> list[Path]:
    """Lists the files that the component wrote and that must not change.

    TensorBoard logs of a training, and the files that `follow` adds, are left out.  The files
    of a pushed model include those of the pushed version.
    """
    root = Path(artifact.uri)
    roots = [root]
    if artifact.type == "ModelRun":
        roots = [root / name for name in (LABELS_JSON, TRAINING_JSON, CHECKPOINTS, VALIDATION)]
    if artifact.type == "PushedModel":
        roots += _destination(artifact)
    return [file for start in roots for file in _files_below(start)]


def _examples(artifact: mlmd.Artifact) -> Iterable[Path]:
    return _below(artifact, DATASET_JSON, QUARANTINE_JSONL, *(f"{folder}/{_ANY}" for folder in _split_dirs(artifact)))


def _statistics(artifact: mlmd.Artifact) -> Iterable[Path]:
    return _below(artifact, *(f"{folder}/{_STATISTICS_FILE}" for folder in _split_dirs(artifact)))


def _anomalies(artifact: mlmd.Artifact) -> Iterable[Path]:
    return _below(artifact, *(f"{folder}/{_ANOMALIES_FILE}" for folder in _split_dirs(artifact)))


def _schema(artifact: mlmd.Artifact) -> Iterable[Path]:
    return _below(artifact, _SCHEMA_FILE)


def _model(artifact: mlmd.Artifact) -> Iterable[Path]:
    return (*_saved_model(Path(artifact.uri, SERVING_DIR)), Path(artifact.uri, CONFIG_YAML))


def _model_run(artifact: mlmd.Artifact) -> Iterable[Path]:
    return _below(artifact, LABELS_JSON, f"{CHECKPOINTS}/{_ANY}")


def _evaluation(artifact: mlmd.Artifact) -> Iterable[Path]:
    return _below(artifact, METRICS_JSON, BLESSING_JSON, DETECTIONS_JSON, ANALYSIS_JSON, REPORT_HTML)


def _blessing(artifact: mlmd.Artifact) -> Iterable[Path]:
    return _below(artifact, _BLESSED if artifact.custom_properties["blessed"].int_value == 1 else _NOT_BLESSED)


def _pushed_model(artifact: mlmd.Artifact) -> Iterable[Path]:
    return [
        path
        for destination in _destination(artifact)
        for path in (Path(artifact.uri, POINTER_JSON), *_saved_model(destination))
    ]


_EXPECTED: Mapping[str, Callable[[mlmd.Artifact], Iterable[Path]]] = {
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


def _destination(artifact: mlmd.Artifact) -> list[Path]:
    """Returns the folder of the pushed version; empty if the model was not pushed."""
    properties: Mapping[str, Any] = artifact.custom_properties
    if "pushed" not in properties or not properties["pushed"].int_value:
        return []
    return [Path(properties["pushed_destination"].string_value)]


def _saved_model(folder: Path) -> tuple[Path, Path]:
    return folder / "saved_model.pb", folder / "variables" / "variables.index"


def _split_dirs(artifact: mlmd.Artifact) -> list[str]:
    return [split_dir(name) for name in json.loads(artifact.properties["split_names"].string_value)]


def _below(artifact: mlmd.Artifact, *names: str) -> list[Path]:
    return [Path(artifact.uri, name) for name in names]


def _is_there(path: Path) -> bool:
    if path.name == _ANY:
        return bool(_files_below(path.parent))
    return path.is_file()


def _files_below(start: Path) -> list[Path]:
    """Lists the files, without hidden ones, which file systems and desktops create."""
    if start.is_file():
        return [start]
    return sorted(path for path in start.rglob("*") if path.is_file() and not path.name.startswith("."))


_HAS_CHECKSUMS = "Examples"  # TFRecords hold checksums, which every reader verifies


class FileState(NamedTuple):
    """State of a file when it was recorded.

    size: bytes.
    modified: modification time in nanoseconds since 1970.  A file with the same time counts
        as unchanged; for any other the checksum decides.
    sha256: hexadecimal; None: only the size counts.
    """

    size: int
    modified: int
    sha256: str | None


class FileRecords:
    """Records of the files of a run's artifacts, one JSON file per artifact.

    They lie beside ML Metadata, as a changed artifact there would invalidate the cache of
    every later component.

    Args:
        folder: folder of the records; created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self, artifact: mlmd.Artifact) -> str | None:
        """Returns why an artifact is damaged; None: it is complete, and then it has a record.

        Without a record, as after a kill, only the files that its type needs are checked.

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
                files[path] = _state(path, before, checksum=artifact.type != _HAS_CHECKSUMS)
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
        """Removes the record of an artifact."""
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
    # A new metadata database starts with the same ids.
    return {"uri": artifact.uri, "created": artifact.create_time_since_epoch}


def _state(path: str, before: FileState | None, *, checksum: bool) -> FileState:
    """Returns the current state of a file; reads it only if size and time leave its content open."""
    status = os.stat(path)
    if before and (status.st_size != before.size or status.st_mtime_ns == before.modified):
        return FileState(status.st_size, status.st_mtime_ns, before.sha256)
    return FileState(status.st_size, status.st_mtime_ns, _sha256(path) if checksum else None)


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
