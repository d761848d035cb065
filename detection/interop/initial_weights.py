"""Initial weights of a training that another program's checkpoint holds; they are imported in memory."""

import logging
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from detection.interop.programs import PROGRAMS, program_of
from detection.models.registry import detector_config
from detection.weights.checkpoint_format import Shape
from detection.weights.imported_model import import_model, open_original
from schemas.config.config import Config
from schemas.config.train.initialization import SourceWeights
from schemas.config.train.optimization import WeightsChoice

_LOGGER = logging.getLogger("cocoflow.trainer")
_CHOICES: Mapping[SourceWeights, WeightsChoice] = {"auto": "auto", "raw": "raw", "averaged": "ema"}


class ImportedWeights(NamedTuple):
    """Weights under the paths of our variables, with the attributes of a `WeightSource`.

    prefix: prefix of the original checkpoint.
    values: weights by path.
    ema_names: paths of the EMA weights.
    config: configuration with which the network is the other program's.
    only_backbone: the checkpoint has no detector.
    """

    prefix: str
    values: Mapping[str, np.ndarray]
    ema_names: frozenset[str]
    config: Config
    only_backbone: bool

    @property
    def categories(self) -> None:
        """No checkpoint of another program names its classes."""
        return

    @property
    def shapes(self) -> dict[str, Shape]:
        """Shapes by path."""
        return {path: values.shape for path, values in self.values.items()}

    def read(self, name: str) -> np.ndarray:
        """Returns the values of a variable."""
        return self.values[name]


def import_initial_weights(checkpoint: str, config: Config, weights: SourceWeights) -> ImportedWeights | None:
    """Reads another program's checkpoint for a training.

    Args:
        checkpoint: as in `train.init.checkpoint`.
        config: configuration of the training.
        weights: `train.init.weights`.

    Returns:
        None: not the checkpoint of a program that is known.

    Raises:
        ConfigError: the program has no such network as the training.
        DataError: the checkpoint cannot be read, or is of another network.
    """
    detector = detector_config(config.model.name)
    kinds = (kind for program in PROGRAMS for kind in program_of(program).formats if kind.is_tensorflow)
    fitting = (kind for kind in kinds if isinstance(detector, kind.config_class))
    kind = next((kind for kind in fitting if open_original(kind, checkpoint).is_known), None)
    if kind is None:
        return None
    model = import_model(kind, checkpoint, config, weights=_CHOICES[weights])
    _LOGGER.info("train.init.checkpoint is one of %s; %d of its variables are not read", kind.title, len(model.unused))
    for difference in model.differences:
        _LOGGER.warning("%s", difference)
    values = {**model.raw, **model.ema}
    return ImportedWeights(model.prefix, values, frozenset(model.ema), model.config, model.categories is None)
