"""Initialisation as a whole: backbone weights, a warm start, or both."""

import logging
from collections.abc import Sequence
from pathlib import Path

from detection.models.backbones.imagenet import load_imagenet_weights
from detection.training.engine.state import TrainState
from detection.training.initialization.class_outputs import Category
from detection.training.initialization.report import InitReport
from detection.training.initialization.warm_start import warm_start
from detection.training.initialization.weight_source import WeightSource
from schemas.config.initialization import FineTuneType, SourceWeights
from schemas.config.section import PatternMatch

_LOGGER = logging.getLogger("cocoflow.trainer")


def initialize(
    state: TrainState,
    *,
    categories: Sequence[Category],
    backbone_weights: str | None,
    checkpoint: str | None,
    base_model: Path | None,
    weights: SourceWeights,
    rename: Sequence[tuple[str, str]],
    fine_tune_type: FineTuneType,
    skip: Sequence[str],
    skip_mismatch: bool,
    match: PatternMatch = "start",
) -> InitReport | None:
    """Sets the weights that a new run starts from, the averages with them; step and optimizer stay as they are.

    A base model goes before the checkpoint, and both before backbone weights, which are
    only loaded where they may leave some of the backbone.

    Args:
        state: of a run at its beginning.
        categories: see `warm_start`.
        backbone_weights: see `load_imagenet_weights`; None: none.
        checkpoint: see `WeightSource`, as are `weights` and `rename`; None: none.
        base_model: SavedModel of the previous model; None: none.
        weights: of the checkpoint.
        rename: of the checkpoint's variables.
        fine_tune_type: see `warm_start`, as are `skip` and `skip_mismatch`.
        skip: variables to leave out.
        skip_mismatch: leave out what does not fit.
        match: of `skip`; see `matching_paths`.

    Returns:
        What was done; None: nothing was asked for.

    Raises:
        ConfigError, DataError: see `load_imagenet_weights`, `WeightSource`, `warm_start`.
    """
    source = _source(base_model, checkpoint, weights, rename)
    backbone = started = None
    if backbone_weights is not None and (source is None or skip or skip_mismatch):
        backbone = load_imagenet_weights(state.model, backbone_weights)
    if source is not None:
        started = warm_start(
            state.model,
            source,
            categories=categories,
            fine_tune_type=fine_tune_type,
            skip=skip,
            skip_mismatch=skip_mismatch,
            match=match,
        )
    if backbone is None and started is None:
        return None
    _restart_averages(state)
    loaded = {*(backbone.loaded if backbone else ()), *(started.plan.load if started else ())}
    fresh = tuple(variable.path for variable in state.model.variables if variable.path not in loaded)
    report = InitReport(backbone, started, fresh)
    _LOGGER.info("%s", report)
    return report


def _source(
    base_model: Path | None, checkpoint: str | None, weights: SourceWeights, rename: Sequence[tuple[str, str]]
) -> WeightSource | None:
    if base_model is not None:
        return WeightSource(base_model)
    return None if checkpoint is None else WeightSource(checkpoint, weights=weights, rename=rename)


def _restart_averages(state: TrainState) -> None:
    """Averages start at the values of their variables."""
    if state.ema is not None:
        for variable in state.model.variables:
            if variable.path in state.ema.shadows:
                state.ema.shadows[variable.path].assign(variable.value)
