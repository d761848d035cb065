"""The results of a run that ends: read from the ML Metadata of this attempt and from the outputs, and printed."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ml_metadata.metadata_store import metadata_store
from ml_metadata.proto import metadata_store_pb2 as mlmd
from rich.console import Console

from components.history.read import FINGERPRINT_PROPERTY, PUSHED_PROPERTY, examples_record, read_verdict
from components.history.records import DESTINATION_PROPERTY, RESOLVED_PROPERTY, Output, properties_of
from detection.coco.summary import metrics_tables, read_metrics, slice_table
from detection.storage.files import is_dir, is_file
from detection.storage.paths import join
from pipelines.runs.outlook import label_errors, longer_command, predict_command, training_outlook
from schemas.artifacts import BLESSING_JSON, LABELS_JSON, LOGS, METRICS_JSON, REPORT_HTML, SAVED_MODEL_FILE
from schemas.config.train.training import TrainConfig
from schemas.errors import CocoflowError, DataError
from schemas.metrics import metrics_by_iou_type
from schemas.program import installed_command

_REPORTED = {"evaluation": METRICS_JSON, "model_run": LABELS_JSON}  # outputs, and a file that each has


class NodeResult(NamedTuple):
    """State, wall-clock seconds and output folders (by key) of one component."""

    state: str
    seconds: float
    outputs: dict[str, str]


class RunNodes(NamedTuple):
    """The nodes of a run, finished or not, and what they made.

    nodes: results by node id, in the order of execution; empty if the run did not begin.
    artifacts: outputs by key.
    """

    nodes: dict[str, NodeResult]
    artifacts: dict[str, mlmd.Artifact]


class RunResults(NamedTuple):
    """A finished run of a pipeline.

    nodes: results by node id, in the order of execution.
    metrics: COCO metrics by name, those of further IoU types as `segm/AP`.
    iou_type: first IoU type, whose metrics have no prefix: `bbox`, `segm` or `keypoints`.
    blessed: True if the model is blessed.
    reasons: one sentence per threshold, those that are not met first.
    pushed: folder of the pushed version; None: not pushed.
    evaluation: folder of the ModelEvaluation.
    model_run: folder of the ModelRun.
    images: folder of the images that the model was evaluated on; None: they are in TFRecords.
    slices: entries of the metrics file on the slices of an `EvalConfig`.
    checkpoint: images that chose the checkpoint, and images that judged it; "": an earlier version evaluated it.
    """

    nodes: dict[str, NodeResult]
    metrics: dict[str, float]
    iou_type: str
    blessed: bool
    reasons: list[str]
    pushed: str | None
    evaluation: str
    model_run: str
    images: str | None = None
    slices: Sequence[Mapping[str, Any]] = ()
    checkpoint: str = ""

    def summary(self) -> dict[str, Any]:
        """Returns the content of summary.json."""
        return {
            "metrics": metrics_by_iou_type(self.metrics),
            "iou_type": self.iou_type,
            "slices": list(self.slices),
            "checkpoint": self.checkpoint,
            "blessed": self.blessed,
            "reasons": self.reasons,
            "pushed_path": self.pushed,
            "seconds": {name: round(node.seconds, 3) for name, node in self.nodes.items()},
        }


def read_nodes(store: metadata_store.MetadataStore, run_id: str) -> RunNodes:
    """Reads the nodes of a run, and what they made, from its metadata.

    Args:
        store: metadata of the run.
        run_id: id of the run in ML Metadata.
    """
    run = store.get_context_by_type_and_name("pipeline_run", run_id)
    executions = sorted(store.get_executions_by_context(run.id), key=lambda execution: execution.id) if run else []
    outputs = {execution.id: _outputs(store, execution.id) for execution in executions}
    nodes = {
        _node_name(store, execution.id): NodeResult(
            _state(execution, outputs[execution.id]),
            (execution.last_update_time_since_epoch - execution.create_time_since_epoch) / 1000,
            {key: artifact.uri for key, artifact in outputs[execution.id].items()},
        )
        for execution in executions
    }
    made = ((key, artifact) for named in outputs.values() for key, artifact in named.items())
    return RunNodes(nodes, {key: one for key, one in made if RESOLVED_PROPERTY not in properties_of(one)})


def _node_name(store: metadata_store.MetadataStore, execution_id: int) -> str:
    """Returns the pipeline node of an execution: TFX names a node's context PIPELINE.NODE."""
    contexts = store.get_contexts_by_execution(execution_id)
    return next((context.name.rpartition(".")[2] for context in contexts if context.type == "node"), "")


def _state(execution: mlmd.Execution, outputs: Mapping[str, mlmd.Artifact]) -> str:
    if execution.last_known_state != mlmd.Execution.COMPLETE:
        return "failed"
    # See `components.history.driver`.
    external = [artifact.custom_properties["is_external"].int_value for artifact in outputs.values()]
    return "reused" if external and all(external) else "done"


def run_fields(run: RunNodes) -> dict[str, Any]:
    """Returns the fields of `RunRecord` that the metadata and the outputs of a run tell, whole or not.

    Raises:
        DataError: an output is missing.
    """
    nodes, artifacts = run
    fields: dict[str, Any] = {
        "components": {name: {"state": node.state, "seconds": round(node.seconds, 3)} for name, node in nodes.items()}
    }
    if "examples" in artifacts:
        fields["data"] = _data_read(artifacts["examples"])
    if "model" in artifacts:
        fields["model"] = artifacts["model"].uri
    if "evaluation" in artifacts:
        evaluation = artifacts["evaluation"].uri
        verdict = read_verdict(join(evaluation, BLESSING_JSON))
        fields |= {
            "evaluation": evaluation,
            "metrics": read_metrics(join(evaluation, METRICS_JSON)).by_name,
            "blessed": verdict.blessed,
            "reasons": verdict.reasons,
        }
    if "pushed_model" in artifacts:
        fields["pushed_path"] = _pushed_path(artifacts["pushed_model"])
    return fields


def read_results(run: RunNodes) -> RunResults:
    """Reads the results of a run from its outputs.

    Raises:
        CocoflowError: a component did not run.
        DataError: an output is missing, such as one removed during the run.
    """
    nodes, artifacts = run
    evaluation, model_run = (_present(artifacts, key) for key in _REPORTED)
    report, verdict = read_metrics(join(evaluation, METRICS_JSON)), read_verdict(join(evaluation, BLESSING_JSON))
    return RunResults(
        nodes=nodes,
        metrics=report.by_name,
        iou_type=report.iou_type,
        slices=report.slices,
        blessed=verdict.blessed,
        reasons=verdict.reasons,
        pushed=_pushed_path(artifacts["pushed_model"]),
        evaluation=evaluation,
        model_run=model_run,
        checkpoint=verdict.checkpoint,
    )


def _data_read(examples: mlmd.Artifact) -> dict[str, Any]:
    record = examples_record(Output(examples.uri, examples.type, properties_of(examples)))
    return {
        "source": record.source,
        "span": record.span,
        "version": record.version,
        "identity": record.identity,
        "examples": record.uri,
        "input_fingerprint": properties_of(examples).get(FINGERPRINT_PROPERTY),
    }


def _present(artifacts: dict[str, mlmd.Artifact], key: str) -> str:
    """Returns the folder of an output after checking its files."""
    if key not in artifacts:
        raise CocoflowError(f"the run has no {key}: its component did not run. See run.log for the reason.")
    path = join(artifacts[key].uri, _REPORTED[key])
    if not is_file(path):
        raise DataError(f"{path}: missing, though this run produced or reused it. Run again to produce it anew.")
    return str(artifacts[key].uri)


def _pushed_path(pushed: mlmd.Artifact) -> str | None:
    """Returns the folder of the pushed version; None: the model was not pushed.

    Raises:
        DataError: the version is not there.
    """
    properties = properties_of(pushed)
    if not properties.get(PUSHED_PROPERTY):
        return None
    path = join(str(properties[DESTINATION_PROPERTY]), SAVED_MODEL_FILE)
    if not is_file(path):
        raise DataError(f"{path}: missing, though this run produced or reused it. Run again to produce it anew.")
    return str(properties[DESTINATION_PROPERTY])


def _outputs(store: metadata_store.MetadataStore, execution_id: int) -> dict[str, mlmd.Artifact]:
    events = [event for event in store.get_events_by_execution_ids([execution_id]) if event.type == mlmd.Event.OUTPUT]
    artifacts = {artifact.id: artifact for artifact in store.get_artifacts_by_id([e.artifact_id for e in events])}
    return {event.path.steps[0].key: artifacts[event.artifact_id] for event in events}


def print_results(results: RunResults, console: Console, *, typed: Sequence[str], train_config: TrainConfig) -> None:
    """Prints the COCO metrics, the blessing, the paths of the outputs, what to look at and the next command.

    Args:
        results: results of the run.
        console: console to print on.
        typed: arguments of the command, see `longer_command`.
        train_config: configuration that they gave.

    Raises:
        DataError: an output cannot be read.
    """

    def line(label: str, text: str) -> None:
        console.print(f"{label:<13}{text}", soft_wrap=True, highlight=False, markup=False)

    for table in metrics_tables(results.metrics, iou_type=results.iou_type):
        console.print(table)
    if results.slices:
        console.print(slice_table(results.slices))
    line("Blessed:", ": ".join(["yes" if results.blessed else "no", *results.reasons[:1]]))
    for reason in results.reasons[1:]:
        line("", reason)
    if results.checkpoint:
        line("Checkpoint:", results.checkpoint)
    line("Pushed:", results.pushed or "no, only blessed models are pushed")
    line("Report:", join(results.evaluation, REPORT_HTML))
    folders = {"train": join(results.model_run, LOGS), "eval": join(results.evaluation, LOGS)}
    logs = ",".join(f"{name}:{folder}" for name, folder in folders.items() if is_dir(folder))
    line("TensorBoard:", f"{installed_command('tensorboard')} --logdir_spec {shlex.quote(logs)}")
    labels, outlook = label_errors(results.evaluation), training_outlook(results.model_run)
    if labels:
        line("Labels:", labels)
    if outlook:
        line("Training:", outlook.text)
    if outlook and outlook.rising:
        line("Next:", longer_command(typed, train_config, steps=outlook.steps))
    if results.pushed and results.images:
        line("Try it:", predict_command(results.pushed, results.images))
