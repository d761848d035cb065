"""Identity of a training: the inputs that it is a function of, so that an equal one is found again."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from tfx import types

from components.history.execution import ReuseRule
from components.history.records import IDENTITY_PROPERTY
from detection.pretrained.choice import configured_weights
from detection.weights.locate import weights_fingerprint
from schemas.config.config import MODEL_WITHOUT_EFFECT, Config
from schemas.config.config_io import from_yaml, parse_config, to_yaml
from schemas.config.runtime_parameters import with_parameters
from schemas.config.train.training import LENGTHS, WITHOUT_EFFECT
from schemas.config.yaml_text import parse_yaml

CONFIG_KEY = "settings"
OTHER_SETTINGS_KEY = "other_settings"  # YAML of the settings that are not in CONFIG_KEY
SPLIT_KEY = "split"
INITIAL_WEIGHTS_KEY = "first_weights"
VALIDATION_SPLIT_KEY = "validation_split"

# Parameters of a submission that reach a training.
REMOTE_PARAMETERS = ("data_root", "model_name", "train_steps", "train_batch_size")


def trainer_properties(config: Config, split: str) -> dict[str, str]:
    """Returns the execution parameters of a training, which hold all settings and need no file.

    Sections and keys that do not affect the training are not included.

    Args:
        config: the complete configuration.
        split: name of the split to train on.
    """
    included: dict[str, Any] = {
        "data": True,
        "run": {"root", "name"},
        "train": set(WITHOUT_EFFECT),
        "model": set(MODEL_WITHOUT_EFFECT),
    }
    if config.train.validation.enabled:
        included["evaluate"] = {"split", "batch_size", "analysis", "losses"}
    others = config.model_dump(mode="json", include=included)
    return {
        CONFIG_KEY: _deciding_settings(config),
        OTHER_SETTINGS_KEY: yaml.safe_dump(others, sort_keys=True),
        SPLIT_KEY: split,
    }


def training_of(properties: Mapping[str, Any]) -> tuple[Config, dict[str, str]]:
    """Returns the configuration to train with, and the parameters that decide about the outputs.

    Args:
        properties: parameters of this execution.

    Raises:
        ConfigError: a parameter of the submission is invalid.
        DataError: `train.init.checkpoint` has no weights.
    """
    tree = from_yaml(properties[OTHER_SETTINGS_KEY]).model_dump(mode="json")
    for section, keys in parse_yaml(properties[CONFIG_KEY], CONFIG_KEY).items():
        tree[section] |= keys
    config = with_parameters(parse_config(tree), properties)
    # Published weights count by name: `auto` is decided when the training starts, and never again.
    initial_weights = weights_fingerprint(**configured_weights(config)._asdict())
    return config, {
        CONFIG_KEY: _deciding_settings(config),
        SPLIT_KEY: properties[SPLIT_KEY],
        INITIAL_WEIGHTS_KEY: initial_weights,
        VALIDATION_SPLIT_KEY: config.validation_split or "",
    }


REUSE_RULE = ReuseRule(deciding=lambda properties: training_of(properties)[1])


def training_identity(properties: Mapping[str, Any], examples: Sequence[types.Artifact]) -> str:
    """Returns a name of a training, whatever model it starts from: equal for equal parameters and examples."""
    identities = sorted(artifact.get_string_custom_property(IDENTITY_PROPERTY) for artifact in examples)
    return _digest([*_deciding(properties), *identities])


def working_name(
    properties: Mapping[str, Any],
    *,
    records: Sequence[str],
    categories: Sequence[Mapping[str, Any]],
    base_model: types.Artifact | None,
    shorter: str = "",
) -> str:
    """Returns the name of a training's working folder, which a killed training resumes in.

    It depends on the content of the examples, not on their place: a run whose examples
    were written again, or whose history was lost, resumes, too.

    Args:
        properties: parameters of the execution.
        records: fingerprints of the records that it reads.
        categories: COCO categories of the data set.
        base_model: model that it starts from; None: no model.
        shorter: name of the training that it continues; "": no such training.
    """
    start = [] if base_model is None else [base_model.get_string_custom_property(IDENTITY_PROPERTY) or base_model.uri]
    start += [shorter] if shorter else []
    return _digest([*_deciding(properties), *records, json.dumps(categories, sort_keys=True), *start])


def series_name(properties: Mapping[str, Any], **parts: Any) -> str:
    """Returns the `working_name` without the length: the name of all trainings that differ in nothing else."""
    settings = parse_yaml(properties[CONFIG_KEY], CONFIG_KEY)
    settings["train"] = {key: value for key, value in settings["train"].items() if key not in LENGTHS}
    return working_name({**properties, CONFIG_KEY: yaml.safe_dump(settings)}, **parts)


def _deciding(properties: Mapping[str, Any]) -> list[str]:
    return [properties[key] for key in (CONFIG_KEY, SPLIT_KEY, INITIAL_WEIGHTS_KEY, VALIDATION_SPLIT_KEY)]


def _deciding_settings(config: Config) -> str:
    return to_yaml(config, ("model", "train"), exclude={"train": WITHOUT_EFFECT, "model": MODEL_WITHOUT_EFFECT})


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
