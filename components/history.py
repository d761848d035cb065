"""Records of earlier runs below `run.root`, for pipelines whose components cannot reach ML Metadata.

A component that makes `Examples`, a `Model` or a verdict writes a small JSON file last, when its
outputs are complete.  The components that resolve the baseline, the base model and the window of
spans read them, and pass on what they chose as an artifact that lists other artifacts.
"""

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tfx import types
from tfx.components.example_gen import utils
from tfx.types import artifact_utils, standard_artifacts

from detection.storage.atomic import write_json
from detection.storage.files import is_dir, list_folder
from detection.storage.json_files import read_json
from detection.storage.paths import join
from schemas.artifacts import RESOLVED_JSON

HISTORY_KEY = "history"  # execution parameter: folder of the records; absent: none are written

# Custom properties.
IDENTITY_PROPERTY = "identity"  # of `Examples`: equal if made of the same data in the same way
_RESOLVED_PROPERTY = "resolved"  # 1: the artifact's folder has nothing but RESOLVED_JSON

Kind = Literal["examples", "models", "blessings"]


class ExamplesRecord(NamedTuple):
    """`Examples` of a run.

    source: data set that the span belongs to.
    version: version of the span; None: the data has no versions.
    identity: see `IDENTITY_PROPERTY`.
    """

    uri: str
    source: str
    span: int
    version: int | None
    splits: list[str]
    identity: str


class ModelRecord(NamedTuple):
    """A trained `Model`.

    training: identity of its training, without the base model.
    base_model: URI of the model that its weights started from; None: no model.
    """

    uri: str
    training: str
    base_model: str | None


class BlessingRecord(NamedTuple):
    """The verdict on a `Model`."""

    model: str
    blessed: bool


def record_examples(history: str | None, examples: types.Artifact, *, source: str) -> None:
    """Records `Examples` with their custom properties; without a history it does nothing.

    Raises:
        DataError: the record cannot be written.
    """
    _write(history, "examples", examples_record(examples, source=source))


def record_model(history: str | None, *, uri: str, training: str, base_model: str | None) -> None:
    """Records a trained model; without a history it does nothing.

    Raises:
        DataError: the record cannot be written.
    """
    _write(history, "models", ModelRecord(uri, training, base_model))


def record_verdict(history: str | None, *, model: str, blessed: bool) -> None:
    """Records whether a model was blessed; without a history it does nothing.

    Raises:
        DataError: the record cannot be written.
    """
    _write(history, "blessings", BlessingRecord(model, blessed))


def read_examples(history: str) -> list[ExamplesRecord]:
    """Reads the records of `Examples`, oldest first, the last one of each URI."""
    return list(
        {record.uri: record for record in (ExamplesRecord(**one) for one in _read(history, "examples"))}.values()
    )


def read_models(history: str) -> list[ModelRecord]:
    """Reads the records of models, oldest first, the last one of each URI."""
    return list({record.uri: record for record in (ModelRecord(**one) for one in _read(history, "models"))}.values())


def read_blessed(history: str) -> set[str]:
    """Returns the URIs of the models that were blessed."""
    return {record.model for record in (BlessingRecord(**one) for one in _read(history, "blessings")) if record.blessed}


def examples_record(examples: types.Artifact, *, source: str) -> ExamplesRecord:
    """Describes an `Examples` artifact."""
    has_version = examples.has_custom_property(utils.VERSION_PROPERTY_NAME)
    return ExamplesRecord(
        uri=examples.uri,
        source=source,
        span=int(examples.get_int_custom_property(utils.SPAN_PROPERTY_NAME)),
        version=int(examples.get_int_custom_property(utils.VERSION_PROPERTY_NAME)) if has_version else None,
        splits=list(artifact_utils.decode_split_names(examples.split_names)),
        identity=examples.get_string_custom_property(IDENTITY_PROPERTY),
    )


def resolve_to(output: types.Artifact, entries: Sequence[Mapping[str, Any]]) -> None:
    """Makes an output artifact stand for artifacts of earlier components.

    Args:
        output: artifact of a resolving component.
        entries: fields of `ExamplesRecord` for `Examples`, "uri" for a `Model`; may be empty.

    Raises:
        DataError: the list cannot be written.
    """
    write_json(join(output.uri, RESOLVED_JSON), {"artifacts": [dict(entry) for entry in entries]})
    output.set_int_custom_property(_RESOLVED_PROPERTY, 1)


def resolved(artifacts: Iterable[types.Artifact]) -> list[types.Artifact]:
    """Replaces artifacts that stand for others by these.

    Raises:
        DataError: the list cannot be read.
    """
    actual: list[types.Artifact] = []
    for artifact in artifacts:
        if not artifact.get_int_custom_property(_RESOLVED_PROPERTY):
            actual.append(artifact)
            continue
        entries = read_json(join(artifact.uri, RESOLVED_JSON))["artifacts"]
        actual += [_artifact(type(artifact), entry) for entry in entries]
    return actual


def _artifact(kind: type[types.Artifact], entry: Mapping[str, Any]) -> types.Artifact:
    artifact = kind()
    artifact.uri = entry["uri"]
    if kind is standard_artifacts.Examples:
        artifact.split_names = artifact_utils.encode_split_names(entry["splits"])
        artifact.set_int_custom_property(utils.SPAN_PROPERTY_NAME, entry["span"])
        artifact.set_string_custom_property(IDENTITY_PROPERTY, entry["identity"])
    return artifact


def _write(history: str | None, kind: Kind, record: ExamplesRecord | ModelRecord | BlessingRecord) -> None:
    if history:
        # In the order of time; two of the same nanosecond do not replace each other.
        name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.json"
        write_json(join(history, kind, name), record._asdict())


def _read(history: str, kind: Kind) -> list[dict[str, Any]]:
    folder = join(history, kind)
    names = list_folder(folder) if is_dir(folder) else []
    return [read_json(join(folder, name)) for name in names if name.endswith(".json") and not name.startswith(".")]
