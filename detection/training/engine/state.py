"""What a checkpoint holds: everything a run needs to go on."""

from typing import NamedTuple

import keras
import tensorflow as tf

from detection.models.detector import Detector, variables_by_path
from detection.training.engine.ema import ExponentialMovingAverage
from detection.training.engine.precision import LossScale

# Parts of a checkpoint that hold weights, each a dictionary by variable path.
MODEL_PART = "model"
AVERAGES_PART = "ema"


class TrainState(NamedTuple):
    """The state of a training run.

    step: int64 scalar variable, steps done.
    model: the detector with its raw weights.
    trainable: the variables that train, frozen ones left out.
    optimizer: with its slots.
    ema: averages of the weights, or None.
    loss_scale: of float16, or None.
    """

    step: tf.Variable
    model: Detector
    trainable: tuple[keras.Variable, ...]
    optimizer: keras.optimizers.Optimizer
    ema: ExponentialMovingAverage | None
    loss_scale: LossScale | None = None

    def checkpoint(self) -> tf.train.Checkpoint:
        """A checkpoint of all of it, by variable path: independent of how the objects hang together."""
        parts = {
            "step": self.step,
            MODEL_PART: variables_by_path(self.model.variables),
            "optimizer": variables_by_path(self.optimizer.variables),
        }
        if self.ema is not None:
            parts[AVERAGES_PART] = dict(self.ema.shadows)
        if self.loss_scale is not None:
            parts["loss_scale"] = self.loss_scale
        return tf.train.Checkpoint(**parts)
