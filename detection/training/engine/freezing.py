"""Which variables training may change."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import keras

from detection.models.layers.batch_norm import BatchNormalization
from detection.training.engine.variable_paths import log_matches, matching_paths
from schemas.config.section import PatternMatch
from schemas.errors import ConfigError


class ChangingVariables(NamedTuple):
    """What training changes of a model.

    trainable: what gradients change.
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
    """Fixes some of a model's variables, and logs how many each expression matches.

    An expression speaks of weights and of batch-norm statistics alike.  A layer with
    fixed statistics normalises by them in training, too, so that what is frozen as a
    whole computes what it did before.  In google/automl and the TF Object Detection API
    the statistics went on moving; `(?!.*moving_)backbone` does that.

    Args:
        model: built; the batch-norm layers with fixed statistics are told so.
        trainable: regular expressions; all else is fixed.  Empty: nothing is.  Source:
            the TF Object Detection API's `update_trainable_variables`.
        freeze: regular expressions; what matches is fixed, whatever `trainable` says.
            Source: google/automl's `var_freeze_expr`, the TF Object Detection API's
            `freeze_variables`.
        batch_norm: of all batch norm, `statistics` fixes these only, as in TPU
            Mask R-CNN, `all` scale and offset as well.
        match: of the expressions; see `matching_paths`.

    Raises:
        ConfigError: an expression matches nothing, there is no batch norm to fix, or
            nothing is left to train.
    """
    # Keras has no public list of the layers inside layers.
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, BatchNormalization)]
    if batch_norm != "none" and not layers:
        raise ConfigError(f"train.freeze_batch_norm = {batch_norm}: {model.name} has no batch norm.")
    fixed = _fixed_by_expression(model.variables, trainable, freeze, match)
    for layer in layers:
        own = {layer.moving_mean.path, layer.moving_variance.path}
        if batch_norm == "all":
            fixed |= {layer.gamma.path, layer.beta.path}
        if batch_norm != "none" or fixed & own:
            fixed |= own
            layer.fixed_statistics = True
    left = tuple(variable for variable in model.trainable_variables if variable.path not in fixed)
    if not left:
        raise ConfigError("train.trainable and train.freeze leave nothing to train. Freeze less.")
    statistics = [variable for layer in layers for variable in (layer.moving_mean, layer.moving_variance)]
    return ChangingVariables(left, tuple(variable for variable in statistics if variable.path not in fixed))


def _fixed_by_expression(
    variables: Sequence[keras.Variable], trainable: Sequence[str], freeze: Sequence[str], match: PatternMatch
) -> set[str]:
    fixed = matching_paths(variables, freeze, key="train.freeze", match=match)
    log_matches(variables, freeze, key="train.freeze", match=match)
    if trainable:
        chosen = matching_paths(variables, trainable, key="train.trainable", match=match)
        log_matches(variables, trainable, key="train.trainable", match=match)
        fixed |= {variable.path for variable in variables} - chosen
    return fixed
