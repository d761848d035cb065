"""The results that `run` prints at its end, on stdout."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from detection.coco.metrics import METRIC_DEFINITIONS
from detection.coco.summary import metrics_table
from pipelines.dataset_files import files_of
from schemas.artifacts import LOGS, REPORT_HTML
from schemas.config.config import Config

if TYPE_CHECKING:
    from pipelines.runs.results import RunResults


def print_results(results: "RunResults", config: Config, console: Console) -> None:
    """Prints the COCO metrics, the blessing, the paths of the outputs and the next command."""

    def line(label: str, text: str) -> None:
        console.print(f"{label:<13}{text}", soft_wrap=True, highlight=False, markup=False)

    # An EvalConfig may ask for other metrics than COCO's.
    known = [figure for figure in METRIC_DEFINITIONS["bbox"] if figure.name in results.metrics]
    console.print(metrics_table(results.metrics, definitions=known))
    line("Blessed:", "yes" if results.blessed else "no")
    for reason in results.reasons:
        line("", reason)
    line("Pushed:", results.pushed or "no, only blessed models are pushed")
    line("Report:", str(results.evaluation / REPORT_HTML))
    folders = {"train": results.model_run / LOGS, "eval": results.evaluation / LOGS}
    logs = ",".join(f"{name}:{folder}" for name, folder in folders.items() if folder.is_dir())
    line("TensorBoard:", f"tensorboard --logdir_spec {shlex.quote(logs)}")
    images = files_of(config.data)[config.evaluate.split].images
    if results.pushed and images:
        line(
            "Try it:",
            f"{_python()} pipeline_runner.py predict --model {shlex.quote(results.pushed)} "
            f"--images {shlex.quote(images)} --output detections.json --draw detections.png",
        )


def _python() -> str:
    """This interpreter as one would type it here."""
    here = Path.cwd()
    path = Path(sys.executable)
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
