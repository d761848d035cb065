"""Imports a checkpoint of another program as a model of ours."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from detection.datasets.importers.label_map import read_label_map
from detection.models.registry import detector_config, detector_from_config
from detection.storage.atomic import write_json, write_text
from detection.storage.files import make_folder
from detection.storage.paths import join, literal_path
from detection.weights.checkpoint_format import (
    CheckpointFormat,
    Variables,
    VariableSource,
    class_categories,
    row_categories,
    unused_variables,
)
from schemas.artifacts import (
    CHECKPOINTS,
    CONFIG_YAML,
    EMA_PART,
    IMPORT_JSON,
    LABELS_JSON,
    MODEL_PART,
    ORIGIN_JSON,
    STEP_PART,
)
from schemas.config.config import Config
from schemas.config.config_io import to_yaml
from schemas.config.input_size import ResizeConfig
from schemas.config.section import merged, nested
from schemas.config.train.optimization import WeightsChoice
from schemas.errors import ConfigError, disk_refusals_explained

_STEP = 0  # the checkpoint of an imported model is at step 0
_CHECKPOINT = f"{CHECKPOINTS}/ckpt-{_STEP}"
_ANY_CATEGORIES = [{"keypoints": ["1"]}]  # of the model of a backbone alone
MODEL_INDEX = f"{_CHECKPOINT}.index"  # readers only recognize folders with this file

Weights = Mapping[str, np.ndarray]


class ImportedModel(NamedTuple):
    """A network of another program, with our names.

    prefix: prefix of the original checkpoint.
    step: its number of training steps; None: unknown.
    config: configuration of the model.
    categories: categories of the class outputs; `name` is None for an output without a category.
        None: only a backbone, without categories.
    raw: weights by path.
    ema: EMA weights by path; empty: none, or not requested.
    unused: variables of the checkpoint that the network does not have.
    missing: paths of the network's variables that the checkpoint does not have: none, those outside of the
        backbone, or those of a head that no checkpoint of the program has.
    differences: sentences on differences between the network and the program's.
    published: content of `schemas.artifacts.ORIGIN_JSON`, of weights that others published; None: not known.
    """

    prefix: str
    step: int | None
    config: Config
    categories: list[dict[str, Any]] | None
    raw: Weights
    ema: Weights
    unused: tuple[str, ...]
    missing: tuple[str, ...]
    differences: tuple[str, ...] = ()
    published: Mapping[str, Any] | None = None

    def report(self) -> dict[str, Any]:
        """Returns the content of `schemas.artifacts.IMPORT_JSON`."""
        return {
            "checkpoint": self.prefix,
            "published": self.published,
            "step": self.step,
            "variables": len(self.raw),
            "ema_variables": len(self.ema),
            "unused": self.unused,
            "missing": self.missing,
            "differences": self.differences,
        }


def import_model(
    kind: type[CheckpointFormat],
    checkpoint: str | Path,
    config: Config,
    *,
    weights: WeightsChoice = "auto",
    label_map: str | Path | None = None,
) -> ImportedModel:
    """Reads a checkpoint of another program.

    Args:
        kind: its format.
        checkpoint: prefix, with or without `.index`, or a folder (its newest checkpoint); TF1, with variable
            names, or TF2, with a graph of objects; local or remote.
        config: configuration with the section `model` of the model; values that it does not set are
            those of the program.
        weights: `auto`: the raw weights, and the EMA weights if there are any; `ema`: EMA weights are
            required; `raw`: only the raw weights.
        label_map: label map or COCO file of the training: class i is the id i + 1.  None: COCO's
            categories for 90 classes, else the ids as names.

    Raises:
        ConfigError: a detector that the program does not have, or an override that does not fit.
        DataError: the checkpoint cannot be read, is of another variant, or has no EMA weights or not all
            variables; or the label map does not fit.
    """
    name = config.model.name
    _require_family(config, kind)
    raw = kind.opened(checkpoint, "raw")
    original = kind(raw.shapes, raw.prefix)
    original.read = raw.read
    config = _complete(config, original)
    preset = detector_config(name, image_size=config.model.image_size, overrides=config.model.overrides)
    original.require_variant(preset, name)
    count = original.class_count(preset)
    categories = None
    if count is not None:
        rows = row_categories if kind.own_rows else class_categories
        categories = rows(count, None if label_map is None else read_label_map(label_map))
        categories = original.categories(categories)
    detector = detector_from_config(config.model, categories or _ANY_CATEGORIES)
    held = detector.variables if count is not None else detector.backbone_variables
    sources = original.sources({variable.path: tuple(variable.shape) for variable in held}, preset)
    weights_there = {name: shape for name, shape in raw.shapes.items() if name not in kind.options}
    unused = unused_variables(sources, weights_there, where=raw.prefix)
    ema = None if weights == "raw" else kind.opened(raw.prefix, "averaged" if weights == "ema" else weights)
    return ImportedModel(
        prefix=raw.prefix,
        step=raw.step,
        config=config,
        categories=categories,
        raw=_values(raw, sources),
        ema={} if ema is None else _values(ema, sources, only=ema.ema_names),
        unused=unused,
        missing=tuple(variable.path for variable in detector.variables if variable.path not in sources),
        differences=original.differences(preset),
    )


def open_original(kind: type[CheckpointFormat], checkpoint: str | Path) -> CheckpointFormat:
    """Opens a checkpoint in a format that may be another one.

    Raises:
        DataError: it cannot be read.
    """
    source = kind.opened(checkpoint, "raw")
    return kind(source.shapes, source.prefix)


def _require_family(config: Config, kind: type[CheckpointFormat]) -> None:
    """Requires a detector of the format's family, with supported overrides.

    Raises:
        ConfigError: another family, an unknown name, or an unsupported override.
    """
    model = config.model
    if not isinstance(detector_config(model.name), kind.config_class):
        raise ConfigError(f"--model {model.name}: not {kind.family}, so {kind.title} has no checkpoint of it.")
    detector_config(model.name, image_size=model.image_size, overrides=model.overrides)


def _complete(config: Config, original: CheckpointFormat) -> Config:
    """Sets the configuration with which our network equals the program's, where it is not set.

    Raises:
        DataError: the checkpoint is of another family.
    """
    model = config.model
    _require_told(model.overrides, original)
    preset = detector_config(model.name, image_size=model.image_size, overrides=model.overrides)
    changes = {
        "overrides": merged(nested(original.overrides(preset)), model.overrides),
        "postprocess": {**original.postprocess, **model.postprocess},
        "resize": ResizeConfig(**{**original.resize(preset), **model.resize.model_dump(exclude_unset=True)}),
    }
    return config.model_copy(update={"model": model.model_copy(update=changes)})


def _require_told(overrides: Mapping[str, Any], original: CheckpointFormat) -> None:
    """Requires the fields that no checkpoint of the program tells.

    Raises:
        ConfigError: one is not set.
    """
    for field, values in original.not_told.items():
        section, _, name = field.partition(".")
        if name not in overrides.get(section, {}):
            raise ConfigError(
                f"{original.where}: the weights do not tell {field}. Pass --set model.overrides.{field}={values}."
            )


def _values(
    source: Variables, sources: Mapping[str, VariableSource], only: frozenset[str] | None = None
) -> dict[str, np.ndarray]:
    """Reads the variables, or only those that `only` needs as sources."""
    return {
        path: one.convert(*map(source.read, one.names))
        for path, one in sources.items()
        if only is None or not only.isdisjoint(one.names)
    }


def write_model(model: ImportedModel, folder: Path) -> None:
    """Writes a model into an empty folder, in the format of `train`: descriptions and a checkpoint.

    Args:
        model: imported model.
        folder: empty local folder.

    Raises:
        CocoflowError: the disk is full or read-only.
    """
    write_text(folder / CONFIG_YAML, to_yaml(model.config))
    if model.categories is not None:
        write_json(folder / LABELS_JSON, model.categories)
    write_json(folder / IMPORT_JSON, model.report())
    if model.published is not None:
        write_json(folder / ORIGIN_JSON, model.published)
    parts: dict[str, Any] = {STEP_PART: tf.Variable(_STEP, dtype=tf.int64), MODEL_PART: _variables(model.raw)}
    if model.ema:
        parts[EMA_PART] = _variables(model.ema)
    make_folder(folder / CHECKPOINTS)
    advice = "Free space, or make the disk writable, and rerun."
    with disk_refusals_explained("the imported checkpoint", advice=advice):
        tf.train.Checkpoint(**parts).write(join(literal_path(folder), _CHECKPOINT))


def _variables(weights: Weights) -> dict[str, tf.Variable]:
    with tf.device("CPU"):
        return {path: tf.Variable(values, trainable=False) for path, values in weights.items()}
