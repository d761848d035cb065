"""Records what the local runs of a `run.root` made, from their ML Metadata, as compiled pipelines record it themselves.

The components of a local run write no records: the folder would be one of their parameters, and
with it part of TFX's cache keys.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime

from ml_metadata.proto import metadata_store_pb2 as mlmd

from components.history import (
    BASE_MODEL_PROPERTY,
    IDENTITY_PROPERTY,
    SOURCE_PROPERTY,
    SPAN_PROPERTY,
    TRAINING_PROPERTY,
    VERSION_PROPERTY,
    BlessingRecord,
    ExamplesRecord,
    Kind,
    ModelRecord,
    PushRecord,
    Record,
    record_name,
    record_names,
    store_config,
    write_record,
)
from detection.storage.files import is_file
from detection.storage.paths import join
from detection.storage.reading import read_text
from pipelines.runs.metadata import RunStore
from schemas.artifacts import CONFIG_YAML


def record_components(made: "MadeArtifacts", history: str) -> None:
    """Writes the records of all artifacts that have none, such as those of a killed run.

    Args:
        made: the artifacts of the runs.
        history: folder of the records.

    Raises:
        DataError: a record cannot be written.
    """
    for kind, (type_name, describe) in _DESCRIBED.items():
        listed = set(record_names(history, kind))
        for artifact in made.of_type(type_name):
            name = record_name(artifact.uri, created_ms=artifact.create_time_since_epoch)
            record = None if name in listed else describe(made, artifact, history)
            if record is not None:
                write_record(history, kind, name, record)


class MadeArtifacts:
    """The artifacts of a pipeline in ML Metadata, with the inputs and the other outputs of their producers.

    Args:
        runs: metadata of the runs.
    """

    def __init__(self, runs: RunStore) -> None:
        self._store = runs.store
        self._by_id = {artifact.id: artifact for artifact in runs.artifacts()}
        self._types = {kind.id: kind.name for kind in runs.store.get_artifact_types()}

    def of_type(self, name: str) -> list[mlmd.Artifact]:
        """Returns the whole artifacts of a type, oldest first."""
        return [
            self._by_id[key]
            for key in sorted(self._by_id)
            if self._types[self._by_id[key].type_id] == name and self._by_id[key].state == mlmd.Artifact.LIVE
        ]

    def uri(self, artifact_id: int) -> str | None:
        """Returns the URI of an artifact; None: there is none of this id."""
        return self._by_id[artifact_id].uri if artifact_id in self._by_id else None

    def beside(self, artifact: mlmd.Artifact, key: str, *, role: int = mlmd.Event.INPUT) -> list[mlmd.Artifact]:
        """Returns the inputs, or other outputs, of the execution that produced an artifact.

        Args:
            artifact: an output.
            key: name of the input or output.
            role: `mlmd.Event.INPUT` or `mlmd.Event.OUTPUT`.
        """
        events = self._store.get_events_by_artifact_ids([artifact.id])
        makers = [event.execution_id for event in events if event.type == mlmd.Event.OUTPUT]
        if not makers:
            return []
        own = self._store.get_events_by_execution_ids([min(makers)])
        found = [event.artifact_id for event in own if event.type == role and event.path.steps[0].key == key]
        return [self._by_id[one] for one in found if one in self._by_id]


def examples_record_of(examples: mlmd.Artifact) -> ExamplesRecord:
    """Describes `Examples` of CocoExampleGen."""
    properties = examples.custom_properties
    return ExamplesRecord(
        uri=examples.uri,
        source=properties[SOURCE_PROPERTY].string_value,
        span=properties[SPAN_PROPERTY].int_value,
        version=properties[VERSION_PROPERTY].int_value if VERSION_PROPERTY in properties else None,
        splits=json.loads(examples.properties["split_names"].string_value or "[]"),
        identity=properties[IDENTITY_PROPERTY].string_value,
    )


def _examples_record(made: MadeArtifacts, examples: mlmd.Artifact, history: str) -> ExamplesRecord | None:
    # Examples of other components have no identity.
    return examples_record_of(examples) if IDENTITY_PROPERTY in examples.custom_properties else None


def _model_record(made: MadeArtifacts, model: mlmd.Artifact, history: str) -> ModelRecord:
    config = join(model.uri, CONFIG_YAML)
    examples = sorted(made.beside(model, "examples"), key=lambda one: one.custom_properties[SPAN_PROPERTY].int_value)
    return ModelRecord(
        uri=model.uri,
        training=model.custom_properties[TRAINING_PROPERTY].string_value,
        base_model=made.uri(model.custom_properties[BASE_MODEL_PROPERTY].int_value),
        examples=[one.uri for one in reversed(examples)],
        config=store_config(history, read_text(config)) if is_file(config) else None,
    )


def _blessing_record(made: MadeArtifacts, blessing: mlmd.Artifact, history: str) -> BlessingRecord | None:
    models = made.beside(blessing, "model")
    evaluations = made.beside(blessing, "evaluation", role=mlmd.Event.OUTPUT)
    if not models:
        return None
    blessed = blessing.custom_properties["blessed"].int_value == 1
    return BlessingRecord(models[0].uri, blessed, evaluations[0].uri if evaluations else None)


def _push_record(made: MadeArtifacts, pushed: mlmd.Artifact, history: str) -> PushRecord | None:
    models, properties = made.beside(pushed, "model"), pushed.custom_properties
    if not models or not properties["pushed"].int_value:
        return None
    return PushRecord(
        destination=properties["pushed_destination"].string_value,
        version=properties["pushed_version"].string_value,
        model=models[0].uri,
        time=datetime.fromtimestamp(pushed.create_time_since_epoch / 1000, UTC).isoformat(timespec="seconds"),
    )


_Describe = Callable[[MadeArtifacts, mlmd.Artifact, str], Record | None]
_DESCRIBED: dict[Kind, tuple[str, _Describe]] = {
    "examples": ("Examples", _examples_record),
    "models": ("Model", _model_record),
    "blessings": ("ModelBlessing", _blessing_record),
    "pushes": ("PushedModel", _push_record),
}
