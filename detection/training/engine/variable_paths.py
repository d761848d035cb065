"""Choosing variables by regular expressions on their paths."""

import logging
import re
from collections.abc import Sequence

import keras

from schemas.config.section import PatternMatch
from schemas.errors import ConfigError

_LOGGER = logging.getLogger("cocoflow.trainer")
_SEARCH = {"start": re.match, "anywhere": re.search}


def matching_paths(
    variables: Sequence[keras.Variable], expressions: Sequence[str], *, key: str, match: PatternMatch = "start"
) -> set[str]:
    """Finds the paths that at least one expression matches.

    Source of matching from the start: google/automl's `var_freeze_expr`; of matching
    anywhere: the TF Object Detection API, whose `freeze_variables` and
    `update_trainable_variables` went through `slim.filter_variables`.

    Args:
        variables: at least one.
        expressions: valid regular expressions.
        key: of the configuration, for messages.
        match: whether an expression has to match from the start of a path or anywhere in it.

    Raises:
        ConfigError: an expression matches none of them.
    """
    found: set[str] = set()
    for expression in expressions:
        matches = _matches(variables, expression, match)
        if not matches:
            raise ConfigError(_no_match(variables, expression, key=key, match=match))
        found |= matches
    return found


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
        told = f"{key}: {expression!r} matches {count} of {len(variables)} variables"
        if count < anywhere:
            _LOGGER.warning("%s from the start of their paths, and %d anywhere in them; %s", told, anywhere, _WIDEN)
        elif count == len(variables):
            _LOGGER.warning("%s, which is all", told)
        else:
            _LOGGER.info("%s", told)


_WIDEN = "to match anywhere, begin with '.*' or set train.pattern_match=anywhere"


def kernels_without(
    variables: Sequence[keras.Variable], exclude: Sequence[str], *, key: str, match: PatternMatch = "start"
) -> tuple[keras.Variable, ...]:
    """Chooses the kernels of convolutions and dense layers, except those that an expression matches.

    Args: see `matching_paths`; `exclude` holds the expressions.

    Raises:
        ConfigError: an expression matches no kernel.
    """
    kernels = all_kernels(variables)
    left_out = matching_paths(kernels, exclude, key=key, match=match) if kernels else set()
    return tuple(kernel for kernel in kernels if kernel.path not in left_out)


def all_kernels(variables: Sequence[keras.Variable]) -> tuple[keras.Variable, ...]:
    """Chooses the kernels of convolutions and dense layers, depthwise ones included, by their names."""
    return tuple(variable for variable in variables if variable.path.endswith("kernel"))


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
