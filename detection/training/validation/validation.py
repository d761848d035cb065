"""Validation inside the training process: its schedule, and early stopping."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from detection.training.checkpoints.files import checkpoint_path
from detection.training.validation.checkpoint_evaluator import CheckpointEvaluator
from detection.training.validation.history import HistoryEntry, has_stalled

_LOGGER = logging.getLogger("cocoflow.trainer")


class Validation:
    """Evaluates checkpoints of the training loop, and decides on early stopping.

    Decisions depend on the history of metrics on disk only: a run that was killed and resumed stops
    at the same step.

    Args:
        evaluator: evaluator of checkpoints; None in workers, which follow the chief's decision.
        help_evaluate: computes a worker's share of the evaluation of the checkpoint at a path.
        checkpoints: folder of the run's checkpoints.
        every: steps between evaluations; None: no evaluation.
        last_step: last step of the run, always evaluated.
        metric: metric for early stopping; higher is better.
        patience: evaluations without improvement before stopping; None: no early stopping.
        min_delta: min improvement of the metric.
        agree: broadcasts the chief's decision; all workers call it at the same steps.
    """

    def __init__(
        self,
        evaluator: CheckpointEvaluator | None,
        *,
        help_evaluate: Callable[[str], object] = str,
        checkpoints: Path,
        every: int | None,
        last_step: int,
        metric: str,
        patience: int | None = None,
        min_delta: float = 0.0,
        agree: Callable[[bool], bool] = bool,
    ) -> None:
        self._evaluator = evaluator
        self._help_evaluate = help_evaluate
        self._checkpoints = checkpoints
        self._every = every
        self._last_step = last_step
        self._metric = metric
        self._patience = patience
        self._min_delta = min_delta
        self._agree = agree

    def next_step(self, step: int) -> int:
        """Returns the first step after `step` whose checkpoint is evaluated, or the last step."""
        return self._last_step if self._every is None else min((step // self._every + 1) * self._every, self._last_step)

    def is_due(self, step: int) -> bool:
        """Returns whether the checkpoint after `step` steps is evaluated, and so must be saved."""
        return self._every is not None and (step % self._every == 0 or step == self._last_step)

    def resume(self, step: int) -> bool:
        """Prepares for the first step of a process; returns whether training has to stop.

        Args:
            step: step of the restored checkpoint, 0 without one.  Drops the metrics of later steps.
        """
        if self._evaluator is not None:
            self._evaluator.forget_after(step)
        return step > 0 and self.after(step)

    def after(self, step: int) -> bool:
        """Evaluates the checkpoint after `step` steps if due; returns whether training has to stop.

        Raises:
            DataError: the checkpoint cannot be evaluated, or the results cannot be written.
        """
        if not self.is_due(step):
            return False
        history = [] if self._evaluator is None else [e for e in self._evaluator.history() if e.step <= step]
        if self._agree(self._evaluator is not None and (not history or history[-1].step < step)):
            path = checkpoint_path(self._checkpoints, step)
            if self._evaluator is None:
                self._help_evaluate(path)
            else:
                history.append(self._evaluator.evaluate(self._checkpoints, step))
        return self._agree(self._evaluator is not None and self._ends_at(step, history))

    def _ends_at(self, step: int, history: Sequence[HistoryEntry]) -> bool:
        if self._patience is None or step == self._last_step:
            return False
        values = [entry.metrics[self._metric] for entry in history]
        stalled = has_stalled(values, patience=self._patience, min_delta=self._min_delta)
        if stalled:
            _LOGGER.info(
                "step %s: stopping early: %s has not improved for %d evaluations",
                f"{step:,}",
                self._metric,
                self._patience,
            )
        return stalled
