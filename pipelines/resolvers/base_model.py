"""Resolves the base model of a training: the last model blessed before it, unless its push was refused.

TFX's `LatestBlessedModelStrategy` resolves to the latest blessed model of all.  If a
pipeline runs again unchanged, that is the result of the previous run: the trainer would
get another input than before, and train again from its own result.  Here a finished
training resolves to its earlier base model, so that TFX reuses it and everything after it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, NamedTuple

from tfx import types
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.component.experimental.decorators import component
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.dsl.components.common import resolver
from tfx.orchestration.data_types import RuntimeParameter
from tfx.types import standard_artifacts

from components.detection_trainer.identity import (
    REMOTE_PARAMETERS,
    remote_properties,
    training_identity,
    training_of,
    training_properties,
)
from components.history.read import BASE_MODEL_PROPERTY, TRAINING_PROPERTY, read_blessed, read_models
from components.history.records import Output
from components.history.stand_ins import resolve_to, resolved
from pipelines.resolvers.baseline import Key, blessings_by_model, newest_blessed
from schemas.artifacts import TRAIN_SPLIT
from schemas.config.config import Config

_ID = "model_to_start_from"
_EXAMPLES = "examples"
_MODEL = "model"
_BLESSING = "model_blessing"


class Trained(NamedTuple, Generic[Key]):
    """A finished training.

    model: key of the model.
    training: identity of the training, without the base model.
    base_model: key of the model that its weights started from; None: no model.
    """

    model: Key
    training: str
    base_model: Key | None


def choose_base(
    trained: Sequence[Trained[Key]], blessed: Collection[Key], training: str, *, uri: Callable[[Key], str]
) -> Key | None:
    """Returns the newest blessed model whose push was not refused; for a finished training its earlier base model.

    Args:
        trained: finished trainings, oldest first.
        blessed: keys of the blessed models.
        training: identity of the training.
        uri: returns the URI of a model.
    """
    models = [one.model for one in trained]
    done = [one.base_model for one in trained if one.training == training]
    if done and (done[-1] is None or done[-1] in models):
        return done[-1]
    return newest_blessed(models, blessed, uri=uri)


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
        trained = [
            Trained(
                key,
                models[key].get_string_custom_property(TRAINING_PROPERTY),
                int(models[key].get_int_custom_property(BASE_MODEL_PROPERTY)) or None,
            )
            for key in sorted(models)
        ]
        identity = training_identity(self._properties, input_dict[_EXAMPLES])
        blessed = blessings_by_model(input_dict[_BLESSING]).keys()
        base = choose_base(trained, blessed, identity, uri=lambda model: str(models[model].uri))
        return {**{key: [] for key in input_dict}, _MODEL: [] if base is None else [models[base]]}


def model_to_start_from(examples: types.BaseChannel, *, config: Config) -> resolver.Resolver:
    """Creates a node whose `outputs["model"]` holds the base model, or nothing.

    Compiled pipelines have `recorded_base_model` in its place: see `pipelines.resolvers.baseline`.

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
    ).with_id(_ID)


@component
def RecordedBaseModel(  # noqa: N802, PLR0917 (a component's name, and TFX's form of its parameters)
    examples: InputArtifact[standard_artifacts.Examples],
    model: OutputArtifact[standard_artifacts.Model],
    run_root: Parameter[str],
    settings: Parameter[str],
    other_settings: Parameter[str],
    split: Parameter[str],
    data_root: Parameter[str],
    model_name: Parameter[str],
    train_steps: Parameter[int],
    train_batch_size: Parameter[int],
) -> None:
    """Resolves `model` like `BaseModelStrategy`, from the history in `run_root`.

    The other parameters are those of the trainer.
    """
    given = {
        "settings": settings,
        "other_settings": other_settings,
        "split": split,
        "data_root": data_root,
        "model_name": model_name,
        "train_steps": train_steps,
        "train_batch_size": train_batch_size,
    }
    _, properties = training_of(given, Config)
    identity = training_identity(properties, resolved([examples]))
    trained = [Trained(one.uri, one.training, one.base_model) for one in read_models(run_root)]
    base = choose_base(trained, read_blessed(run_root), identity, uri=str)
    resolve_to(model, [] if base is None else [Output(base, "Model")])


def recorded_base_model(
    examples: types.BaseChannel, *, config: Config, run_root: str, parameters: Mapping[str, RuntimeParameter]
) -> BaseComponent:
    """Creates the component that takes the place of `model_to_start_from` in a compiled pipeline.

    Args:
        examples: examples channel of the trainer.
        config: whole configuration.
        run_root: folder of the run, with the history.
        parameters: parameters of the submission, by name.
    """
    return RecordedBaseModel(
        examples=examples,
        run_root=run_root,
        **remote_properties(config, TRAIN_SPLIT),
        **{name: parameters[name] for name in REMOTE_PARAMETERS},
    ).with_id(_ID)
