"""The results of a run that ends: read from its record and from the outputs, and printed."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console

from components.history.queries import read_blessing
from components.history.records import Run
from detection.coco.summary import metrics_tables, read_metrics, slice_table
from detection.storage.files import is_dir
from detection.storage.paths import join, shown
from pipelines.runs.outlook import label_errors, longer_command, predict_command, training_outlook
from schemas.artifacts import LOGS, METRICS_JSON, REPORT_HTML
from schemas.config.train.training import TrainConfig
from schemas.metrics import metrics_by_iou_type
from schemas.program import installed_command
from schemas.quoting import printable


class RunResults(NamedTuple):
    """A finished run of a pipeline.

    run: its record with its results; metrics of further IoU types are named as `segm/AP`.
    iou_type: first IoU type, whose metrics have no prefix: `bbox`, `segm` or `keypoints`.
    images: folder of the images that the model was evaluated on; None: they are in TFRecords.
    slices: entries of the metrics file on the slices of an `EvalConfig`.
    checkpoint: images that chose the checkpoint, and images that judged it.
    """

    run: Run
    iou_type: str
    images: str | None = None
    slices: Sequence[Mapping[str, Any]] = ()
    checkpoint: str = ""

    def summary(self) -> dict[str, Any]:
        """Returns the content of summary.json."""
        return {
            "run_id": self.run.id,
            "metrics": metrics_by_iou_type(self.run.metrics),
            "iou_type": self.iou_type,
            "slices": list(self.slices),
            "checkpoint": self.checkpoint,
            "blessed": self.run.blessed,
            "reasons": list(self.run.reasons),
            "pushed_path": self.run.pushed_path,
            "seconds": {node: state.seconds for node, state in self.run.components.items()},
        }


def read_results(run: Run, *, images: str | None) -> RunResults:
    """Reads what the record of a finished run does not have from its evaluation; see `RunResults`.

    Raises:
        DataError: an output is missing, such as one removed during the run.
    """
    evaluation = str(run.evaluation)
    metrics = read_metrics(join(evaluation, METRICS_JSON))
    return RunResults(run, metrics.iou_type, images, metrics.slices, read_blessing(evaluation).checkpoint)


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

    run, evaluation, model_run = results.run, str(results.run.evaluation), str(results.run.model_run)
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
    line("Report:", shown(join(evaluation, REPORT_HTML)))
    folders = {"train": join(model_run, LOGS), "eval": join(evaluation, LOGS)}
    logs = ",".join(f"{name}:{shown(folder)}" for name, folder in folders.items() if is_dir(folder))
    line("TensorBoard:", f"{installed_command('tensorboard')} --logdir_spec {shlex.quote(logs)}")
    labels, outlook = label_errors(evaluation), training_outlook(model_run)
    if labels:
        line("Labels:", labels)
    if outlook:
        line("Training:", outlook.text)
    if outlook and outlook.rising:
        line("Next:", longer_command(typed, train_config, steps=outlook.steps))
    if run.pushed_path and results.images:
        line("Try it:", predict_command(run.pushed_path, results.images))
