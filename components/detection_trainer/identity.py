"""What a training is a function of, so that an equal one is found again."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from tfx import types

from detection.training.initialization.fingerprint import weights_fingerprint
from schemas.config.config import Config
from schemas.config.config_io import parse_config
from schemas.config.training import WITHOUT_EFFECT

SETTINGS_KEY = "settings"
SPLIT_KEY = "split"
FIRST_WEIGHTS_KEY = "first_weights"
VALIDATION_SPLIT_KEY = "validation_split"

# Custom properties of a trained `Model`.
TRAINING_PROPERTY = "training"  # what it was trained of, but for the base model
BASE_MODEL_PROPERTY = "base_model_id"  # of the `Model` that its weights started from; 0: none


def training_properties(config: Config, split: str) -> dict[str, str]:
    """Parameters of the component that decide what it makes of its inputs.

    Args:
        config: `model` and `train` count, but for `WITHOUT_EFFECT`; with `train.validation` also `evaluate.split`.
        split: that is trained on.

    Raises:
        DataError: there are no weights at `train.init.checkpoint`.
    """
    first_weights = weights_fingerprint(
        checkpoint=config.train.init.checkpoint, backbone_weights=config.model.backbone_weights
    )
    settings = config.model_dump(
        mode="json", include={"model": True, "train": True}, exclude={"train": set(WITHOUT_EFFECT)}
    )
    return {
        SETTINGS_KEY: yaml.safe_dump(settings, sort_keys=True),
        SPLIT_KEY: split,
        FIRST_WEIGHTS_KEY: first_weights,
        VALIDATION_SPLIT_KEY: config.evaluate.split if config.train.validation.enabled else "",
    }


def config_of(properties: Mapping[str, Any], run: Config) -> Config:
    """The configuration to train with.

    Args:
        properties: of this execution; what they say goes first.
        run: the whole configuration of the run.
    """
    whole, settings = run.model_dump(mode="json"), yaml.safe_load(properties[SETTINGS_KEY])
    sections = {section: whole[section] | values for section, values in settings.items()}
    return parse_config(whole | sections)


def training_identity(properties: Mapping[str, Any], examples: Sequence[types.Artifact]) -> str:
    """A name for a training, whatever model it starts from: equal for equal parameters and examples."""
    parts = _said(properties)
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
    """Name of the folder that a training works in, so that it goes on after a kill.

    It follows from what the examples hold, not from where they lie: a run whose
    examples were written anew, or whose metadata were lost, goes on, too.

    Args:
        properties: of the execution.
        records: fingerprints of the records that it reads.
        categories: of the data set.
        base_model: that it starts from.
    """
    start = [] if base_model is None else [str(base_model.id), base_model.uri]
    return _digest([*_said(properties), *records, json.dumps(categories, sort_keys=True), *start])


def _said(properties: Mapping[str, Any]) -> list[str]:
    return [properties[key] for key in (SETTINGS_KEY, SPLIT_KEY, FIRST_WEIGHTS_KEY, VALIDATION_SPLIT_KEY)]


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
