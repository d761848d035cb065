"""Resolves the baseline of an evaluation: the last model blessed before the candidate was trained.

TFX's `LatestBlessedModelStrategy` resolves to the latest blessed model of all.  If a
pipeline runs again unchanged, that is the candidate itself, blessed by the previous run:
evaluation and push would run again, and an improvement threshold would refuse the model
against itself.  Here only older models count, so that a repeated run resolves to the same
model, and everything after it stays cached.
"""

from collections.abc import Iterable
from typing import Any

from tfx import types
from tfx.dsl.components.common import resolver
from tfx.types import standard_artifacts

_CANDIDATE = "candidate"
_MODEL = "model"
_BLESSING = "model_blessing"


class PreviousBlessedModelStrategy(resolver.ResolverStrategy):
    """Resolves to the newest blessed model that is older than the candidate, or to none."""

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
        # Ids ascend in the order of creation.  An interactive run passes every model of the
        # trainer as candidate: the newest is the real one.
        candidate_id = max((model.id for model in input_dict[_CANDIDATE]), default=0)
        older = [model for model in input_dict[_MODEL] if model.id < candidate_id]
        baseline = newest_blessed(older, input_dict[_BLESSING])
        if baseline is not None:
            resolved[_MODEL] = [baseline]
            resolved[_BLESSING] = [blessings_by_model(input_dict[_BLESSING])[baseline.id]]
        return resolved


def previous_blessed_model(candidate: types.BaseChannel) -> resolver.Resolver:
    """Creates a node whose `outputs["model"]` holds the baseline for `candidate`, or nothing.

    Its consumer declares the input optional.  KFP cannot compile it, as it supports only
    two strategies of TFX.

    Args:
        candidate: `Model` channel of the trainer.
    """
    return resolver.Resolver(
        strategy_class=PreviousBlessedModelStrategy,
        candidate=candidate,
        model=types.Channel(type=standard_artifacts.Model),
        model_blessing=types.Channel(type=standard_artifacts.ModelBlessing),
    ).with_id("previous_blessed_model")


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


def newest_blessed(models: Iterable[types.Artifact], blessings: Iterable[types.Artifact]) -> types.Artifact | None:
    """Returns the newest blessed model; ids ascend in the order of creation."""
    blessed = blessings_by_model(blessings)
    return max((model for model in models if model.id in blessed), key=lambda model: int(model.id), default=None)
