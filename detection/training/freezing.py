"""Which variables train."""

import re
from collections.abc import Sequence

import keras

from schemas.errors import ConfigError


def trainable_variables(model: keras.Model, freeze: Sequence[str]) -> tuple[keras.Variable, ...]:
    """The model's trainable variables, minus those whose path matches one of `freeze`.

    Args:
        model: built.
        freeze: regular expressions, matched from the start of the path
            (as google/automl's `var_freeze_expr`).

    Raises:
        ConfigError: an expression that is no regular expression or matches nothing,
            or nothing is left to train.
    """
    left = tuple(model.trainable_variables)
    for expression in freeze:
        try:
            pattern = re.compile(expression)
        except re.error as error:
            raise ConfigError(f"train.freeze: {expression!r} is no regular expression: {error}.") from None
        matching = {variable.path for variable in model.trainable_variables if pattern.match(variable.path)}
        if not matching:
            example = model.trainable_variables[0].path
            raise ConfigError(f"train.freeze: {expression!r} matches no variable; they are named like {example}.")
        left = tuple(variable for variable in left if variable.path not in matching)
    if not left:
        raise ConfigError("train.freeze leaves nothing to train. Freeze less.")
    return left
