"""Identity of a training: the inputs that it is a function of, so that an equal one is found again."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from tfx import types

from detection.training.initialization.locate import weights_fingerprint
from schemas.config.config import Config
from schemas.config.config_io import parse_config, to_yaml
from schemas.config.training import WITHOUT_EFFECT

CONFIG_KEY = "settings"
SPLIT_KEY = "split"
INITIAL_WEIGHTS_KEY = "first_weights"
VALIDATION_SPLIT_KEY = "validation_split"

# Custom properties of a trained `Model`.
TRAINING_PROPERTY = "training"  # identity of the training, without the base model
BASE_MODEL_PROPERTY = "base_model_id"  # id of the `Model` that its weights started from; 0: none


def training_properties(config: Config, split: str) -> dict[str, str]:
    """Returns the component's execution parameters that decide about its outputs.

    Args:
        config: its sections `model` and `train` count, without `WITHOUT_EFFECT`; with `train.validation` also
            `evaluate.split`.
        split: name of the split to train on.

    Raises:
        DataError: `train.init.checkpoint` has no weights.
    """
    initial_weights = weights_fingerprint(
        checkpoint=config.train.init.checkpoint, backbone_weights=config.model.backbone_weights
    )
    return {
        CONFIG_KEY: to_yaml(config, ("model", "train"), exclude={"train": WITHOUT_EFFECT}),
        SPLIT_KEY: split,
        INITIAL_WEIGHTS_KEY: initial_weights,
        VALIDATION_SPLIT_KEY: config.evaluate.split if config.train.validation.enabled else "",
    }


def config_of(properties: Mapping[str, Any], run: Config) -> Config:
    """Returns the configuration to train with.

    Args:
        properties: parameters of this execution, whose keys win.
        run: the whole configuration of the run, for the keys that do not decide about the outputs.
    """
    tree = run.model_dump(mode="json")
    for section, keys in yaml.safe_load(properties[CONFIG_KEY]).items():
        tree[section] |= keys
    return parse_config(tree)


def training_identity(properties: Mapping[str, Any], examples: Sequence[types.Artifact]) -> str:
    """Returns a name of a training, whatever model it starts from: equal for equal parameters and examples."""
    parts = _deciding(properties)
    for artifact in sorted(examples, key=lambda one: int(one.id)):
        parts += [str(artifact.id), artifact.uri]
    return _digest(parts)


def working_name(
    properties: Mapping[str, Any],
    *,
    records: Sequence[str],
    categories: Sequence[Mapping[str, Any]],
    base_model: types.Artifact | None,
) -> str:
    """Returns the name of a training's working folder, which a killed training resumes in.

    It depends on the content of the examples, not on their place: a run whose examples
    were written again, or whose metadata were lost, resumes, too.

    Args:
        properties: parameters of the execution.
        records: fingerprints of the records that it reads.
        categories: COCO categories of the data set.
        base_model: model that it starts from; None: no model.
    """
    start = [] if base_model is None else [str(base_model.id), base_model.uri]
    return _digest([*_deciding(properties), *records, json.dumps(categories, sort_keys=True), *start])


def _deciding(properties: Mapping[str, Any]) -> list[str]:
    return [properties[key] for key in (CONFIG_KEY, SPLIT_KEY, INITIAL_WEIGHTS_KEY, VALIDATION_SPLIT_KEY)]


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
