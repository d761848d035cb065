"""Models that later ones may build on or are compared with: blessed, whole, not refused, not rolled back."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile

from components.history.facts import ModelRecord, PushRecord
from components.history.files import damage_of
from components.history.read import read_blessed, read_pushes, read_refused
from components.history.records import READERS
from components.saved_model_pusher.pushed_versions import (
    ADDED_FILES,
    Rollback,
    digest_of,
    read_rollback,
    whole_versions,
)
from detection.storage.paths import join, name_of, parent
from detection.storage.versions import numbered_versions
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
    return damage_of(model.record) or ("it was rolled back" if _is_rolled_back(model, pushes) else None)


def _is_rolled_back(model: ModelRecord, pushes: Sequence[PushRecord]) -> bool:
    """Returns whether a model was rolled back in one of the push directories."""
    for directory in {parent(push.destination) for push in pushes}:
        rollbacks = read_rollbacks(whole_versions(directory).values())
        if rollbacks:
            digest = digest_of(join(model.uri, SERVING_DIR), ignored=ADDED_FILES)
            versions = [
                push.destination
                for push in pushes
                if parent(push.destination) == directory and (push.digest == digest or push.model == model.uri)
            ]
            if is_rolled_back(rollbacks, digest, versions):
                return True
    return False


def rolled_back_versions(root: str, directory: str) -> Iterator[str]:
    """Yields the versions of a push directory, by their paths, that runs of a root pushed and that were rolled back.

    Raises:
        DataError: a record or a folder cannot be read.
    """
    versions = [path for _, path in numbered_versions(directory)]
    rollbacks = read_rollbacks(versions)
    pushes = [push for push in read_pushes(root) if parent(push.destination) == directory] if rollbacks else []
    for push in pushes:
        same = [one.destination for one in pushes if one.digest == push.digest or one.model == push.model]
        if push.digest and is_rolled_back(rollbacks, push.digest, same):
            yield push.destination


def read_rollbacks(versions: Iterable[str]) -> dict[int, Rollback]:
    """Reads the rollbacks among the versions of a push directory, by the number of the version that each published.

    Args:
        versions: paths.

    Raises:
        DataError: the record of a rollback is damaged.
    """
    paths = list(versions)
    with ThreadPoolExecutor(READERS) as pool:
        read = zip(paths, pool.map(read_rollback, paths), strict=True)
        return {int(name_of(path)): rollback for path, rollback in read if rollback is not None}


def is_rolled_back(rollbacks: Mapping[int, Rollback], digest: str, versions: Iterable[str]) -> bool:
    """Returns whether a rollback refuses a model, and no later version holds it.

    Args:
        rollbacks: those of a push directory, see `read_rollbacks`.
        digest: of the model.
        versions: paths of the versions in this directory as which the model was pushed.
    """
    pushed = {int(name_of(path)) for path in versions}
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
