"""The results of a run that ends: read from its record and from the outputs, and printed."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console

from components.history.read import read_verdict
from detection.coco.summary import metrics_tables, read_metrics, slice_table
from detection.storage.files import is_dir
from detection.storage.paths import join, shown
from pipelines.runs.outlook import label_errors, longer_command, predict_command, training_outlook
from pipelines.runs.run_record import RunRecord
from schemas.artifacts import BLESSING_JSON, LOGS, METRICS_JSON, REPORT_HTML
from schemas.config.train.training import TrainConfig
from schemas.metrics import metrics_by_iou_type
from schemas.program import installed_command
from schemas.quoting import printable


class RunResults(NamedTuple):
    """A finished run of a pipeline.

    record: its record, with the metrics, of which those of further IoU types are named as `segm/AP`.
    model_run: folder of the ModelRun.
    iou_type: first IoU type, whose metrics have no prefix: `bbox`, `segm` or `keypoints`.
    images: folder of the images that the model was evaluated on; None: they are in TFRecords.
    slices: entries of the metrics file on the slices of an `EvalConfig`.
    checkpoint: images that chose the checkpoint, and images that judged it.
    """

    record: RunRecord
    model_run: str
    iou_type: str
    images: str | None = None
    slices: Sequence[Mapping[str, Any]] = ()
    checkpoint: str = ""

    @property
    def evaluation(self) -> str:
        """Folder of the ModelEvaluation."""
        return str(self.record.evaluation)

    def summary(self) -> dict[str, Any]:
        """Returns the content of summary.json."""
        return {
            "run_id": self.record.id,
            "metrics": metrics_by_iou_type(self.record.metrics),
            "iou_type": self.iou_type,
            "slices": list(self.slices),
            "checkpoint": self.checkpoint,
            "blessed": self.record.blessed,
            "reasons": list(self.record.reasons),
            "pushed_path": self.record.pushed_path,
            "seconds": {node: state.seconds for node, state in self.record.components.items()},
        }


def read_results(record: RunRecord, *, model_run: str, images: str | None) -> RunResults:
    """Reads what the record of a finished run does not have from its evaluation; see `RunResults`.

    Raises:
        DataError: an output is missing, such as one removed during the run.
    """
    metrics = read_metrics(join(str(record.evaluation), METRICS_JSON))
    checkpoint = read_verdict(join(str(record.evaluation), BLESSING_JSON)).checkpoint
    return RunResults(record, model_run, metrics.iou_type, images, metrics.slices, checkpoint)


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
        console.print(f"{label:<13}{printable(text)}", soft_wrap=True, highlight=False, markup=False)

    run = results.record
    for table in metrics_tables(run.metrics, iou_type=results.iou_type):
        console.print(table)
    if results.slices:
        console.print(slice_table(results.slices))
    line("Blessed:", ": ".join(["yes" if run.blessed else "no", *run.reasons[:1]]))
    for reason in run.reasons[1:]:
        line("", reason)
    if results.checkpoint:
        line("Checkpoint:", results.checkpoint)
    line("Pushed:", shown(run.pushed_path) if run.pushed_path else "no, only blessed models are pushed")
    line("Report:", shown(join(results.evaluation, REPORT_HTML)))
    folders = {"train": join(results.model_run, LOGS), "eval": join(results.evaluation, LOGS)}
    logs = ",".join(f"{name}:{shown(folder)}" for name, folder in folders.items() if is_dir(folder))
    line("TensorBoard:", f"{installed_command('tensorboard')} --logdir_spec {shlex.quote(logs)}")
    labels, outlook = label_errors(results.evaluation), training_outlook(results.model_run)
    if labels:
        line("Labels:", labels)
    if outlook:
        line("Training:", outlook.text)
    if outlook and outlook.rising:
        line("Next:", longer_command(typed, train_config, steps=outlook.steps))
    if run.pushed_path and results.images:
        line("Try it:", predict_command(run.pushed_path, results.images))
