"""What became of a run: its record, and what the update gained and forgot by category."""

import logging
from dataclasses import asdict, dataclass, field
from typing import Any

from detection.analysis.analysis_file import read_analysis
from detection.reports.evaluation.category_changes import category_gains, gain_sentences
from detection.storage.files import is_file
from detection.storage.paths import join
from pipelines.runs.history import RunHistory
from pipelines.runs.run_record import DONE
from schemas.artifacts import ANALYSIS_JSON, REPORT_HTML
from schemas.errors import DataError
from schemas.metrics import main_metrics

_LOGGER = logging.getLogger("cocoflow.watch")


@dataclass(frozen=True)
class RunResult:
    """The result of a run that is done.

    Attributes:
        metrics: metrics by name.
        blessed: True if the model is blessed; None: not known.
        pushed_path: folder of the pushed version; None: not pushed.
        report: path of the evaluation's report; None: there is none.
        changes: sentences on the categories that were gained and lost; empty without a baseline.
        ap_changes: category name -> change of AP against the last blessed model.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    blessed: bool | None = None
    pushed_path: str | None = None
    report: str | None = None
    changes: list[str] = field(default_factory=list)
    ap_changes: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Returns what the log says of the run."""
        shown = [name for name in main_metrics(self.metrics) if name != "AP50"]
        parts = ["done", *(f"{name} {self.metrics[name]:.3f}" for name in shown)]
        if self.blessed is not None:
            parts.append("blessed" if self.blessed else "not blessed")
        if self.pushed_path is not None:
            parts.append(f"pushed to {self.pushed_path}")
        first = ", ".join(parts)
        return [f"{first}; report: {self.report}" if self.report else first, *self.changes]


def is_done(root: str, run_id: str) -> bool:
    """Returns whether a run is done.

    Args:
        root: `run.root`.
        run_id: id of the run.

    Raises:
        DataError: its record cannot be read.
    """
    record = RunHistory(root).read(run_id)
    return record is not None and record.state == DONE


def read_result(root: str, run_id: str) -> RunResult:
    """Reads the result of a run that is done.

    Args:
        root: `run.root`.
        run_id: id of the run.

    Raises:
        DataError: its record cannot be read.
    """
    record = RunHistory(root).read(run_id)
    if record is None or record.evaluation is None:
        return RunResult()
    changes, ap_changes = _changes(join(record.evaluation, ANALYSIS_JSON))
    return RunResult(
        metrics=dict(record.metrics),
        blessed=record.blessed,
        pushed_path=record.pushed_path,
        report=join(record.evaluation, REPORT_HTML),
        changes=changes,
        ap_changes=ap_changes,
    )


def _changes(path: str) -> tuple[list[str], dict[str, float]]:
    """Returns the sentences and the changes; nothing if the file was removed or is of another version."""
    if not is_file(path):
        return [], {}
    try:
        gains = category_gains(read_analysis(path))
    except DataError as error:
        _LOGGER.warning("%s", error)
        return [], {}
    return gain_sentences(gains), {gain.name: gain.difference for gain in gains}
