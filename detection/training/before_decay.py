"""The checkpoint before the decay of the learning rate: a training that gets more steps goes on from it.

After the decay, the weights have settled; at the peak rate again, they would lose what the decay brought.

Source: Hägele et al., Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations.
"""

import logging
from pathlib import Path

from detection.training.checkpoints.files import (
    checkpoint_path,
    checkpoint_steps,
    find_damage,
    link_checkpoint,
    remove_checkpoint,
    remove_state,
)
from detection.training.validation.history import BestCheckpoint
from schemas.artifacts import BEFORE_DECAY, BEST, CHECKPOINTS, VALIDATION
from schemas.config.train.training import TrainConfig

_LOGGER = logging.getLogger("cocoflow.trainer")


def keep_before_decay(output: Path, step: int) -> None:
    """Links the checkpoint of `step` to BEFORE_DECAY of a training's folder, in place of an earlier one."""
    folder = output / BEFORE_DECAY
    link_checkpoint(output / CHECKPOINTS, step, folder)
    for other in checkpoint_steps(folder):
        if other != step:
            remove_checkpoint(folder, other)


def go_back_before_decay(output: Path, before: TrainConfig | None, now: TrainConfig) -> None:
    """Makes the checkpoint before the decay the newest one if a training has more steps than before.

    A kill leaves a folder in which the next call does the rest.

    Args:
        output: local folder of the training.
        before: resolved configuration of the checkpoints in the folder; None: not known.
        now: resolved configuration of the training.
    """
    steps, kept = checkpoint_steps(output / CHECKPOINTS), checkpoint_steps(output / BEFORE_DECAY)
    if before is None or not steps or not kept or before.fixed_steps >= now.fixed_steps:
        return
    step = kept[-1]
    if steps[-1] <= step or step > (now.decay_start or 0):
        return
    if find_damage(checkpoint_path(output / BEFORE_DECAY, step)) is not None:
        return
    _LOGGER.info(
        "going on from step %s, before the learning rate decayed: %s steps instead of %s",
        f"{step:,}",
        f"{now.fixed_steps:,}",
        f"{before.fixed_steps:,}",
    )
    link_checkpoint(output / BEFORE_DECAY, step, output / CHECKPOINTS)
    best = BestCheckpoint(output / VALIDATION / BEST)
    if (best.step or 0) > step:
        best.clear()
    remove_state(output / CHECKPOINTS)
    for later in reversed(steps):
        if later > step:
            remove_checkpoint(output / CHECKPOINTS, later)
