"""Resolves the baseline of an evaluation: the last model blessed before the candidate was trained.

TFX's `LatestBlessedModelStrategy` resolves to the latest blessed model of all.  If a
pipeline runs again unchanged, that is the candidate itself, blessed by the previous run:
evaluation and push would run again, and an improvement threshold would refuse the model
against itself.  Here only older models count, so that a repeated run resolves to the same
model, and everything after it stays cached.

A blessed model whose push was refused is no baseline until it is pushed: what was evaluated
of it cannot be served, so later models need not be better.  Its ModelBlessing stays, as the
pusher of a repeated run needs it.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import takewhile
from typing import Any, TypeVar

from tfx import types
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.common import resolver
from tfx.types import standard_artifacts

from components.history.read import is_refused, read_blessed, read_models
from components.history.records import Output
from components.history.stand_ins import resolve_to

_ID = "previous_blessed_model"
_CANDIDATE = "candidate"
_MODEL = "model"
_BLESSING = "model_blessing"
Key = TypeVar("Key", int, str)

_LOGGER = logging.getLogger("cocoflow.baseline")


def newest_blessed(models: Sequence[Key], blessed: Collection[Key], *, uri: Callable[[Key], str]) -> Key | None:
    """Returns the newest blessed model whose push was not refused.

    Args:
        models: keys of models, oldest first.
        blessed: keys of the blessed ones.
        uri: returns the URI of a model.
    """
    for model in reversed(models):
        if model in blessed:
            if not is_refused(uri(model)):
                return model
            _LOGGER.info("%s: blessed, but its push was refused, so an earlier model takes its place", uri(model))
    return None


def previous_blessed(
    models: Sequence[Key], blessed: Collection[Key], candidate: Key, *, uri: Callable[[Key], str]
) -> Key | None:
    """Returns the newest blessed model that is older than the candidate, and whose push was not refused.

    Args:
        models: keys of models, oldest first; all of them are older than a candidate that is not among them.
        blessed: keys of the blessed ones.
        candidate: key of the candidate.
        uri: returns the URI of a model.
    """
    return newest_blessed(list(takewhile(lambda model: model != candidate, models)), blessed, uri=uri)


class PreviousBlessedModelStrategy(resolver.ResolverStrategy):
    """Resolves to the newest blessed model that is older than the candidate and was not refused, or to none."""

    def resolve_artifacts(
        self, store: Any, input_dict: dict[str, list[types.Artifact]]
    ) -> dict[str, list[types.Artifact]]:
        """Selects among the pipeline's models; TFX calls it.

        Args:
            store: metadata store, not used.
            input_dict: the run's `candidate`, and every `model` and `model_blessing`
                of the pipeline.

        Returns:
            `model` and its `model_blessing`, one artifact each or none; `candidate` is empty.
        """
        resolved: dict[str, list[types.Artifact]] = {key: [] for key in input_dict}
        if not input_dict[_CANDIDATE]:
            return resolved
        # Ids ascend in the order of creation.  An interactive run passes every model of the
        # trainer as candidate: the newest is the real one.
        candidate = max(int(model.id) for model in input_dict[_CANDIDATE])
        models = {int(model.id): model for model in input_dict[_MODEL]}
        blessings = blessings_by_model(input_dict[_BLESSING])
        baseline = previous_blessed(
            sorted(models), blessings.keys(), candidate, uri=lambda model: str(models[model].uri)
        )
        if baseline is not None:
            resolved[_MODEL] = [models[baseline]]
            resolved[_BLESSING] = [blessings[baseline]]
        return resolved


def previous_blessed_model(candidate: types.BaseChannel) -> resolver.Resolver:
    """Creates a node whose `outputs["model"]` holds the baseline for `candidate`, or nothing.

    Its consumer declares the input optional.  Kubeflow supports only two strategies of TFX: compiled
    pipelines have `recorded_baseline` in its place.

    Args:
        candidate: `Model` channel of the trainer.
    """
    return resolver.Resolver(
        strategy_class=PreviousBlessedModelStrategy,
        candidate=candidate,
        model=types.Channel(type=standard_artifacts.Model),
        model_blessing=types.Channel(type=standard_artifacts.ModelBlessing),
    ).with_id(_ID)


@component
def RecordedBaseline(  # noqa: N802 (a component's name)
    candidate: InputArtifact[standard_artifacts.Model],
    model: OutputArtifact[standard_artifacts.Model],
    run_root: Parameter[str],
) -> None:
    """Resolves `model` like `PreviousBlessedModelStrategy`, from the history in `run_root`."""
    models = [record.uri for record in read_models(run_root)]
    baseline = previous_blessed(models, read_blessed(run_root), candidate.uri, uri=str)
    resolve_to(model, [] if baseline is None else [Output(baseline, "Model")])


def recorded_baseline(candidate: types.BaseChannel, *, run_root: str) -> BaseComponent:
    """Creates the component that takes the place of `previous_blessed_model` in a compiled pipeline.

    Args:
        candidate: `Model` channel of the trainer.
        run_root: folder of the run, with the history.
    """
    return RecordedBaseline(candidate=candidate, run_root=run_root).with_id(_ID)


def blessings_by_model(blessings: Iterable[types.Artifact]) -> dict[int, types.Artifact]:
    """Returns the positive blessings by the id of their model.

    Args:
        blessings: artifacts with the custom properties `blessed` (1 or 0) and
            `current_model_id`, as TFX's Evaluator sets them.
    """
    return {
        int(blessing.get_int_custom_property("current_model_id")): blessing
        for blessing in blessings
        if blessing.get_int_custom_property("blessed") == 1
    }
