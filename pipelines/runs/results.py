"""The results of a run that ends: read from its report and from the outputs, and printed."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console

from components.history.read import read_verdict
from components.history.records import Record
from components.run_report.report import run_fields
from detection.coco.summary import metrics_tables, read_metrics, slice_table
from detection.storage.files import is_dir
from detection.storage.paths import join
from pipelines.runs.outlook import label_errors, longer_command, predict_command, training_outlook
from schemas.artifacts import BLESSING_JSON, LOGS, METRICS_JSON, REPORT_HTML
from schemas.config.train.training import TrainConfig
from schemas.metrics import metrics_by_iou_type
from schemas.program import installed_command


class RunResults(NamedTuple):
    """A finished run of a pipeline.

    seconds: wall-clock seconds by component, 0 for reused ones, in the order of execution.
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

    seconds: dict[str, float]
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
            "seconds": self.seconds,
        }


def read_results(report: Record) -> RunResults:
    """Reads the results of a run.

    Args:
        report: record of its `RunReport`.

    Raises:
        DataError: an output is missing, such as one removed during the run.
    """
    fields = run_fields(report)
    evaluation = fields["evaluation"]
    metrics, verdict = read_metrics(join(evaluation, METRICS_JSON)), read_verdict(join(evaluation, BLESSING_JSON))
    return RunResults(
        seconds={node: state["seconds"] for node, state in fields["components"].items()},
        metrics=metrics.by_name,
        iou_type=metrics.iou_type,
        slices=metrics.slices,
        blessed=verdict.blessed,
        reasons=verdict.reasons,
        pushed=fields["pushed_path"],
        evaluation=evaluation,
        model_run=report.inputs["model_run"][0],
        checkpoint=verdict.checkpoint,
    )


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
