"""Selects variables by regular expressions on their paths: to train, to decay, to adapt with LARS."""

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
    """Freezes some of a model's variables, and logs the number of matches of each expression.

    Expressions apply to weights and batch-norm statistics alike.  A layer with frozen statistics
    uses them for normalization in training, too, so the output of a completely frozen part does not
    change.  In google/automl and the TF Object Detection API, the statistics are still updated;
    `(?!.*moving_)backbone` has the same effect.

    Variables that the model itself has frozen stay frozen.

    Args:
        model: built model; its batch-norm layers with frozen statistics are changed.
        trainable: regular expressions; all other variables are frozen.  Empty: no restriction.
            Source: the TF Object Detection API's `update_trainable_variables`.
        freeze: regular expressions; matching variables are frozen, even if `trainable` matches
            them.  Source: google/automl's `var_freeze_expr`, the TF Object Detection API's
            `freeze_variables`.
        batch_norm: `statistics` freezes the statistics of every batch norm, as in TPU Mask R-CNN,
            `all` also scale and offset.
        match: whether expressions match at the start of a path or anywhere in it.

    Raises:
        ConfigError: an expression matches nothing, the model has no batch norm to freeze, or no
            variable is left to train.
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
        raise ConfigError("train.trainable and train.freeze leave no variable to train. Freeze fewer.")
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
    """Selects the variables that decay: kernels, without biases, batch norm and fusion weights.

    Source: google/automl's rule (names ending in kernel or weight), which on other networks equals
    TPU Mask R-CNN's (neither batch norm nor bias).  In the TF Object Detection API, decay depends on
    the layer: `docs/update_rules.md` describes its EfficientDet.

    Args:
        variables: trainable variables, without frozen ones.
        exclude: regular expressions; matching kernels do not decay.
        match: whether expressions match at the start of a path or anywhere in it.

    Raises:
        ConfigError: an expression matches no kernel.
    """
    return kernels_without(variables, exclude, key=WEIGHT_DECAY_EXCLUDE_KEY, match=match)


def kernels_without(
    variables: Sequence[keras.Variable], exclude: Sequence[str], *, key: str, match: PatternMatch = "start"
) -> tuple[keras.Variable, ...]:
    """Selects the kernels of convolutions and dense layers, except matches of `exclude`.

    Arguments as in `matching_paths`.

    Raises:
        ConfigError: an expression matches no kernel.
    """
    kernels = all_kernels(variables)
    excluded = matching_paths(kernels, exclude, key=key, match=match) if kernels else set()
    return tuple(kernel for kernel in kernels if kernel.path not in excluded)


def all_kernels(variables: Sequence[keras.Variable]) -> tuple[keras.Variable, ...]:
    """Selects the kernels of convolutions and dense layers, depthwise ones included, by their names."""
    return tuple(variable for variable in variables if variable.path.endswith("kernel"))


def matching_paths(
    variables: Sequence[keras.Variable], expressions: Sequence[str], *, key: str, match: PatternMatch = "start"
) -> set[str]:
    """Finds the paths that at least one expression matches.

    Source: google/automl's `var_freeze_expr` matches from the start; the TF Object Detection API's
    `freeze_variables` and `update_trainable_variables` match anywhere, by `slim.filter_variables`.

    Args:
        variables: at least one variable.
        expressions: valid regular expressions.
        key: configuration key, for messages.
        match: whether expressions match at the start of a path or anywhere in it.

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
    """Logs the number of variables that each expression matches.

    The line is a warning if the expression matches all variables, or would match more of
    them anywhere in their paths than from the start.  Arguments as in `matching_paths`.
    """
    for expression in expressions:
        count, anywhere = (len(_matches(variables, expression, kind)) for kind in (match, "anywhere"))
        line = f"{key}: {expression!r} matches {count} of {len(variables)} variables"
        if count < anywhere:
            _LOGGER.warning("%s from the start of their paths, and %d anywhere in them; %s", line, anywhere, _WIDEN)
        elif count == len(variables):
            _LOGGER.warning("%s: all of them", line)
        else:
            _LOGGER.info("%s", line)


def _matches(variables: Sequence[keras.Variable], expression: str, match: str) -> set[str]:
    return {variable.path for variable in variables if _SEARCH[match](expression, variable.path)}


def _no_match(variables: Sequence[keras.Variable], expression: str, *, key: str, match: PatternMatch) -> str:
    elsewhere = sorted(_matches(variables, expression, "anywhere"))
    if match == "start" and elsewhere:
        return (
            f"{key}: {expression!r} matches no variable from the start of its path, but {len(elsewhere)} anywhere in "
            f"it, such as {elsewhere[0]}; {_WIDEN}."
        )
    return f"{key}: {expression!r} matches no variable; an example of a path is {variables[0].path}."
