"""The files that an output artifact of each type must have, for any later component or command to use it."""

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

_ANY = "*"  # as the last part of a path: at least one file there

# TFX's names, which stand here because TFX takes half a minute to import.
SERVING_DIR = "Format-Serving"
_STATISTICS_FILE = "FeatureStats.pb"
_ANOMALIES_FILE = "SchemaDiff.pb"
_SCHEMA_FILE = "schema.pbtxt"
_BLESSED, _NOT_BLESSED = "BLESSED", "NOT_BLESSED"


def first_missing(artifact: mlmd.Artifact) -> Path | None:
    """The first expected file that is missing, or a folder that must not be empty; None: all are there."""
    root = Path(artifact.uri)
    if not root.exists():
        return root
    expected = _EXPECTED.get(artifact.type, lambda _: ())
    return next((path for path in expected(artifact) if not _is_there(path)), None)


def own_files(artifact: mlmd.Artifact) -> list[Path]:
    """Every file that the component wrote and that nobody is to change.

    TensorBoard logs of a training, and what `follow` adds to it, are left out.  For a pushed
    model, the version's folder counts as well.
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
    """The pushed version's folder; empty: the model was not pushed."""
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
    """The files, without hidden ones, which file systems and desktops leave."""
    if start.is_file():
        return [start]
    return sorted(path for path in start.rglob("*") if path.is_file() and not path.name.startswith("."))
