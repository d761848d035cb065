"""Finds the cause of inference losses far above training losses: lagging batch-norm statistics or EMA weights.

Training normalizes with the statistics of each batch, inference with batch norm's moving
statistics, and usually with EMA weights.  Both lag behind the weights, which training losses do
not show.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from detection.input_pipeline.training_batches import Batch
from detection.models.detector import Detector
from detection.models.layers.batch_norm import batch_norms, statistics_updates
from detection.training.checkpoints.manager import load_weights

# A loss this many times another is far above it; docs/update_rules.md has measurements.
_LOW_MOMENTUM = 0.9  # a lower one makes the statistics those of a few batches
FAR_ABOVE = 1.2


class ModeLosses(NamedTuple):
    """Mean total losses of one checkpoint on the same batches, without drop-connect and L2.

    training: raw weights, batch norm uses each batch's statistics.
    raw: raw weights, batch norm uses its moving statistics.
    ema: EMA weights, batch norm uses its moving statistics; None: the run has no EMA weights.
    """

    training: float
    raw: float
    ema: float | None


def mode_losses(detector: Detector, path: str, batches: Sequence[Batch], *, trained: Detector, ema: bool) -> ModeLosses:
    """Computes the losses of a checkpoint in training and in inference mode.

    Runs eagerly: tracing would take longer than the few passes.

    Args:
        detector: detector of the run's configuration, outside of the run's strategy; its weights are replaced.
        path: checkpoint of the run, as returned by `checkpoint_path`.
        batches: training batches, at least one.
        trained: detector of the run; its layers with fixed statistics are fixed in `detector`, too.
        ema: the checkpoint has EMA weights.

    Raises:
        DataError: the checkpoint cannot be read.
    """
    for layer, trained_layer in zip(batch_norms(detector), batch_norms(trained), strict=True):
        layer.fixed_statistics = trained_layer.fixed_statistics
    load_weights(detector, path, weights="raw")
    with statistics_updates(False):
        training = _mean_loss(detector, batches, training=True)
    raw = _mean_loss(detector, batches, training=False)
    if not ema:
        return ModeLosses(training, raw, None)
    load_weights(detector, path, weights="ema")
    return ModeLosses(training, raw, _mean_loss(detector, batches, training=False))


def _mean_loss(detector: Detector, batches: Sequence[Batch], *, training: bool) -> float:
    losses = [
        tf.add_n(list(detector.losses(detector(batch.images, training=training), batch.labels).values()))
        for batch in batches
    ]
    return float(np.mean(losses))


def explain_gap(losses: ModeLosses, *, momentum: float | None = None) -> str | None:
    """Explains an inference loss far above the training loss, with a remedy; None: no such gap.

    Args:
        losses: result of `mode_losses`.
        momentum: of batch norm's moving statistics; None: not known.
    """
    if not losses.raw <= FAR_ABOVE * losses.training:
        return (
            f"batch norm's moving statistics lag behind the weights: the loss is {losses.training:.3g} with the "
            f"statistics of each batch, as in training, but {losses.raw:.3g} with the moving ones, as in inference. "
            f"The model performs worse than in training. {_advice(momentum)}"
        )
    if losses.ema is not None and not losses.ema <= FAR_ABOVE * losses.raw:
        return (
            f"the EMA weights lag behind the raw weights: the loss is {losses.raw:.3g} with the raw and "
            f"{losses.ema:.3g} with the EMA weights. Lower train.ema.decay, train longer, or export the raw weights "
            "with train.ema.use_moving_averages=false."
        )
    return None


def _advice(momentum: float | None) -> str:
    if momentum is not None and momentum <= _LOW_MOMENTUM:
        return (
            f"model.overrides.batch_norm.momentum is {momentum:g} already: train longer, lower the learning rate, or "
            "fix the statistics with train.freeze_batch_norm=statistics."
        )
    return f"Lower model.overrides.batch_norm.momentum, for example to {_LOW_MOMENTUM:g}, or train longer."
