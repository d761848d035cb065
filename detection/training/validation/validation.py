"""Evaluation inside the training process: when, and whether it ends the run."""

import logging
from collections.abc import Callable
from pathlib import Path

from detection.training.validation.assessor import Assessor
from detection.training.validation.history import has_stalled

_LOGGER = logging.getLogger("cocoflow.trainer")


class Validation:
    """What the training loop asks after it has saved a checkpoint.

    What it answers follows from the history of figures on the disk: a run that was
    killed and goes on is stopped at the same step.

    Args:
        assessor: evaluates; None in workers that only follow the chief's decision.
        checkpoints: folder of the run's checkpoints.
        every: steps between evaluations; None: there are none.
        last_step: of the run; is evaluated too.
        metric: that decides about stopping; more is better.
        patience: see `has_stalled`; None: training never stops early.
        min_delta: likewise.
        agree: tells all workers what the chief says; all of them call it at the same steps.
    """

    def __init__(
        self,
        assessor: Assessor | None,
        *,
        checkpoints: Path,
        every: int | None,
        last_step: int,
        metric: str,
        patience: int | None = None,
        min_delta: float = 0.0,
        agree: Callable[[bool], bool] = bool,
    ) -> None:
        self._assessor = assessor
        self._checkpoints = checkpoints
        self._every = every
        self._last_step = last_step
        self._metric = metric
        self._patience = patience
        self._min_delta = min_delta
        self._agree = agree

    def next_step(self, step: int) -> int:
        """The first step after `step` whose checkpoint is evaluated, or the last step."""
        return self._last_step if self._every is None else min((step // self._every + 1) * self._every, self._last_step)

    def is_due(self, step: int) -> bool:
        """Whether the checkpoint after `step` steps is evaluated: one has to be saved there."""
        return self._every is not None and (step % self._every == 0 or step == self._last_step)

    def resume(self, step: int) -> bool:
        """Comes before the first step of a process; returns whether training is to stop.

        Args:
            step: of the checkpoint that was restored, 0 for none.  What is known of later
                ones is forgotten.
        """
        if self._assessor is not None:
            self._assessor.forget_after(step)
        return step > 0 and self.after(step)

    def after(self, step: int) -> bool:
        """Evaluates the checkpoint after `step` steps where it is due; returns whether training is to stop.

        Raises:
            DataError: see `Assessor.assess`.
        """
        if not self.is_due(step):
            return False
        return self._agree(self._assessor is not None and self._ends_at(step, self._assessor))

    def _ends_at(self, step: int, assessor: Assessor) -> bool:
        entries = [entry for entry in assessor.entries() if entry.step <= step]
        if not entries or entries[-1].step < step:
            entries.append(assessor.assess(self._checkpoints, step))
        if self._patience is None or step == self._last_step:
            return False
        values = [entry.metrics[self._metric] for entry in entries]
        stalled = has_stalled(values, patience=self._patience, min_delta=self._min_delta)
        if stalled:
            _LOGGER.info(
                "step %d: training stops early, as %s has not improved for %d evaluations",
                step,
                self._metric,
                self._patience,
            )
        return stalled
