"""Choosing variables by regular expressions on their paths."""

import re
from collections.abc import Sequence

import keras

from schemas.errors import ConfigError


def matching_paths(variables: Sequence[keras.Variable], expressions: Sequence[str], *, key: str) -> set[str]:
    """Paths of the variables that an expression matches, from the start of the path.

    Source of matching from the start: google/automl's `var_freeze_expr`.

    Args:
        variables: at least one.
        expressions: valid regular expressions.
        key: of the configuration, for messages.

    Raises:
        ConfigError: an expression matches none of them.
    """
    found: set[str] = set()
    for expression in expressions:
        matches = {variable.path for variable in variables if re.match(expression, variable.path)}
        if not matches:
            raise ConfigError(f"{key}: {expression!r} matches no variable; they are named like {variables[0].path}.")
        found |= matches
    return found
