"""Records of what the runs below a `run.root` made, in files that need no ML Metadata.

In a compiled pipeline, a component that makes `Examples`, a `Model`, a verdict or a push writes a
small JSON file last, when its outputs are complete.  After a run of this process, the same records
are written from its metadata (see `pipelines.runs.component_records`).  The components that resolve
the baseline, the base model and the window of spans of a compiled pipeline read them, and pass on
what they chose as an artifact that lists other artifacts; `lineage` reads all of them.  TFX, which
takes half a minute to import, is loaded for artifacts only.

That a push was refused is recorded in the folder of the model, by the pusher of every runner.
"""

import hashlib
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter

from detection.storage.atomic import write_json, write_text
from detection.storage.files import is_dir, is_file, list_folder, remove_file
from detection.storage.json_files import parse_file, read_json
from detection.storage.paths import join
from schemas.artifacts import REFUSED_JSON, RESOLVED_JSON

if TYPE_CHECKING:
    from tfx import types

HISTORY_KEY = "history"  # execution parameter: folder of the records; absent: none are written

# Custom properties.
IDENTITY_PROPERTY = "identity"  # of `Examples`: equal if made of the same data in the same way
SOURCE_PROPERTY = "data_source"  # of `Examples`: the paths as the user wrote them
TRAINING_PROPERTY = "training"  # of a `Model`: identity of the training, without the base model
BASE_MODEL_PROPERTY = "base_model_id"  # of a `Model`: id of the `Model` that its weights started from; 0: none
REMOVED_PROPERTY = "removed_versions"  # of a `PushedModel`: JSON list of the versions that `keep_versions` removed then
_RESOLVED_PROPERTY = "resolved"  # 1: the artifact's folder has nothing but RESOLVED_JSON

# Of every file-based ExampleGen: `tfx.components.example_gen.utils` defines them.
SPAN_PROPERTY, VERSION_PROPERTY = "span", "version"

_CONFIGS = "configs"  # folder of configurations, each named after its content
_DIGEST_LENGTH = 16
READERS = 16  # records read at a time: Cloud Storage answers each after some time

Kind = Literal["examples", "models", "blessings", "pushes"]


@dataclass(frozen=True)
class ExamplesRecord:
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


@dataclass(frozen=True)
class ModelRecord:
    """A trained `Model`.

    training: identity of its training, without the base model.
    base_model: URI of the model that its weights started from; None: no model.
    examples: URIs of the `Examples` that it was trained on, the newest span first; none in old records.
    config: digest of its configuration, see `store_config`; None in old records.
    """

    uri: str
    training: str
    base_model: str | None
    examples: Sequence[str] = ()
    config: Annotated[str, Field(pattern=f"^[0-9a-f]{{{_DIGEST_LENGTH}}}$")] | None = None


@dataclass(frozen=True)
class BlessingRecord:
    """The verdict on a `Model`.

    evaluation: URI of the `ModelEvaluation`; None in old records.
    """

    model: str
    blessed: bool
    evaluation: str | None = None


@dataclass(frozen=True)
class RecordedVerdict:
    """A blessing decision as the evaluator writes it.

    baseline: metrics of the last blessed model, see `schemas.metrics.metrics_by_iou_type`; None: no such model.
    checkpoint: images that chose the checkpoint, and images that judged it; "": an earlier version evaluated it.
    """

    blessed: bool
    reasons: list[str]
    baseline: Any = None
    checkpoint: str = ""


@dataclass(frozen=True)
class PushRecord:
    """A pushed `Model`.

    destination: folder of the version.
    version: name of this folder.
    model: URI of the model.
    time: of the push, in ISO format with the time zone.
    """

    destination: str
    version: str
    model: str
    time: str


Record = ExamplesRecord | ModelRecord | BlessingRecord | PushRecord
Structure = TypeVar("Structure", ExamplesRecord, ModelRecord, BlessingRecord, PushRecord)


def record_examples(history: str | None, examples: "types.Artifact", *, source: str) -> None:
    """Records `Examples` with their custom properties; without a history it does nothing.

    Raises:
        DataError: the record cannot be written.
    """
    _write(history, "examples", examples_record(examples, source=source))


def record_model(
    history: str | None,
    *,
    uri: str,
    training: str,
    base_model: str | None,
    examples: Sequence[str] = (),
    config_yaml: str | None = None,
) -> None:
    """Records a trained model and its configuration; without a history it does nothing.

    Raises:
        DataError: the record cannot be written.
    """
    if history:
        config = None if config_yaml is None else store_config(history, config_yaml)
        _write(history, "models", ModelRecord(uri, training, base_model, list(examples), config))


def record_verdict(history: str | None, *, model: str, blessed: bool, evaluation: str | None = None) -> None:
    """Records whether a model was blessed; without a history it does nothing.

    Raises:
        DataError: the record cannot be written.
    """
    _write(history, "blessings", BlessingRecord(model, blessed, evaluation))


def record_push(history: str | None, *, destination: str, version: str, model: str) -> None:
    """Records a push; without a history it does nothing.

    Raises:
        DataError: the record cannot be written.
    """
    _write(history, "pushes", PushRecord(destination, version, model, _now()))


def record_refusal(model: str, reason: str) -> None:
    """Records that the push of a model was refused: it is blessed, but does not serve what was evaluated.

    Args:
        model: URI of the model.
        reason: as the user reads it.

    Raises:
        DataError: the record cannot be written.
    """
    write_json(join(model, REFUSED_JSON), {"reason": reason, "time": _now()})


def forget_refusal(model: str) -> None:
    """Removes the record of a refusal, if there is one, as the model is pushed.

    Raises:
        DataError: the record cannot be removed.
    """
    remove_file(join(model, REFUSED_JSON))


def is_refused(model: str) -> bool:
    """Returns whether the last push of a model was refused.

    Args:
        model: URI of the model.
    """
    return is_file(join(model, REFUSED_JSON))


def record_name(uri: str, *, created_ms: int) -> str:
    """Returns the name of the record of an artifact that ML Metadata lists: always the same, in the order of time.

    Args:
        uri: of the artifact.
        created_ms: when it was registered, in milliseconds since 1970.
    """
    return f"{created_ms * 1_000_000:020d}-{hashlib.sha256(uri.encode()).hexdigest()[:8]}.json"


def write_record(history: str, kind: Kind, name: str, record: Record) -> None:
    """Writes a record under a name of `record_name`.

    Raises:
        DataError: it cannot be written.
    """
    write_json(join(history, kind, name), asdict(record))


def record_names(history: str, kind: Kind) -> list[str]:
    """Lists the names of the records of a kind, oldest first."""
    folder = join(history, kind)
    names = list_folder(folder) if is_dir(folder) else []
    return [name for name in names if name.endswith(".json") and not name.startswith(".")]


def config_digest(config_yaml: str) -> str:
    """Returns the name of a configuration by its content."""
    return hashlib.sha256(config_yaml.encode()).hexdigest()[:_DIGEST_LENGTH]


def config_path(history: str, digest: str) -> str:
    """Returns the path of the copy of a configuration."""
    return join(history, _CONFIGS, f"{digest}.yaml")


def store_config(history: str, config_yaml: str) -> str:
    """Keeps a copy of a configuration, once; returns its digest.

    Raises:
        DataError: the copy cannot be written.
    """
    digest = config_digest(config_yaml)
    path = config_path(history, digest)
    if not is_file(path):
        write_text(path, config_yaml)
    return digest


def read_examples(history: str) -> list[ExamplesRecord]:
    """Reads the records of `Examples`, oldest first, the last one of each URI."""
    return list({record.uri: record for record in _read(history, "examples", ExamplesRecord)}.values())


def read_models(history: str) -> list[ModelRecord]:
    """Reads the records of models, oldest first, the last one of each URI."""
    return list({record.uri: record for record in _read(history, "models", ModelRecord)}.values())


def read_verdicts(history: str) -> list[BlessingRecord]:
    """Reads the records of verdicts, oldest first."""
    return _read(history, "blessings", BlessingRecord)


def read_verdict(path: str) -> RecordedVerdict:
    """Reads the blessing decision of an evaluation.

    Raises:
        DataError: the file cannot be read, or is another; it names the key.
    """
    return parse_file(TypeAdapter(RecordedVerdict), path, what="a blessing")


def read_blessed(history: str) -> set[str]:
    """Returns the URIs of the models that were blessed."""
    return {record.model for record in read_verdicts(history) if record.blessed}


def read_pushes(history: str) -> list[PushRecord]:
    """Reads the records of pushes, oldest first, the last one of each destination."""
    return list({record.destination: record for record in _read(history, "pushes", PushRecord)}.values())


def examples_record(examples: "types.Artifact", *, source: str) -> ExamplesRecord:
    """Describes an `Examples` artifact."""
    from tfx.types import artifact_utils

    has_version = examples.has_custom_property(VERSION_PROPERTY)
    return ExamplesRecord(
        uri=examples.uri,
        source=source,
        span=int(examples.get_int_custom_property(SPAN_PROPERTY)),
        version=int(examples.get_int_custom_property(VERSION_PROPERTY)) if has_version else None,
        splits=list(artifact_utils.decode_split_names(examples.split_names)),
        identity=examples.get_string_custom_property(IDENTITY_PROPERTY),
    )


def resolve_to(output: "types.Artifact", entries: Sequence[Mapping[str, Any]]) -> None:
    """Makes an output artifact stand for artifacts of earlier components.

    Args:
        output: artifact of a resolving component.
        entries: fields of `ExamplesRecord` for `Examples`, "uri" for a `Model`; may be empty.

    Raises:
        DataError: the list cannot be written.
    """
    write_json(join(output.uri, RESOLVED_JSON), {"artifacts": [dict(entry) for entry in entries]})
    output.set_int_custom_property(_RESOLVED_PROPERTY, 1)


def resolved(artifacts: "Iterable[types.Artifact]") -> "list[types.Artifact]":
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


def _artifact(kind: "type[types.Artifact]", entry: Mapping[str, Any]) -> "types.Artifact":
    from tfx.types import artifact_utils, standard_artifacts

    artifact = kind()
    artifact.uri = entry["uri"]
    if kind is standard_artifacts.Examples:
        artifact.split_names = artifact_utils.encode_split_names(entry["splits"])
        artifact.set_int_custom_property(SPAN_PROPERTY, entry["span"])
        artifact.set_string_custom_property(IDENTITY_PROPERTY, entry["identity"])
    return artifact


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _write(history: str | None, kind: Kind, record: Record) -> None:
    if history:
        # In the order of time; two of the same nanosecond do not replace each other.
        name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.json"
        write_record(history, kind, name, record)


def _read(history: str, kind: Kind, structure: type[Structure]) -> list[Structure]:
    """Reads records of any version: keys that this one does not know are left out.

    Raises:
        DataError: a file cannot be read, or is no such record.
    """
    paths = [join(history, kind, name) for name in record_names(history, kind)]
    adapter = TypeAdapter(structure)
    remedy = "Restore the file, or remove it: then the runs do not know of what it records."
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda path: parse_file(adapter, path, what="a record of a run", remedy=remedy), paths))
