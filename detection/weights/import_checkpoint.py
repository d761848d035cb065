"""`import-checkpoint`: converts another program's checkpoint to a model folder."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from detection.models.registry import detector_config
from detection.storage.atomic import new_directory
from detection.weights.automl import AUTOML
from detection.weights.imported_model import MODEL_INDEX, ImportedModel, import_model, write_model
from detection.weights.od_api import OD_API
from detection.weights.od_api_efficientdet import OD_API_EFFICIENTDET
from detection.weights.od_api_retinanet import OD_API_RETINANET
from detection.weights.od_api_ssd import OD_API_SSD
from detection.weights.program import Program, some
from detection.weights.tpu_mask_rcnn import TPU_MASK_RCNN
from schemas.config.config_io import load_config
from schemas.config.train.optimization import WeightsChoice
from schemas.errors import ConfigError
from schemas.quoting import one_line

_PROGRAMS = {
    "automl": (AUTOML,),
    "tpu-mask-rcnn": (TPU_MASK_RCNN,),
    "od-api": (OD_API, OD_API_EFFICIENTDET, OD_API_RETINANET, OD_API_SSD),
}

_LOGGER = logging.getLogger("cocoflow.import")


def import_checkpoint(
    *,
    program: str,
    checkpoint: str,
    model: str,
    output: str,
    weights: WeightsChoice = "auto",
    label_map: str | None = None,
    assignments: Sequence[str] = (),
) -> None:
    """Writes a model folder atomically; logs to `cocoflow.import`.

    Args:
        program: `automl`, `tpu-mask-rcnn` or `od-api`.
        checkpoint: prefix of the checkpoint, or its folder, as in `import_model`.
        model: name of the detector.
        output: folder, new or empty, local or remote.
        weights: `auto`, `ema` or `raw`, as in `import_model`.
        label_map: label map or COCO file of the training; None: as in `import_model`.
        assignments: `key=value` of the section `model`.

    Raises:
        ConfigError: another section, or a detector or override that the program does not have.
        DataError: the checkpoint cannot be read or imported, or the folder cannot be written.
    """
    for assignment in assignments:
        if not assignment.startswith("model.") or assignment.startswith("model.name="):
            raise ConfigError(f"--set {assignment}: set keys of the section model only; --model sets its name.")
    config = load_config(None, [f"model.name={model}", *assignments])
    with new_directory(output, last=[MODEL_INDEX]) as folder:
        imported = import_model(_program(program, model), checkpoint, config, weights=weights, label_map=label_map)
        _log(imported, has_label_map=label_map is not None)
        write_model(imported, folder)


def _program(name: str, model: str) -> Program:
    """Returns a program's description for the family of the model; the first one if there is none."""
    families = _PROGRAMS[name]
    config = detector_config(model)
    return next((one for one in families if isinstance(config, one.config_class)), families[0])


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
    else:
        _LOGGER.warning("%d classes, named by their ids: pass --label-map for names", classes)
    if named < classes:
        _LOGGER.info("%d classes have no category; their detections are not reported", classes - named)
