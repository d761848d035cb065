"""Which model a training starts from: the last one blessed before it.

TFX's own `LatestBlessedModelStrategy` gives the latest blessed model of all.  When a
pipeline runs again unchanged, that is the model that the run before trained: its
trainer would get another input than last time, and train again from its own result.
Here a training that was done before starts from what it started from then, so that it
is reused, with everything after it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfx import types
from tfx.dsl.components.common import resolver
from tfx.types import standard_artifacts

from components.detection_trainer.identity import (
    BASE_MODEL_PROPERTY,
    TRAINING_PROPERTY,
    training_identity,
    training_properties,
)
from pipelines.resolvers.baseline import newest_blessed
from schemas.artifacts import TRAIN_SPLIT
from schemas.config.config import Config

_EXAMPLES = "examples"
_MODEL = "model"
_BLESSING = "model_blessing"


class BaseModelStrategy(resolver.ResolverStrategy):
    """Resolves to the newest blessed model, or where this training was done before, to the one that it had, or to none.

    Args:
        properties: of the training: `training_properties`.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties

    def resolve_artifacts(
        self, store: Any, input_dict: dict[str, list[types.Artifact]]
    ) -> dict[str, list[types.Artifact]]:
        """Chooses among the pipeline's models; TFX calls it.

        Args:
            store: the metadata store, not needed.
            input_dict: the `examples` that will be trained on, and every `model` and
                `model_blessing` of the pipeline.

        Returns:
            `model`, one or empty; the others empty.
        """
        models = {int(model.id): model for model in input_dict[_MODEL]}
        base_id = self._base_of_same_training(models.values(), input_dict[_EXAMPLES])
        base = models.get(base_id) if base_id else None
        if base is None and base_id != 0:
            base = newest_blessed(models.values(), input_dict[_BLESSING])
        return {**{key: [] for key in input_dict}, _MODEL: [] if base is None else [base]}

    def _base_of_same_training(
        self, models: Iterable[types.Artifact], examples: Sequence[types.Artifact]
    ) -> int | None:
        """Id of the model that this training started from when it was done; 0: of none; None: it never was."""
        identity = training_identity(self._properties, examples)
        done = [model for model in models if model.get_string_custom_property(TRAINING_PROPERTY) == identity]
        newest = max(done, key=lambda model: int(model.id), default=None)
        return None if newest is None else int(newest.get_int_custom_property(BASE_MODEL_PROPERTY))


def model_to_start_from(examples: types.BaseChannel, *, config: Config) -> resolver.Resolver:
    """A node whose `outputs["model"]` holds the model to start from, or nothing.

    KFP cannot compile it: see `pipelines.resolvers.baseline`.

    Args:
        examples: what the trainer is given.
        config: `model` and `train` count.
    """
    return resolver.Resolver(
        strategy_class=BaseModelStrategy,
        config={"properties": training_properties(config, TRAIN_SPLIT)},
        examples=examples,
        model=types.Channel(type=standard_artifacts.Model),
        model_blessing=types.Channel(type=standard_artifacts.ModelBlessing),
    ).with_id("model_to_start_from")
