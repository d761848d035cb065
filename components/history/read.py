"""What the records of a `run.root` say of examples, models, verdicts and pushes."""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from components.history.facts import BlessingRecord, ExamplesRecord, ModelRecord, PushRecord
from components.history.records import DESTINATION_PROPERTY, Output, Record, read_records, time_of
from detection.storage.files import list_folders
from detection.storage.json_files import parse_file
from detection.storage.paths import join, name_of, with_name
from schemas.artifacts import HISTORY
from schemas.errors import RefusedModelError

# Custom properties.
IDENTITY_PROPERTY = "identity"  # of `Examples` and `Model`: equal if made of the same data in the same way
DIGEST_PROPERTY = "model_digest"  # of a `PushedModel`: digest of the model's files
SOURCE_PROPERTY = "data_source"  # of `Examples`: the paths as the user wrote them
TRAINING_PROPERTY = "training"  # of a `Model`: identity of the training, without the base model
CONFIG_PROPERTY = "config"  # of a `Model`: digest of its configuration, see `records.store_config`
REMOVED_PROPERTY = "removed_versions"  # of a `PushedModel`: JSON list of names of versions that its push removed
_OF_RUNS = frozenset({"runs", "configs"})  # folders of the history that have no records of components
# Of every file-based ExampleGen: `tfx.components.example_gen.utils` defines them.
SPAN_PROPERTY, VERSION_PROPERTY, FINGERPRINT_PROPERTY = "span", "version", "input_fingerprint"
SPLIT_NAMES_PROPERTY = "split_names"  # of `Examples`, a property of the type: JSON
# Of TFX's Evaluator and Pusher.
BLESSED_PROPERTY = "blessed"
PUSHED_PROPERTY = "pushed"  # int: 1 or 0
PUSHED_VERSION_PROPERTY = "pushed_version"  # string: its name


@dataclass(frozen=True)
class RecordedVerdict:
    """A blessing decision as the evaluator writes it.

    baseline: metrics of the last blessed model, see `schemas.metrics.metrics_by_iou_type`; None: no such model.
    checkpoint: images that chose the checkpoint, and images that judged it.
    """

    blessed: bool
    reasons: list[str]
    baseline: Any = None
    checkpoint: str = ""


def read_executions(root: str, runs: Collection[str]) -> list[Record]:
    """Reads the records of all components that runs executed, in the order of their ends.

    Args:
        root: `run.root`.
        runs: ids of the runs.

    Raises:
        DataError: a file cannot be read, or is no such record.
    """
    if not runs:
        return []
    folders = [name for name in list_folders(join(root, HISTORY)) if name not in _OF_RUNS]
    records = [record for name in folders for record in read_records(root, name, runs=runs)]
    return sorted(records, key=lambda record: record.ended)


def read_examples(root: str) -> list[ExamplesRecord]:
    """Reads the records of `Examples`, oldest first, the last one of each URI."""
    return [examples_record(output) for output in read_outputs(root, "CocoExampleGen", "examples")]


def read_models(root: str) -> list[ModelRecord]:
    """Reads the records of models, oldest first, the last one of each URI."""
    made = _made(root, "DetectionTrainer", "model")
    return list({output.uri: _model_record(record, output) for record, output in made}.values())


def read_verdicts(root: str) -> list[BlessingRecord]:
    """Reads the records of verdicts, oldest first."""
    return [
        BlessingRecord(
            model=_input(record, "model"),
            blessed=blessing.properties.get(BLESSED_PROPERTY) == 1,
            evaluation=record.output("evaluation").uri,
            run=record.run,
        )
        for record, blessing in _made(root, "CocoEvaluator", "blessing")
    ]


def read_verdict(path: str) -> RecordedVerdict:
    """Reads the blessing decision of an evaluation.

    Raises:
        DataError: the file cannot be read, or is another; it names the key.
    """
    return parse_file(TypeAdapter(RecordedVerdict), path, what="a blessing")


def read_blessed(root: str) -> set[str]:
    """Returns the URIs of the models that were blessed."""
    return {record.model for record in read_verdicts(root) if record.blessed}


def read_refused(root: str) -> set[str]:
    """Returns the URIs of the models whose newest push was refused: they do not serve what was evaluated.

    Raises:
        DataError: a file cannot be read, or is no such record.
    """
    refused: dict[str, bool] = {}
    for record in read_records(root, "SavedModelPusher"):
        refused[_input(record, "model")] = record.error is not None and record.error.kind == RefusedModelError.__name__
    return {model for model, is_so in refused.items() if is_so}


def read_pushes(root: str) -> list[PushRecord]:
    """Reads the records of pushes, oldest first, the last one of each destination."""
    pushes = [
        PushRecord(
            destination=str(pushed.properties[DESTINATION_PROPERTY]),
            version=str(pushed.properties[PUSHED_VERSION_PROPERTY]),
            model=_input(record, "model"),
            time=time_of(record.ended).isoformat(timespec="seconds"),
            digest=str(pushed.properties.get(DIGEST_PROPERTY, "")),
            run=record.run,
        )
        for record, pushed in _made(root, "SavedModelPusher", "pushed_model")
        if pushed.properties.get(PUSHED_PROPERTY) == 1
    ]
    return list({push.destination: push for push in pushes}.values())


def removed_versions(push: Record) -> set[str]:
    """Returns the folders of the versions that a push removed."""
    return {
        with_name(str(pushed.properties[DESTINATION_PROPERTY]), name_of(removed))
        for pushed in push.outputs.get("pushed_model", [])
        for removed in json.loads(str(pushed.properties.get(REMOVED_PROPERTY, "[]")))
    }


def examples_record(examples: Output) -> ExamplesRecord:
    """Describes `Examples` of CocoExampleGen."""
    properties = examples.properties
    version = properties.get(VERSION_PROPERTY)
    return ExamplesRecord(
        uri=examples.uri,
        source=str(properties.get(SOURCE_PROPERTY, "")),
        span=int(properties.get(SPAN_PROPERTY, 0)),
        version=None if version is None else int(version),
        splits=json.loads(str(properties.get(SPLIT_NAMES_PROPERTY) or "[]")),
        identity=str(properties.get(IDENTITY_PROPERTY, "")),
    )


def _model_record(record: Record, model: Output) -> ModelRecord:
    return ModelRecord(
        record=record,
        uri=model.uri,
        training=str(model.properties.get(TRAINING_PROPERTY, "")),
        identity=str(model.properties.get(IDENTITY_PROPERTY, "")),
        base_model=_input(record, "base_model") or None,
        examples=record.inputs.get("examples", []),
        config=str(model.properties.get(CONFIG_PROPERTY, "")) or None,
    )


def read_outputs(root: str, component: str, name: str) -> list[Output]:
    """Reads the artifacts of an output of a component, oldest first, the last record of each URI.

    Raises:
        DataError: a file cannot be read, or is no such record.
    """
    return list({output.uri: output for _, output in _made(root, component, name)}.values())


def _made(root: str, component: str, name: str) -> Iterator[tuple[Record, Output]]:
    """Yields the artifacts of an output with their records, oldest first."""
    for record in read_records(root, component):
        for output in record.outputs.get(name, []):
            yield record, output


def _input(record: Record, name: str) -> str:
    return next(iter(record.inputs.get(name, [])), "")
