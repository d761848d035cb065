"""The weight-shared heads of the TF Object Detection API: names of their layers, and values of their outputs.

The values differ in two ways: the anchors of a cell have another order, and encoded boxes are scaled.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from detection.interop.od_api.checkpoints.faster_rcnn_sources import by_scale, without_box_scales
from detection.weights.checkpoint_format import CheckpointFormat, Values, unchanged
from schemas.errors import DataError

CLASSES, BOXES = "ClassPredictor/bias", "BoxPredictor/bias"
# Fields of `model.overrides` for the losses of the original's configurations: `weighted_smooth_l1`,
# `faster_rcnn_box_coder`, `localization_weight` and `normalize_loss_by_num_matches`.
LOSSES = {
    "loss.huber_delta": 1.0,
    "loss.code_weights": [10.0, 10.0, 5.0, 5.0],
    "loss.box_loss_weight": 1.0,
    "loss.normalizer": "positives",
}


def head_names(levels: Sequence[int], head_layers: int, *, shared: bool = False) -> dict[str, str]:
    """Returns the original's layers, without scope, by the paths of ours; `shared`: both heads have one tower.

    >>> head_names(range(3, 8), 4)["class_net/class-0-bn-3"]
    'ClassPredictionTower/conv2d_0/BatchNorm/feature_0'
    """
    heads = {}
    for ours, theirs in (("class", "Class"), ("box", "Box")):
        heads[f"{ours}_net/{ours}-predict"] = f"{theirs}Predictor"
        for number in range(head_layers):
            conv = f"{'' if shared else theirs}PredictionTower/conv2d_{number}"
            heads[f"{ours}_net/{ours}-{number}"] = conv
            for index, level in enumerate(levels):
                heads[f"{ours}_net/{ours}-{number}-bn-{level}"] = f"{conv}/BatchNorm/feature_{index}"
    return heads


def head_conversion(layer: str, variable: str, config: Any) -> Callable[[Values], Values]:
    """Returns the conversion of the values of a variable of ours; only the outputs of the heads differ."""
    if not layer.endswith("-predict") or variable == "depthwise_kernel":
        return unchanged
    reordered = functools.partial(by_scale, scales=config.anchors.num_scales, ratios=len(config.anchors.aspect_ratios))
    if layer.startswith("class_net/"):
        return reordered
    return lambda values: without_box_scales(reordered(values))


def class_outputs(checkpoint: CheckpointFormat, config: Any) -> int:
    """Returns the number of class outputs of each anchor.

    Raises:
        DataError: the network and the configuration have different numbers of anchors per cell.
    """
    [classes], [boxes] = (checkpoint.shape(name) for name in (CLASSES, BOXES))
    anchors: int = config.anchors.per_cell
    if boxes != 4 * anchors or classes % anchors:
        raise DataError(
            f"{checkpoint.where}: {boxes} box outputs and {classes} class outputs do not match {anchors} anchors per "
            "cell. Pass scales_per_octave and aspect_ratios of its pipeline.config with --set "
            "model.overrides.anchors.num_scales=VALUE and aspect_ratios."
        )
    return classes // anchors
