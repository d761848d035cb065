"""`import-checkpoint`: converts another program's checkpoint to a model folder."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from detection.interop.conversion import Keys
from detection.interop.programs import program_of, read_config_of
from detection.models.registry import detector_config
from detection.storage.atomic import new_directory
from detection.storage.files import is_dir, is_file
from detection.storage.paths import join, name_of, parent
from detection.weights.checkpoint_format import CheckpointFormat, some
from detection.weights.imported_model import MODEL_INDEX, ImportedModel, import_model, write_model
from detection.weights.publications import publication_of_file, require_licence
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.config.section import nested
from schemas.config.train.optimization import WeightsChoice
from schemas.errors import ConfigError
from schemas.quoting import one_line

# Prefixes of the keys of a network, its input and its post-processing.
_OF_NETWORK = ("model.name", "model.image_size", "model.resize.", "model.overrides.", "model.postprocess.")
_CHECKPOINT = "checkpoint"  # folder of the checkpoint in an archive with a configuration

_LOGGER = logging.getLogger("cocoflow.import")


def import_checkpoint(
    *,
    program: str,
    checkpoint: str,
    model: str | None,
    output: str,
    weights: WeightsChoice = "auto",
    label_map: str | None = None,
    assignments: Sequence[str] = (),
) -> None:
    """Writes a model folder atomically; logs to `cocoflow.import`.

    Args:
        program: one of `detection.interop.programs.PROGRAMS`.
        checkpoint: prefix of the checkpoint, or its folder, as in `import_model`; or an unpacked archive with the
            program's configuration and a folder `checkpoint`.
        model: name of the detector; None: that of the program's configuration beside the checkpoint, in its folder or
            in the folder around it.
        output: folder, new or empty, local or remote.
        weights: `auto`, `ema` or `raw`, as in `import_model`.
        label_map: label map or COCO file of the training; None: as in `import_model`.
        assignments: `key=value` of the section `model`.

    Raises:
        ConfigError: another section, or a detector or override that the program does not have; neither `model` nor a
            configuration of a supported model; or published weights whose licence `model.weights_licences` lacks.
        DataError: the checkpoint cannot be read or imported, or the folder cannot be written.
    """
    for assignment in assignments:
        if not assignment.startswith("model.") or assignment.startswith("model.name="):
            raise ConfigError(f"--set {assignment}: set keys of the section model only; --model sets its name.")
    config_file = program_of(program).config_file
    if config_file is not None and is_dir(join(checkpoint, _CHECKPOINT)):
        checkpoint = join(checkpoint, _CHECKPOINT)
    config = _config(program, checkpoint, model, assignments)
    with new_directory(output, last=[MODEL_INDEX]) as folder:
        imported = import_model(
            _format(program, config.model.name), checkpoint, config, weights=weights, label_map=label_map
        )
        _log(imported, has_label_map=label_map is not None)
        published = publication_of_file(name_of(imported.prefix))
        if published is not None:
            require_licence(published.as_json(), config.model.weights_licences)
            _LOGGER.info("published as %s, licence %s", published.name, published.licence)
            imported = imported._replace(published=published.as_json())
        write_model(imported, folder)


def _config(program: str, checkpoint: str, model: str | None, assignments: Sequence[str]) -> Config:
    """Returns the configuration of a checkpoint's model.

    Keys of the program's configuration precede the values that the format assumes; assignments precede both.
    """
    config_file = program_of(program).config_file
    original = None if config_file is None else _original_config(config_file, checkpoint)
    keys = {} if original is None else _original_keys(program, original, model)
    if any(assignment.startswith("model.image_size=") for assignment in assignments):
        keys = {key: value for key, value in keys.items() if not key.startswith("model.resize.")}
    described = keys.get("model.name")
    if model is not None:
        keys["model.name"] = model
    if "model.name" not in keys:
        beside = "" if config_file is None else f", and there is no {config_file} beside the checkpoint"
        raise ConfigError(f"--model is missing{beside}. Pass --model with the name of the detector.")
    try:
        config = load_config(original or "--model", assignments, text=yaml.safe_dump(nested(keys)))
        detector_config(config.model.name, image_size=config.model.image_size, overrides=config.model.overrides)
        return config
    except ConfigError as error:
        if described in (None, keys["model.name"]):
            raise
        raise ConfigError(
            f"--model {model}, but {original} describes {described}: {error} Leave out --model, or move the file away."
        ) from None


def _original_config(name: str, checkpoint: str) -> str | None:
    """Returns the configuration beside a checkpoint, in its folder or the folder around it; None: no such file."""
    folders = (checkpoint, parent(checkpoint), parent(parent(checkpoint)))
    return next((path for path in (join(folder, name) for folder in folders) if is_file(path)), None)


def _original_keys(program: str, original: str, model: str | None) -> Keys:
    """Returns the keys of the network, its input and its post-processing in a program's configuration.

    Raises:
        ConfigError: it cannot be converted, and there is no `model`.
    """
    try:
        conversion = read_config_of(program, original)
    except ConfigError as error:
        if model is None:
            raise ConfigError(f"{error}\nPass --model with the name of a detector, for its settings.") from None
        _LOGGER.warning("%s", one_line(f"the detector has its own settings, as {error}"))
        return {}
    _LOGGER.info("%s", one_line(f"settings of {original}"))
    for remark in conversion.unsupported:
        if remark.field.startswith("model."):
            _LOGGER.warning("%s: not supported here: %s", one_line(original), remark)
    return {key: value for key, value in conversion.keys.items() if key.startswith(_OF_NETWORK)}


def _format(program: str, model: str) -> type[CheckpointFormat]:
    """Returns the program's format for the family of the model, or its first one."""
    formats = program_of(program).formats
    config = detector_config(model)
    return next((one for one in formats if isinstance(config, one.config_class)), formats[0])


def _log(model: ImportedModel, *, has_label_map: bool) -> None:
    """Logs the imported weights."""
    _LOGGER.info("%s", one_line(f"checkpoint {model.prefix}" + ("" if model.step is None else f", step {model.step}")))
    if model.ema:
        _LOGGER.info("EMA weights of %d of %d variables; using the EMA weights", len(model.ema), len(model.raw))
    else:
        _LOGGER.info("raw weights of %d variables, no EMA weights", len(model.raw))
    if model.categories is None:
        _LOGGER.warning(
            "only a backbone: %d variables of the network are not in the checkpoint. Start a training from it with "
            "train.init.fine_tune_type=classification",
            len(model.missing),
        )
    else:
        _log_classes(model.categories, has_label_map=has_label_map)
        if model.missing:
            _LOGGER.warning(
                "%d variables of the network are not in the checkpoint: %s. Start a training from it with "
                "train.init.skip_mismatch=true, which skips them",
                len(model.missing),
                some(model.missing),
            )
    for difference in model.differences:
        _LOGGER.warning("%s", difference)
    if model.unused:
        listed = one_line(some(model.unused))
        _LOGGER.warning("%d variables of the checkpoint are not in the network: %s", len(model.unused), listed)


def _log_classes(categories: Sequence[Mapping[str, Any]], *, has_label_map: bool) -> None:
    """Logs the categories of the class outputs."""
    classes = len(categories)
    named = sum(category["name"] is not None for category in categories)
    if has_label_map:
        _LOGGER.info("%d classes, %d of them in the label map", classes, named)
    elif named < classes:
        _LOGGER.info("%d classes: COCO's %d categories by id", classes, named)
    elif all(category["name"] == str(category["id"]) for category in categories):
        _LOGGER.warning("%d classes, named by their ids: pass --label-map for names", classes)
    else:
        _LOGGER.info("%d classes: COCO's categories", classes)
    if named < classes:
        _LOGGER.info("%d classes have no category; their detections are not reported", classes - named)
