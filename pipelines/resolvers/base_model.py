"""Resolves the base model of a training: the last model blessed before it.

TFX's `LatestBlessedModelStrategy` resolves to the latest blessed model of all.  If a
pipeline runs again unchanged, that is the result of the previous run: the trainer would
get another input than before, and train again from its own result.  Here a finished
training resolves to its earlier base model, so that TFX reuses it and everything after it.
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
    """Resolves to the newest blessed model or none; for a finished training, to its earlier base model or none.

    Args:
        properties: `training_properties` of the training.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties

    def resolve_artifacts(
        self, store: Any, input_dict: dict[str, list[types.Artifact]]
    ) -> dict[str, list[types.Artifact]]:
        """Selects among the pipeline's models; TFX calls it.

        Args:
            store: metadata store, not used.
            input_dict: `examples` of the training, and every `model` and
                `model_blessing` of the pipeline.

        Returns:
            `model` with one artifact or none; the other keys are empty.
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
        """Returns the id of the earlier base model of this training; 0: it had none; None: never finished."""
        identity = training_identity(self._properties, examples)
        done = [model for model in models if model.get_string_custom_property(TRAINING_PROPERTY) == identity]
        newest = max(done, key=lambda model: int(model.id), default=None)
        return None if newest is None else int(newest.get_int_custom_property(BASE_MODEL_PROPERTY))


def model_to_start_from(examples: types.BaseChannel, *, config: Config) -> resolver.Resolver:
    """Creates a node whose `outputs["model"]` holds the base model, or nothing.

    KFP cannot compile it: see `pipelines.resolvers.baseline`.

    Args:
        examples: examples channel of the trainer.
        config: configuration with the sections `model` and `train`.
    """
    return resolver.Resolver(
        strategy_class=BaseModelStrategy,
        config={"properties": training_properties(config, TRAIN_SPLIT)},
        examples=examples,
        model=types.Channel(type=standard_artifacts.Model),
        model_blessing=types.Channel(type=standard_artifacts.ModelBlessing),
    ).with_id("model_to_start_from")
