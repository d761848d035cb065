"""Results of a run's evaluations on disk: metrics of each checkpoint, and the best checkpoint."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from detection.inference.restore import ChosenOn
from detection.storage.atomic import write_json
from detection.storage.files import exists
from detection.storage.json_files import read_json
from detection.training.checkpoints.files import checkpoint_path, checkpoint_steps, link_checkpoint, remove_checkpoint
from schemas.artifacts import METRICS_JSON
from schemas.errors import DataError
from schemas.metrics import metrics_of_report

MIN_EVALUATIONS = 3  # min evaluations in a run for an `Outlook`
_HALF = 0.55  # fraction of the steps: evaluations are at rounded steps
_LEAST = 0.005  # metrics count as this far from 0 and 1 at least
RISING_GAIN = 0.01  # min gain: above the noise of AP on small splits


class HistoryEntry(NamedTuple):
    """Metrics of the checkpoint after `step` steps, by name."""

    step: int
    metrics: dict[str, float]


def read_history(path: str | Path) -> list[HistoryEntry]:
    """Reads the evaluations so far, by ascending step; empty if there is no file.

    Raises:
        DataError: the file is not a history.
    """
    if not exists(path):
        return []
    try:
        return [HistoryEntry(int(entry["step"]), dict(entry["metrics"])) for entry in read_json(path)]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not a list of evaluations ({error!r}). Remove it to start a new one.") from None


def write_history(path: Path, entries: Sequence[HistoryEntry]) -> None:
    """Replaces the file atomically.

    Raises:
        DataError: the file cannot be written.
    """
    write_json(path, [entry._asdict() for entry in sorted(entries)])


def has_stalled(values: Sequence[float], *, patience: int, min_delta: float) -> bool:
    """Returns whether the last `patience` values brought no improvement.

    Args:
        values: values of a metric, in the order of the steps; higher is better.
        patience: P >= 1.
        min_delta: a value is an improvement if it exceeds the last improvement by more than this.

    Source: Keras' EarlyStopping.
    """
    best, waited = float("-inf"), 0
    for value in values:
        improves = value - min_delta > best
        best, waited = (value, 0) if improves else (best, waited + 1)
    return waited >= patience


class Outlook(NamedTuple):
    """The forecast for a longer training from the evaluations of a run.

    before: the evaluation to compare with.
    later: that of more steps.
    is_rising: whether `later` is above `before` by more than RISING_GAIN, and nothing after it is below it.
    expected: estimate of the metric of a training with ten times the steps; None: no evaluation in the first half of
        the steps.
    """

    before: tuple[int, float]
    later: tuple[int, float]
    is_rising: bool
    expected: float | None


def outlook(values: Sequence[tuple[int, float]], *, decay_start: int | None = None) -> Outlook | None:
    """Tells from the evaluations of a training run what more steps promise.

    While the learning rate is held, a longer run has the same evaluations: their last one is compared with the best of
    the first half of their steps.  Without such steps, the last one of all is compared with the best of the first two
    thirds, and has to be the best.

    The estimate adds the gain of the last doubling of the steps once more to the log-odds of the metric, as if each
    doubling brought half of the one before.

    Args:
        values: step and metric of each evaluation, by ascending step; higher is better.
        decay_start: step after which the learning rate decays from a peak that it has held; None: it holds none.

    Returns:
        None: too few evaluations to tell.
    """
    compared = [one for one in values if decay_start is None or one[0] <= decay_start]
    if len(values) < MIN_EVALUATIONS or not compared:
        return None
    later, last = compared[-1], values[-1]
    half = [one for one in compared if 2 * one[0] <= later[0]]
    firsts = [one for one in compared if 3 * one[0] <= 2 * later[0]] if decay_start is None else half
    if not firsts:
        return None
    before = max(firsts, key=lambda one: one[1])
    is_best = last[1] >= max(value for _, value in (values if decay_start is None else [later]))
    return Outlook(before, later, is_best and later[1] - before[1] > RISING_GAIN, _expected(values))


def _expected(values: Sequence[tuple[int, float]]) -> float | None:
    """Returns the estimate of an `Outlook`."""
    last = values[-1]
    halves = [one for one in values if one[0] <= _HALF * last[0]]
    if not halves:
        return None
    odds = [min(max(value, _LEAST), 1.0 - _LEAST) for _, value in (halves[-1], last)]
    early, late = (math.log(value / (1.0 - value)) for value in odds)
    gain = max(late - early, 0.0) / math.log2(last[0] / halves[-1][0])
    return 1.0 / (1.0 + math.exp(-late - gain))


class BestCheckpoint:
    """A folder with the best checkpoint and its metrics, not affected by the removal of old checkpoints.

    The metrics are written last: after a kill, the folder has the earlier best checkpoint or the new one.

    Args:
        folder: folder for this checkpoint only.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def step(self) -> int | None:
        """Step of the best checkpoint; None: no best checkpoint yet."""
        report = self._read()
        return None if report is None else int(report["step"])

    @property
    def metrics(self) -> dict[str, float]:
        """COCO metrics of the best checkpoint, by name; empty: no best checkpoint yet."""
        report = self._read()
        return {} if report is None else metrics_of_report(report)

    @property
    def path(self) -> str:
        """Path of the best checkpoint, as a TensorFlow prefix.

        Raises:
            DataError: there is no best checkpoint.
        """
        step = self.step
        if step is None or step not in checkpoint_steps(self._folder):
            raise DataError(
                f"{self._folder}: the best checkpoint is missing. Train into a new folder, or export the last "
                "one: --set train.validation.export=final."
            )
        return checkpoint_path(self._folder, step)

    @property
    def chosen_on(self) -> ChosenOn | None:
        """Images and metric that chose the checkpoint; None: no checkpoint yet."""
        return ChosenOn.from_json((self._read() or {}).get("chosen_on"))

    def offer(self, checkpoints: Path, step: int, *, report: dict[str, Any], chosen_on: ChosenOn) -> bool:
        """Links a checkpoint here if it is the best so far; returns whether it is.

        Args:
            checkpoints: folder of the checkpoint.
            step: step of the checkpoint.
            report: its evaluation, from `detection.coco.summary.metrics_to_json`.
            chosen_on: evaluated images and the metric to compare; higher is better; ties keep the earlier one.

        Raises:
            FileNotFoundError: the checkpoint was removed meanwhile.
        """
        metric = chosen_on.metric
        if self.step not in (None, step) and self.metrics[metric] >= metrics_of_report(report)[metric]:
            return False
        link_checkpoint(checkpoints, step, self._folder)
        write_json(self._folder / METRICS_JSON, {"step": step, "chosen_on": chosen_on._asdict(), **report})
        for other in checkpoint_steps(self._folder):
            if other != step:
                remove_checkpoint(self._folder, other)
        return True

    def clear(self) -> None:
        """Removes the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self) -> dict[str, Any] | None:
        path = self._folder / METRICS_JSON
        return dict(read_json(path)) if path.exists() else None
