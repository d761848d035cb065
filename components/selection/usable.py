"""Models that later ones may build on or are compared with: blessed, whole, not refused, not rolled back."""

import logging
from collections.abc import Sequence
from itertools import takewhile

from components.history.files import damage_of
from components.history.read import ModelRecord, PushRecord, read_blessed, read_pushes, read_refused
from components.saved_model_pusher.pushed_versions import ADDED_FILES, digest_of, read_rollback, whole_versions
from detection.storage.paths import join, name_of, parent
from schemas.artifacts import SERVING_DIR

_LOGGER = logging.getLogger("cocoflow.baseline")


def newest_usable(root: str, models: Sequence[ModelRecord]) -> ModelRecord | None:
    """Returns the newest model that is blessed by any verdict, and usable.

    A blessed model whose push was refused is not usable until it is pushed: what was evaluated of it cannot be
    served.  Nor is one that was rolled back, until it is published again.

    Args:
        root: `run.root`.
        models: models to choose from, oldest first.

    Raises:
        DataError: a record or a file cannot be read.
    """
    blessed, refused, pushes = read_blessed(root), read_refused(root), read_pushes(root)
    for model in reversed(models):
        if model.uri not in blessed:
            continue
        reason = _obstacle(model, refused, pushes)
        if reason is None:
            return model
        _LOGGER.info("%s: blessed, but %s, so an earlier model takes its place", model.uri, reason)
    return None


def _obstacle(model: ModelRecord, refused: set[str], pushes: Sequence[PushRecord]) -> str | None:
    """Returns why a blessed model is not usable; None: it is."""
    if model.uri in refused:
        return "its push was refused"
    damage = damage_of(model.record)
    if damage is not None:
        return damage
    return "it was rolled back" if _is_rolled_back(model, pushes) else None


def _is_rolled_back(model: ModelRecord, pushes: Sequence[PushRecord]) -> bool:
    """Returns whether a version of a push directory refuses the model, and no later one holds it."""
    return any(_refuses(directory, model, pushes) for directory in {parent(push.destination) for push in pushes})


def _refuses(directory: str, model: ModelRecord, pushes: Sequence[PushRecord]) -> bool:
    versions = whole_versions(directory)
    rollbacks = {number: rollback for number, path in versions.items() if (rollback := read_rollback(path))}
    if not rollbacks:
        return False
    digest = digest_of(join(model.uri, SERVING_DIR), ignored=ADDED_FILES)
    pushed = {
        int(name_of(push.destination))
        for push in pushes
        if parent(push.destination) == directory and (push.digest == digest or push.model == model.uri)
    }
    refused = max((number for number, one in rollbacks.items() if digest in one.refused_models), default=None)
    holds = {*pushed, *(number for number, one in rollbacks.items() if one.version in pushed)}
    return refused is not None and not any(number > refused for number in holds)


def models_before(models: Sequence[ModelRecord], candidate: str, *, identity: str) -> list[ModelRecord]:
    """Returns the models that were trained before the candidate, and before the first one of its identity.

    Args:
        models: models to choose from, oldest first.
        candidate: URI of the candidate.
        identity: identity of its training; "": not known.
    """
    return list(takewhile(lambda one: one.uri != candidate and (not identity or one.identity != identity), models))
