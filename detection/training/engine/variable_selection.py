"""Choosing variables by regular expressions on their paths: which train, which decay, which LARS adapts."""

import logging
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import keras

from detection.models.layers.batch_norm import batch_norms
from schemas.config.section import PatternMatch
from schemas.errors import ConfigError

WEIGHT_DECAY_EXCLUDE_KEY = "train.optimizer.weight_decay_exclude"

_LOGGER = logging.getLogger("cocoflow.trainer")
_SEARCH = {"start": re.match, "anywhere": re.search}
_WIDEN = "to match anywhere, begin with '.*' or set train.pattern_match=anywhere"


class ChangingVariables(NamedTuple):
    """The variables of a model that training changes.

    trainable: variables that gradients change.
    statistics: batch norm's moving means and variances that follow the data.
    """

    trainable: tuple[keras.Variable, ...]
    statistics: tuple[keras.Variable, ...]


def freeze_variables(
    model: keras.Model,
    *,
    trainable: Sequence[str] = (),
    freeze: Sequence[str] = (),
    batch_norm: Literal["none", "statistics", "all"] = "none",
    match: PatternMatch = "start",
) -> ChangingVariables:
    """Freezes some of a model's variables, and logs how many each expression matches.

    An expression applies to weights and batch-norm statistics alike.  A layer with frozen
    statistics normalises by them in training, too, so that a part that is frozen as a
    whole computes what it did before.  In google/automl and the TF Object Detection API
    the statistics went on moving; `(?!.*moving_)backbone` does that.

    What the model itself has frozen stays so.

    Args:
        model: built model; its batch-norm layers with frozen statistics are changed.
        trainable: regular expressions; all other variables are frozen.  Empty: none is.
            Source: the TF Object Detection API's `update_trainable_variables`.
        freeze: regular expressions; matching variables are frozen, whatever `trainable`
            says.  Source: google/automl's `var_freeze_expr`, the TF Object Detection API's
            `freeze_variables`.
        batch_norm: `statistics` freezes those of every batch norm, as in TPU Mask R-CNN,
            `all` scale and offset as well.
        match: see `matching_paths`.

    Raises:
        ConfigError: an expression matches nothing, there is no batch norm to freeze, or
            nothing is left to train.
    """
    layers = batch_norms(model)
    if batch_norm != "none" and not layers:
        raise ConfigError(f"train.freeze_batch_norm = {batch_norm}: {model.name} has no batch norm.")
    frozen = _frozen_by_expression(model.variables, trainable, freeze, match)
    for layer in layers:
        own = {layer.moving_mean.path, layer.moving_variance.path}
        if batch_norm == "all":
            frozen |= {layer.gamma.path, layer.beta.path}
        if batch_norm != "none" or frozen & own or layer.fixed_statistics or not layer.trainable:
            frozen |= own
            layer.fixed_statistics = True
    left = tuple(variable for variable in model.trainable_variables if variable.path not in frozen)
    if not left:
        raise ConfigError("train.trainable and train.freeze leave nothing to train. Freeze less.")
    statistics = [variable for layer in layers for variable in (layer.moving_mean, layer.moving_variance)]
    return ChangingVariables(left, tuple(variable for variable in statistics if variable.path not in frozen))


def _frozen_by_expression(
    variables: Sequence[keras.Variable], trainable: Sequence[str], freeze: Sequence[str], match: PatternMatch
) -> set[str]:
    frozen = matching_paths(variables, freeze, key="train.freeze", match=match)
    log_matches(variables, freeze, key="train.freeze", match=match)
    if trainable:
        chosen = matching_paths(variables, trainable, key="train.trainable", match=match)
        log_matches(variables, trainable, key="train.trainable", match=match)
        frozen |= {variable.path for variable in variables} - chosen
    return frozen


def decayed_variables(
    variables: Sequence[keras.Variable], exclude: Sequence[str] = (), *, match: PatternMatch = "start"
) -> tuple[keras.Variable, ...]:
    """Chooses the variables that decay: kernels, without biases, batch norm and fusion weights.

    Source: google/automl's rule (names ending in kernel or weight), which on other
    networks gives TPU Mask R-CNN's (neither batch norm nor bias).  Which kernels decay in the
    TF Object Detection API depends on the layer: see `docs/update_rules.md` for its EfficientDet.

    Args:
        variables: the variables that train, without frozen ones.
        exclude: regular expressions; kernels whose path matches do not decay.
        match: see `matching_paths`.

    Raises:
        ConfigError: an expression matches no kernel.
    """
    return kernels_without(variables, exclude, key=WEIGHT_DECAY_EXCLUDE_KEY, match=match)


def kernels_without(
    variables: Sequence[keras.Variable], exclude: Sequence[str], *, key: str, match: PatternMatch = "start"
) -> tuple[keras.Variable, ...]:
    """Chooses the kernels of convolutions and dense layers, except those that an expression matches.

    Args: see `matching_paths`; `exclude` holds the expressions.

    Raises:
        ConfigError: an expression matches no kernel.
    """
    kernels = all_kernels(variables)
    excluded = matching_paths(kernels, exclude, key=key, match=match) if kernels else set()
    return tuple(kernel for kernel in kernels if kernel.path not in excluded)


def all_kernels(variables: Sequence[keras.Variable]) -> tuple[keras.Variable, ...]:
    """Chooses the kernels of convolutions and dense layers, depthwise ones included, by their names."""
    return tuple(variable for variable in variables if variable.path.endswith("kernel"))


def matching_paths(
    variables: Sequence[keras.Variable], expressions: Sequence[str], *, key: str, match: PatternMatch = "start"
) -> set[str]:
    """Finds the paths that at least one expression matches.

    Source of matching from the start: google/automl's `var_freeze_expr`; of matching
    anywhere: the TF Object Detection API, whose `freeze_variables` and
    `update_trainable_variables` went through `slim.filter_variables`.

    Args:
        variables: at least one variable.
        expressions: valid regular expressions.
        key: configuration key, for messages.
        match: whether an expression has to match from the start of a path or anywhere in it.

    Raises:
        ConfigError: an expression matches no variable.
    """
    paths: set[str] = set()
    for expression in expressions:
        matches = _matches(variables, expression, match)
        if not matches:
            raise ConfigError(_no_match(variables, expression, key=key, match=match))
        paths |= matches
    return paths


def log_matches(
    variables: Sequence[keras.Variable], expressions: Sequence[str], *, key: str, match: PatternMatch = "start"
) -> None:
    """Logs how many variables each expression matches.

    The line is a warning if the expression matches all variables, or would match more of
    them anywhere in their paths than from the start.

    Args: see `matching_paths`.
    """
    for expression in expressions:
        count, anywhere = (len(_matches(variables, expression, kind)) for kind in (match, "anywhere"))
        line = f"{key}: {expression!r} matches {count} of {len(variables)} variables"
        if count < anywhere:
            _LOGGER.warning("%s from the start of their paths, and %d anywhere in them; %s", line, anywhere, _WIDEN)
        elif count == len(variables):
            _LOGGER.warning("%s, which is all", line)
        else:
            _LOGGER.info("%s", line)


def _matches(variables: Sequence[keras.Variable], expression: str, match: str) -> set[str]:
    return {variable.path for variable in variables if _SEARCH[match](expression, variable.path)}


def _no_match(variables: Sequence[keras.Variable], expression: str, *, key: str, match: PatternMatch) -> str:
    elsewhere = sorted(_matches(variables, expression, "anywhere"))
    if match == "start" and elsewhere:
        return (
            f"{key}: {expression!r} matches no variable from the start of its path, but {len(elsewhere)} further on, "
            f"such as {elsewhere[0]}; {_WIDEN}."
        )
    return f"{key}: {expression!r} matches no variable; they are named like {variables[0].path}."
