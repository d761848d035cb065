"""Selects the base model of a training: the newest usable model; for a finished training its earlier base model.

So a repeated run trains nothing: its training would otherwise start from its own result.
"""

from collections.abc import Mapping
from typing import Any

from tfx import types
from tfx.dsl.component.experimental.annotations import InputArtifact, OutputArtifact, Parameter
from tfx.dsl.components.base.base_component import BaseComponent
from tfx.types import standard_artifacts

from components.detection_trainer.identity import trainer_properties, training_identity, training_of
from components.history.facts import ModelRecord
from components.history.read import read_models
from components.history.stand_ins import resolve_to, resolved
from components.selection.node import selecting
from components.selection.usable import newest_usable
from schemas.artifacts import TRAIN_SPLIT
from schemas.config.config import Config

_ID = "model_to_start_from"


@selecting(_ID)
def BaseModel(  # noqa: N802, PLR0917 (a component's name, and TFX's form of its parameters)
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
    """Resolves `model` to the base model, or to no model; the other parameters are those of the trainer."""
    given = {
        "settings": settings,
        "other_settings": other_settings,
        "split": split,
        "data_root": data_root,
        "model_name": model_name,
        "train_steps": train_steps,
        "train_batch_size": train_batch_size,
    }
    _, properties = training_of(given)
    base = _base_of(run_root, training_identity(properties, resolved([examples])))
    resolve_to(model, [] if base is None else [base.record.output("model")])


def _base_of(root: str, training: str) -> ModelRecord | None:
    models = read_models(root)
    by_uri: dict[str | None, ModelRecord | None] = {None: None, **{model.uri: model for model in models}}
    finished = [model.base_model for model in models if model.training == training]
    if finished and finished[-1] in by_uri:
        return by_uri[finished[-1]]
    return newest_usable(root, models)


def model_to_start_from(
    examples: types.BaseChannel, *, config: Config, run_root: str, parameters: Mapping[str, Any]
) -> BaseComponent:
    """Creates a node whose `outputs["model"]` stands for the base model, or for no model.

    Args:
        examples: examples channel of the trainer.
        config: whole configuration.
        run_root: folder of the run, with the history.
        parameters: values of `REMOTE_PARAMETERS`, or parameters of the submission.
    """
    return BaseModel(
        examples=examples, run_root=run_root, **trainer_properties(config, TRAIN_SPLIT), **parameters
    ).with_id(_ID)
