"""`import-checkpoint`: another program's checkpoint to a model folder."""

import json
import logging
from collections.abc import Sequence

from detection.storage.atomic import new_directory
from detection.weights.automl import POSTPROCESS
from detection.weights.imported_model import MODEL_INDEX, ImportedModel, import_automl, write_model
from schemas.config.config_io import load_config
from schemas.config.optimization import WeightsChoice
from schemas.errors import ConfigError
from schemas.quoting import one_line

_LISTED = 5  # variables in a message

# Programs whose checkpoints cannot be imported, and why.
_REFUSED = {
    "tpu-mask-rcnn": "there is no detector of the family Mask R-CNN yet that could hold its weights",
    "od-api": "its EfficientDets order the anchors of a cell by aspect ratio first and scale encoded boxes by 10 and "
    "5, and no outputs of the original are at hand to prove a conversion; its other detectors do not exist here yet",
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
    """Writes a model folder, which appears whole or not at all; messages go to the logger `cocoflow.import`.

    Args:
        program: `automl`.
        checkpoint: see `import_automl`.
        model: name of the detector.
        output: folder, new or empty, local or remote.
        weights: see `import_automl`.
        label_map: see `import_automl`.
        assignments: `key=value` of the section `model`.

    Raises:
        ConfigError: another program, another section, or see `import_automl`.
        DataError: see `import_automl`; the folder cannot be written.
    """
    if program in _REFUSED:
        raise ConfigError(f"--from {program}: these checkpoints cannot be imported: {_REFUSED[program]}.")
    for assignment in assignments:
        if not assignment.startswith("model.") or assignment.startswith("model.name="):
            raise ConfigError(f"--set {assignment}: set keys of the section model only; --model sets its name.")
    config = load_config(None, [f"model.name={model}", f"model.postprocess={json.dumps(POSTPROCESS)}", *assignments])
    with new_directory(output, last=[MODEL_INDEX]) as folder:
        imported = import_automl(checkpoint, config, weights=weights, label_map=label_map)
        _log(imported, has_label_map=label_map is not None)
        write_model(imported, folder)


def _log(model: ImportedModel, *, has_label_map: bool) -> None:
    """Tells what was read."""
    _LOGGER.info("%s", one_line(f"checkpoint {model.prefix}" + ("" if model.step is None else f", step {model.step}")))
    if model.ema:
        _LOGGER.info("EMA weights of %d of %d variables; the EMA weights are used", len(model.ema), len(model.raw))
    else:
        _LOGGER.info("raw weights of %d variables, no EMA weights", len(model.raw))
    classes = len(model.categories)
    named = sum(category["name"] is not None for category in model.categories)
    if has_label_map:
        _LOGGER.info("%d class outputs, %d of them in the label map", classes, named)
    elif named < classes:
        _LOGGER.info("%d class outputs: COCO's %d categories by id", classes, named)
    else:
        _LOGGER.warning("%d class outputs, named by their ids: pass --label-map for names", classes)
    if named < classes:
        _LOGGER.info("%d class outputs have no category: their detections are not reported", classes - named)
    if model.unused:
        more = f" and {len(model.unused) - _LISTED} more" if len(model.unused) > _LISTED else ""
        listed = one_line(", ".join(model.unused[:_LISTED]))
        _LOGGER.warning("%d variables of the checkpoint are not in the network: %s%s", len(model.unused), listed, more)
