"""Parts of the Object Detection API's models that several families share, as keys of our configuration."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from detection.interop.conversion import Keys
from detection.interop.text_proto import Message
from detection.models.backbones.resnet import RESNET_PIXEL_MEAN

# Enums, in the order of their numbers.
SCORE_CONVERTERS = ("IDENTITY", "SIGMOID", "SOFTMAX")
TF2 = "_keras"  # suffix of types of feature extractors; those of TF1 have none
ACTIVATIONS = {"NONE": "identity", "RELU": "relu", "RELU_6": "relu6", "SWISH": "swish"}

_LEVELS = {"min_level": 3, "max_level": 7}  # defaults
_CODE_WEIGHTS = {"y_scale": 10.0, "x_scale": 10.0, "height_scale": 5.0, "width_scale": 5.0}
# Fields of `model.overrides` of all its ResNets v1.
RESNET = {"backbone.layout": "od-api", "pixel_mean": list(RESNET_PIXEL_MEAN), "pixel_std": [1.0, 1.0, 1.0]}
# Fields for a ResNet alone, or without an FPN: its layers have no hyperparameters.
RESNET_FUNCTION = {"activation": "relu", "batch_norm.epsilon": 1e-5}


def overrides(values: dict[str, Any]) -> Keys:
    """Returns the keys of fields of `model.overrides`."""
    return {f"model.overrides.{name}": value for name, value in values.items()}


def feature_extractor(model: Message, networks: Collection[str]) -> tuple[Message, str] | None:
    """Notes the number of classes, and returns the feature extractor and its type, TF2's for one of TF1.

    None: its type is not in `networks`, and is refused.
    """
    model.note("num_classes", f"{model.get('num_classes', 0)} classes: those of the data set are used")
    features = model.message("feature_extractor")
    kind = features.get("type", "")
    for known in (kind, f"{kind}{TF2}"):
        if known in networks:
            return features, known
    features.refuse("type", f"{kind}: no such network here; known: {', '.join(networks)}")
    return None


def resizer_keys(resizer: Message) -> Keys:
    """Returns the keys of an `image_resizer`."""
    kind = resizer.kind(
        "resizer",
        "fixed_shape_resizer",
        "keep_aspect_ratio_resizer",
        reason="inputs of a detector have one size, and pixels of images scale alike",
    )
    keys: Keys = {"model.resize.half_pixel_centers": False}
    if kind == "fixed_shape_resizer":
        shape = resizer.message(kind)
        return keys | {
            "model.image_size": [shape.get("height", 300), shape.get("width", 300)],
            "model.resize.mode": "stretch",
        }
    if kind == "keep_aspect_ratio_resizer":
        shape = resizer.message(kind)
        short, long = shape.get("min_dimension", 600), shape.get("max_dimension", 1024)
        if not shape.get("pad_to_max_dimension", False):
            shape.note("pad_to_max_dimension", f"inputs of a detector have one size: images are padded to {long} here")
        keys |= {"model.image_size": [long, long], "model.resize.mode": "short_side"}
        return keys | {"model.resize.short_side": short, "model.resize.long_side": long}
    return {}


def code_weights(coder: Message) -> list[float]:
    """Returns the factors of (ty, tx, th, tw) of a `box_coder`."""
    boxes = coder.member("box_coder", "faster_rcnn_box_coder", "boxes are encoded as in Faster R-CNN here")
    return [boxes.get(name, default) for name, default in _CODE_WEIGHTS.items()]


def pyramid_levels(pyramid: Message) -> tuple[int, int]:
    """Returns the first and the last level of a `fpn` or `bifpn`."""
    first, last = (pyramid.get(name, default) for name, default in _LEVELS.items())
    return first, last


def multiscale_anchors(generator: Message, levels: tuple[int, int]) -> dict[str, Any]:
    """Returns the fields of `model.overrides` of an `anchor_generator`; `levels`: a pyramid's first and last."""
    reason = "anchors of a pyramid are multiscale here"
    anchors = generator.member("generator", "multiscale_anchor_generator", reason)
    for (name, default), level in zip(_LEVELS.items(), levels, strict=True):
        anchors.only(name, level, default=default, reason=f"the pyramid has {level}")
    ratios = anchors.values("aspect_ratios", float)
    if not ratios:
        anchors.refuse("aspect_ratios", "missing; there are no anchors without it")
    return {
        "min_level": levels[0],
        "max_level": levels[1],
        "anchors.scale": anchors.get("anchor_scale", 4.0),
        "anchors.aspect_ratios": ratios or [1.0],
        "anchors.num_scales": anchors.get("scales_per_octave", 2),
        "dialect": "od-api",
    }


def postprocess_keys(post: Message, *, converter: str, logit_scale: float = 1.0) -> Keys:
    """Returns the keys of a `post_processing`.

    Args:
        post: the message.
        converter: score converter of our detector.
        logit_scale: divisor of the logits of our detector.
    """
    post.only(
        "score_converter",
        converter,
        default="IDENTITY",
        enum=SCORE_CONVERTERS,
        reason=f"scores are those of {converter} here",
    )
    post.only("logit_scale", logit_scale, default=1.0, reason="logits are divided by that of the class loss here")
    nms = post.message("batch_non_max_suppression")
    per_class, total = nms.get("max_detections_per_class", 100), nms.get("max_total_detections", 100)
    agnostic, sigma = nms.get("use_class_agnostic_nms", False), nms.get("soft_nms_sigma", 0.0)
    threshold = nms.get("iou_threshold", 0.6)
    keys = {"score_threshold": nms.get("score_threshold", 0.0), "max_detections": total, "class_agnostic": agnostic}
    keys["one_class_per_anchor"] = agnostic
    if agnostic:
        nms.only("max_classes_per_detection", 1, reason="class-agnostic NMS keeps one class here")
    elif "max_classes_per_detection" in nms:
        nms.note("max_classes_per_detection", "acts in class-agnostic NMS only")
    if sigma:  # TensorFlow's op, which the original calls, has exp(-IoU^2 / (2 sigma)).
        keys |= {"nms": "gaussian", "sigma": 2.0 * sigma}
        nms.only("iou_threshold", 1.0, default=0.6, reason="Gaussian NMS has no threshold of the IoU here")
    else:
        keys["iou_threshold"] = threshold
    if per_class < total and (agnostic or sigma):
        nms.refuse("max_detections_per_class", "only hard NMS within classes has a limit per class here")
    elif per_class < total:
        keys["max_detections_per_class"] = per_class
    return {f"model.postprocess.{name}": value for name, value in keys.items()}


def values_by_key(message: Message, name: str) -> dict[str, float]:
    """Returns the numbers of a map field by their keys."""
    return {entry.get("key", ""): entry.get("value", 0.0) for entry in message.messages(name)}


def layer_values(hyperparams: Message) -> dict[str, Any]:
    """Returns the fields of `model.overrides` of activation and batch norm of a `conv_hyperparams`."""
    kind = hyperparams.kind("normalizer", "batch_norm", "sync_batch_norm", reason="layers have batch norm here")
    if "initializer" in hyperparams:
        hyperparams.note("initializer", "initial weights are the detector's own here")
    norm = hyperparams.message(kind or "batch_norm")
    if kind:
        norm.only("scale", True, default=False, reason="batch norm has a scale here")
    return {
        "activation": ACTIVATIONS[hyperparams.get("activation", "RELU", enum=tuple(ACTIVATIONS))],
        "batch_norm.momentum": norm.get("decay", 0.999),
        "batch_norm.epsilon": norm.get("epsilon", 0.001),
    }


class Penalty(NamedTuple):
    """Weights of the L1 and the L2 regularisation."""

    l1: float = 0.0
    l2: float = 0.0


def penalty(hyperparams: Message) -> Penalty:
    """Returns the weights of a `regularizer`."""
    if "regularizer" not in hyperparams:
        return Penalty()
    regularizer = hyperparams.message("regularizer")
    kinds = {"l1_regularizer": "l1", "l2_regularizer": "l2"}
    kind = regularizer.kind("regularizer", *kinds, reason="regularisation is L1 or L2 here")
    return Penalty(**{kinds[kind]: regularizer.message(kind).get("weight", 1.0)}) if kind else Penalty()


def penalty_keys(base: Penalty, parts: Mapping[str, Penalty]) -> Keys:
    """Returns the keys of regularisation.

    Args:
        base: regularisation of all kernels without an entry in `parts`.
        parts: regularisation by regular expressions of kernels' paths.
    """
    entries = {match: part for match, part in parts.items() if part != base} | ({"": base} if base.l1 else {})
    listed = [{"match": match, **_nonzero(part)} for match, part in entries.items()]
    keys: Keys = {"train.optimizer.weight_decay": base.l2}
    return keys | ({"train.optimizer.regularizers": listed} if listed else {})


def _nonzero(part: Penalty) -> dict[str, float]:
    return {name: weight for name, weight in part._asdict().items() if weight}
