"""Names of the TensorBoard scalars of training and evaluation, equal so that both share a chart."""

from collections.abc import Collection

TOTAL_LOSS = "loss"  # key of the sum of all losses, beside the losses
GRADIENT_NORM = "gradient_norm"  # of all variables; with "/" and a variable's path: of one variable
GRADIENT_HISTOGRAM = "gradient"  # with "/" and a variable's path
TRUNCATED = "instances_cut_off"  # instances beyond model.max_instances
POSITIVES = "num_positives"  # positive anchors of a batch, or objects of a network without anchors

# Scalars of training besides losses and the norms of single gradients.
_OTHERS = frozenset(
    {
        GRADIENT_NORM,
        "images_per_second",
        "input_bound",
        TRUNCATED,
        "learning_rate",
        "loss_scale",
        "nonfinite_steps",
        POSITIVES,
        "skipped_steps",
        "steps_per_sec",
    }
)


# Tags of the TF Object Detection API for the same losses.
_LOSS_TAGS = {
    TOTAL_LOSS: "Loss/total_loss",
    "l2_loss": "Loss/regularization_loss",
    "rpn_score_loss": "Loss/RPNLoss/objectness_loss",
    "rpn_box_loss": "Loss/RPNLoss/localization_loss",
    "center_loss": "Loss/object_center",
    "size_loss": "Loss/box/scale",
    "offset_loss": "Loss/box/offset",
    # There, the name of a task precedes `keypoint`.
    **{f"keypoint_{head}_loss": f"Loss/keypoint/{head}" for head in ("heatmap", "offset", "regression")},
}
_HEAD_TAGS = {"class_loss": "classification_loss", "box_loss": "localization_loss", "mask_loss": "mask_loss"}


def loss_tags(terms: Collection[str]) -> dict[str, str]:
    """Returns the tags of a detector's loss terms and of `TOTAL_LOSS`.

    Source: the TF Object Detection API's `model_lib_v2.py`, `ssd_meta_arch.py`, `faster_rcnn_meta_arch.py` and
    `center_net_meta_arch.py`.  Other terms, such as `box_iou_loss`, keep
    their names; those of later cascade stages have the suffix `_2` and so on.

    Args:
        terms: all terms; terms of an RPN imply a two-stage detector.
    """
    heads = "Loss/BoxClassifierLoss/" if "rpn_box_loss" in terms else "Loss/"
    return {term: _LOSS_TAGS.get(term) or _head_tag(term, heads) for term in terms}


def _head_tag(term: str, heads: str) -> str:
    name, separator, stage = term.partition("_loss")
    tag = _HEAD_TAGS.get(name + separator)
    return f"{heads}{tag}{stage}" if tag else f"Loss/{term}"


def training_tags(names: Collection[str]) -> dict[str, str]:
    """Returns the tags of the scalars of a training step or of a window of steps."""
    losses = [name for name in names if name not in _OTHERS and not is_variable_norm(name)]
    return {name: name for name in names} | loss_tags(losses)


def is_variable_norm(name: str) -> bool:
    """Returns whether `name` is the norm of one variable's gradient."""
    return name.startswith(f"{GRADIENT_NORM}/")
