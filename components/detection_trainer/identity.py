"""What a training is a function of, so that an equal one is found again."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from tfx import types

from detection.training.initialization.fingerprint import weights_fingerprint
from schemas.config import Config
from schemas.config_io import sections_to_yaml

SETTINGS_KEY = "settings"
SPLIT_KEY = "split"
FIRST_WEIGHTS_KEY = "first_weights"

# Custom properties of a trained `Model`.
TRAINING_PROPERTY = "training"  # what it was trained of, but for the base model
BASE_MODEL_PROPERTY = "base_model_id"  # of the `Model` that its weights started from; 0: none


def training_properties(config: Config, split: str) -> dict[str, str]:
    """Parameters of the component that decide what it makes of its inputs.

    Args:
        config: `model` and `train` count.
        split: that is trained on.

    Raises:
        DataError: there are no weights at `train.init.checkpoint`.
    """
    first_weights = weights_fingerprint(
        checkpoint=config.train.init.checkpoint, backbone_weights=config.model.backbone_weights
    )
    return {
        SETTINGS_KEY: sections_to_yaml(config, ("model", "train")),
        SPLIT_KEY: split,
        FIRST_WEIGHTS_KEY: first_weights,
    }


def training_identity(properties: Mapping[str, Any], examples: Sequence[types.Artifact]) -> str:
    """A name for a training, whatever model it starts from: equal for equal parameters and examples."""
    parts = [properties[key] for key in (SETTINGS_KEY, SPLIT_KEY, FIRST_WEIGHTS_KEY)]
    for artifact in sorted(examples, key=lambda one: int(one.id)):
        parts += [str(artifact.id), artifact.uri]
    return _digest(parts)


def working_name(identity: str, base_model: types.Artifact | None) -> str:
    """Name of the folder that a training works in, so that it goes on after a kill."""
    return identity if base_model is None else _digest([identity, str(base_model.id), base_model.uri])


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
