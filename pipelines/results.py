"""What a finished run produced, read from its ML Metadata."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ml_metadata.metadata_store import metadata_store
from ml_metadata.proto import metadata_store_pb2 as mlmd

from schemas.artifacts import BLESSING_JSON, METRICS_JSON

_STATES = {mlmd.Execution.CACHED: "reused", mlmd.Execution.COMPLETE: "done"}


class NodeResult(NamedTuple):
    """One component of the newest run: its state, wall-clock seconds and output folders by key."""

    state: str
    seconds: float
    outputs: dict[str, Path]


class RunResults(NamedTuple):
    """The newest run of a pipeline.

    `nodes` by id, in the order they ran; `metrics` by name; `pushed` where this run's
    model lies for serving, or None; `evaluation` and `model_run` are artifacts' folders.
    """

    nodes: dict[str, NodeResult]
    metrics: dict[str, float]
    blessed: bool
    reasons: list[str]
    pushed: str | None
    evaluation: Path
    model_run: Path

    def summary(self) -> dict[str, Any]:
        """The contents of summary.json."""
        return {
            "metrics": self.metrics,
            "blessed": self.blessed,
            "reasons": self.reasons,
            "pushed_path": self.pushed,
            "seconds": {name: round(node.seconds, 3) for name, node in self.nodes.items()},
        }


def read_results(metadata_file: Path) -> RunResults:
    """Reads the newest run from a run folder's metadata."""
    store = _open(metadata_file)
    newest = max(store.get_contexts_by_type("pipeline_run"), key=lambda context: context.id)
    executions = sorted(store.get_executions_by_context(newest.id), key=lambda execution: execution.id)
    outputs = {execution.id: _outputs(store, execution.id) for execution in executions}
    nodes = {
        _node_name(store, execution): NodeResult(
            _STATES.get(execution.last_known_state, "failed"),
            (execution.last_update_time_since_epoch - execution.create_time_since_epoch) / 1000,
            {key: Path(artifact.uri) for key, artifact in outputs[execution.id].items()},
        )
        for execution in executions
    }
    artifacts = {key: artifact for named in outputs.values() for key, artifact in named.items()}
    evaluation = Path(artifacts["evaluation"].uri)
    metrics = json.loads((evaluation / METRICS_JSON).read_text(encoding="utf-8"))["metrics"]
    blessing = json.loads((evaluation / BLESSING_JSON).read_text(encoding="utf-8"))
    return RunResults(
        nodes=nodes,
        metrics=metrics,
        blessed=blessing["blessed"],
        reasons=blessing["reasons"],
        pushed=_pushed_path(artifacts["pushed_model"]),
        evaluation=evaluation,
        model_run=Path(artifacts["model_run"].uri),
    )


def _open(metadata_file: Path) -> metadata_store.MetadataStore:
    connection = mlmd.ConnectionConfig()
    connection.sqlite.filename_uri = str(metadata_file)
    connection.sqlite.connection_mode = mlmd.SqliteMetadataSourceConfig.READONLY
    return metadata_store.MetadataStore(connection)


def _node_name(store: metadata_store.MetadataStore, execution: mlmd.Execution) -> str:
    """TFX names a node's context PIPELINE.NODE."""
    contexts: Iterable[mlmd.Context] = store.get_contexts_by_execution(execution.id)
    return next(context.name.partition(".")[2] for context in contexts if context.type == "node")


def _outputs(store: metadata_store.MetadataStore, execution_id: int) -> dict[str, mlmd.Artifact]:
    events = [event for event in store.get_events_by_execution_ids([execution_id]) if event.type == mlmd.Event.OUTPUT]
    artifacts = {artifact.id: artifact for artifact in store.get_artifacts_by_id([e.artifact_id for e in events])}
    return {event.path.steps[0].key: artifacts[event.artifact_id] for event in events}


def _pushed_path(pushed_model: mlmd.Artifact) -> str | None:
    properties = pushed_model.custom_properties
    return properties["pushed_destination"].string_value if properties["pushed"].int_value else None
