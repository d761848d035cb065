"""The Object Detection API's SSDs, with and without an FPN or BiFPN, as keys of our configuration."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from detection.interop.conversion import SEPARABLE, Keys
from detection.interop.od_api.configuration.parts import (
    RESNET,
    SCORE_CONVERTERS,
    Penalty,
    code_weights,
    feature_extractor,
    layer_values,
    multiscale_anchors,
    overrides,
    penalty,
    penalty_keys,
    postprocess_keys,
    pyramid_levels,
    resizer_keys,
)
from detection.interop.text_proto import Message

_BACKBONE_LEVEL = 5
_EXTRA_FILTERS = (512, 256, 256, 128)  # filters of the levels above the backbone's, without an FPN
_BIAS, _BIAS_TOLERANCE = -4.6, 0.01  # our default is -log(99)
_PREDICTORS = ("weight_shared_convolutional_box_predictor", "convolutional_box_predictor")
_ALIKE = "the convolutions of heads and feature extractor are alike here"
_NO_DROPOUT = "heads have no dropout here"
_FUSIONS = {"fast_attention": "fast_attention", "sum": "sum", "attention": "sum"}
_HEADS = "(class|box)_net/"
_FPN = {"dialect": "od-api"}


class _Own(NamedTuple):
    """Layers of a backbone whose hyperparameters are not overridden."""

    activation: str
    batch_norm_epsilon: float


class _Extractor(NamedTuple):
    """A type of feature extractor.

    preset: detector with its network.
    values: fields of `model.overrides` that the type determines.
    own: the backbone's own layers.
    neck: maps the `Ssd` to fields of `model.overrides`.
    not_decayed: kernels without regularisation, if convolutions are separable.
    """

    preset: str
    values: Mapping[str, Any]
    own: _Own
    neck: Callable[[Message], dict[str, Any]]
    not_decayed: Sequence[str] = ()


def ssd_keys(ssd: Message) -> Keys:
    """Returns the keys of an `ssd`; {}: there is no such detector here."""
    known = feature_extractor(ssd, _EXTRACTORS)
    if known is None:
        return {}
    features, kind = known
    extractor = _EXTRACTORS[kind]
    hyperparams = features.message("conv_hyperparams")
    layers = layer_values(hyperparams)
    if not features.get("override_base_feature_extractor_hyperparams", False):
        own = extractor.own
        if own == (layers["activation"], layers["batch_norm.epsilon"]):
            text = "batch norm's decay and the regularisation are conv_hyperparams' in the backbone, too, not its own"
            features.note("override_base_feature_extractor_hyperparams", text)
        else:
            reason = f"the backbone has layers like those above it here, and there {own.activation} and batch norm "
            reason += f"with epsilon {own.batch_norm_epsilon:g}"
            features.refuse("override_base_feature_extractor_hyperparams", reason)
    features.only("pad_to_multiple", 1, reason="features have the size of the images here")
    values = layers | dict(extractor.values) | extractor.neck(ssd)
    base = penalty(hyperparams)
    heads = _head_penalty(ssd, layers)
    classes = _class_loss(ssd)
    values |= (
        classes
        | _prior(ssd)
        | _box_loss(ssd)
        | _matching(ssd)
        | {"loss.code_weights": code_weights(ssd.message("box_coder"))}
    )
    softmax = str(classes["loss.class_loss"]).endswith("softmax")
    post = postprocess_keys(
        ssd.message("post_processing"),
        converter="SOFTMAX" if softmax else "SIGMOID",
        logit_scale=classes.get("loss.logit_scale", 1.0),
    )
    keys: Keys = {"model.name": extractor.preset} | penalty_keys(base, {_HEADS: heads})
    if values["head.separable_conv"] and extractor.not_decayed and (any(base) or any(heads)):
        keys |= {"train.optimizer.weight_decay_exclude": list(extractor.not_decayed), "train.pattern_match": "anywhere"}
    if ssd.get("freeze_batchnorm", False):
        keys["train.freeze_batch_norm"] = "statistics"
    return keys | resizer_keys(ssd.message("image_resizer")) | overrides(values) | post


def _predictor(ssd: Message, kind: str) -> Message:
    return ssd.message("box_predictor").member("predictor", kind, f"this feature extractor has a {kind} here")


def _shared_predictor(ssd: Message, filters: int, *, separable: bool, because: str) -> dict[str, Any]:
    """Returns the fields of a `weight_shared_convolutional_box_predictor`.

    Args:
        ssd: the model.
        filters: channels of the pyramid.
        separable: convolutions of the pyramid are separable.
        because: reason why those of the heads are alike.
    """
    heads = _predictor(ssd, "weight_shared_convolutional_box_predictor")
    heads.only("use_dropout", False, reason=_NO_DROPOUT)
    heads.only("depth", filters, default=0, reason=f"heads have as many channels as the pyramid here, {filters}")
    heads.only("kernel_size", 3, reason="kernels of the heads are 3x3 here")
    heads.only("score_converter", "IDENTITY", enum=SCORE_CONVERTERS[:2], reason="heads return logits here")
    heads.only("use_depthwise", separable, default=False, reason=because)
    return {
        "head.layers": _at_least_one(heads, "num_layers_before_predictor"),
        "head.share_tower": heads.get("share_prediction_tower", False),
        **dict.fromkeys(SEPARABLE, separable),
    }


def _at_least_one(message: Message, name: str) -> int:
    """Returns a number, which is listed as not supported if it is 0, the default."""
    number: int = message.get(name, 0)
    if number < 1:
        message.refuse(name, f"{number}: at least 1 here")
    return max(1, number)


def _fpn(ssd: Message) -> dict[str, Any]:
    features = ssd.message("feature_extractor")
    fpn = features.message("fpn")
    levels, filters = pyramid_levels(fpn), fpn.get("additional_layer_depth", 256)
    heads = _shared_predictor(ssd, filters, separable=features.get("use_depthwise", False), because=_ALIKE)
    return {"neck.filters": filters} | multiscale_anchors(ssd.message("anchor_generator"), levels) | heads


def _bifpn(ssd: Message) -> dict[str, Any]:
    bifpn = ssd.message("feature_extractor").message("bifpn")
    levels, filters = pyramid_levels(bifpn), _at_least_one(bifpn, "num_filters")
    fusion = bifpn.only("combine_method", *_FUSIONS, reason=f"known are {', '.join(_FUSIONS)}")
    if fusion == "attention":
        bifpn.note("combine_method", "attention is a plain sum there: its softmax is over one value")
    values = {
        "neck.filters": filters,
        "neck.cells": _at_least_one(bifpn, "num_iterations"),
        "neck.fusion": _FUSIONS.get(fusion, "sum"),
    }
    because = "a BiFPN has separable convolutions, and so have its heads here"
    heads = _shared_predictor(ssd, filters, separable=True, because=because)
    return values | multiscale_anchors(ssd.message("anchor_generator"), levels) | heads


def _levels(ssd: Message) -> dict[str, Any]:
    """Returns the fields of an SSD without an FPN."""
    features = ssd.message("feature_extractor")
    heads = _predictor(ssd, "convolutional_box_predictor")
    heads.only("num_layers_before_predictor", 0, reason="heads have no inner layers here")
    heads.only("use_dropout", False, default=True, reason=_NO_DROPOUT)
    for name in ("min_depth", "max_depth"):
        if name in heads:
            heads.note(name, "acts on inner layers of the heads only")
    reason = "an SSD without an FPN has a grid per level here"
    anchors = ssd.message("anchor_generator").member("generator", "ssd_anchor_generator", reason)
    count = features.get("num_layers", 6)
    anchors.only("num_layers", count, default=6, reason=f"the feature extractor has {count} levels")
    ratios = anchors.values("aspect_ratios", float)
    if not ratios:
        anchors.refuse("aspect_ratios", "missing; there are no anchors without it")
    separable = features.get("use_depthwise", False)
    return {
        **dict.fromkeys(SEPARABLE, heads.only("use_depthwise", separable, default=False, reason=_ALIKE)),
        "head.kernel": heads.get("kernel_size", 1),
        "max_level": _BACKBONE_LEVEL + count - 2,
        "neck.filters": list(_EXTRA_FILTERS[: count - 2]),
        "anchors.min_scale": anchors.get("min_scale", 0.2),
        "anchors.max_scale": anchors.get("max_scale", 0.95),
        "anchors.aspect_ratios": ratios,
        "anchors.interpolated_aspect_ratio": anchors.get("interpolated_scale_aspect_ratio", 1.0),
        "anchors.reduce_finest_level": anchors.get("reduce_boxes_in_lowest_layer", True),
    }


def _head_penalty(ssd: Message, layers: Mapping[str, Any]) -> Penalty:
    """Returns the heads' regularisation; lists other hyperparameters that differ from the feature extractor's."""
    predictor = ssd.message("box_predictor")
    kind = predictor.kind("predictor", *_PREDICTORS, reason="heads of a dense detector are convolutional")
    if not kind:
        return Penalty()
    heads = predictor.message(kind)
    hyperparams = heads.message("conv_hyperparams")
    # Without inner layers or separable convolutions, heads have neither activation nor batch norm.
    has_layers = heads.get("num_layers_before_predictor", 0) or heads.get("use_depthwise", False)
    if has_layers and layer_values(hyperparams) != layers:
        hyperparams.refuse("batch_norm", "activation and batch norm are those of the feature extractor here")
    elif not has_layers:
        for name in ("activation", "batch_norm", "initializer"):
            if name in hyperparams:
                hyperparams.note(name, "the outputs of the heads have none, or their own here")
    return penalty(hyperparams)


def _prior(ssd: Message) -> dict[str, Any]:
    """Returns the field of the class outputs' initial bias, which separable ones of a level lack in the original."""
    predictor = ssd.message("box_predictor")
    kind = next((one for one in _PREDICTORS if one in predictor), _PREDICTORS[0])
    heads = predictor.message(kind)
    bias = heads.get("class_prediction_bias_init", 0.0)
    if kind == "convolutional_box_predictor" and heads.get("use_depthwise", False):
        bias = 0.0
    return {} if abs(bias - _BIAS) <= _BIAS_TOLERANCE else {"loss.prior_probability": 1.0 / (1.0 + math.exp(-bias))}


def _matching(ssd: Message) -> dict[str, Any]:
    reason = "anchors get the object that they overlap most here"
    argmax = ssd.message("matcher").member("matcher", "argmax_matcher", reason)
    ssd.message("similarity_calculator").member("similarity", "iou_similarity", "anchors are matched by IoU here")
    matched, unmatched = argmax.get("matched_threshold", 0.5), argmax.get("unmatched_threshold", 0.5)
    background, zeros = ssd.get("add_background_class", True), ssd.get("encode_background_as_zeros", False)
    return {
        "matcher.positive_iou": matched,
        "matcher.negative_iou": None if unmatched == matched else unmatched,
        "matcher.force_match": argmax.get("force_match_for_each_row", False),
        "loss.background_class": background,
        "loss.background_target": background and not zeros,
    }


def _class_loss(ssd: Message) -> dict[str, Any]:
    loss = ssd.message("loss")
    classes = loss.message("classification_loss")
    kind = classes.kind("loss", *_CLASS_LOSSES, reason=f"known are {', '.join(_CLASS_LOSSES)}")
    values: dict[str, Any] = {"loss.class_loss": "focal"}
    if kind:
        values = _CLASS_LOSSES[kind](classes.message(kind))
    if "hard_example_miner" in loss:
        miner = loss.message("hard_example_miner")
        values["loss.hard_example_miner"] = {
            "num_hard_examples": miner.get("num_hard_examples", 64) or None,
            "iou_threshold": miner.get("iou_threshold", 0.7),
            "loss_type": miner.get("loss_type", "BOTH", enum=("BOTH", "CLASSIFICATION", "LOCALIZATION")).lower(),
            "max_negatives_per_positive": miner.get("max_negatives_per_positive", 0),
            "min_negatives_per_image": miner.get("min_negatives_per_image", 0),
        }
        if kind == "weighted_sigmoid_focal":
            loss.note("hard_example_miner", "the original refuses it with a focal loss")
    return values | {"loss.class_loss_weight": loss.get("classification_weight", 1.0)}


def _box_loss(ssd: Message) -> dict[str, Any]:
    loss = ssd.message("loss")
    boxes = loss.message("localization_loss")
    kind = boxes.kind("loss", *_BOX_LOSSES, reason=f"known are {', '.join(_BOX_LOSSES)}")
    box_loss = _BOX_LOSSES.get(kind, "huber")
    chosen = boxes.message(kind or "weighted_smooth_l1")
    delta = {"loss.huber_delta": chosen.get("delta", 1.0)} if box_loss == "huber" else {}
    divisor = 1.0 if ssd.get("normalize_loc_loss_by_codesize", False) else 4.0  # ours is the mean of the four deltas
    return delta | {
        "loss.box_loss": box_loss,
        "loss.box_loss_weight": loss.get("localization_weight", 1.0) * divisor,
        "loss.normalizer": "positives" if ssd.get("normalize_loss_by_num_matches", True) else "none",
    }


def _softmax(kind: str, loss: Message) -> dict[str, Any]:
    return {"loss.class_loss": kind, "loss.logit_scale": loss.get("logit_scale", 1.0)}


_CLASS_LOSSES: dict[str, Callable[[Message], dict[str, Any]]] = {
    "weighted_sigmoid_focal": lambda loss: {
        "loss.class_loss": "focal",
        "loss.focal_gamma": loss.get("gamma", 2.0),
        "loss.focal_alpha": loss.get("alpha", 0.0) if "alpha" in loss else None,
    },
    "weighted_sigmoid": lambda loss: {"loss.class_loss": "focal", "loss.focal_gamma": 0.0, "loss.focal_alpha": None},
    "weighted_softmax": functools.partial(_softmax, "softmax"),
    "weighted_logits_softmax": functools.partial(_softmax, "logits_softmax"),
    "bootstrapped_sigmoid": lambda loss: {
        "loss.class_loss": f"{'hard_' if loss.get('hard_bootstrap', False) else ''}bootstrapped_sigmoid",
        "loss.bootstrap_alpha": loss.get("alpha", 0.0),
    },
}
_BOX_LOSSES = {
    "weighted_smooth_l1": "huber",
    "weighted_l2": "l2",
    "weighted_iou": "code_iou",
    "weighted_giou": "code_giou",
}
_POINTWISE = ("-predict/", "_net/.*pointwise", "fpn/.*pointwise")
_MOBILENET = _Own("relu6", 1e-3)
_EXTRACTORS = {
    **{
        f"ssd_resnet{depth}_v1_fpn_keras": _Extractor(
            f"retinanet-r{depth}", _FPN | RESNET, _Own("relu", 1e-5), _fpn, _POINTWISE
        )
        for depth in (50, 101, 152)
    },
    "ssd_mobilenet_v1_fpn_keras": _Extractor("ssd-mobilenet-v1-fpn", _FPN, _MOBILENET, _fpn, _POINTWISE),
    "ssd_mobilenet_v2_fpn_keras": _Extractor("ssd-mobilenet-v2-fpnlite", _FPN, _MOBILENET, _fpn, _POINTWISE),
    **{
        f"ssd_efficientnet-b{number}_bifpn_keras": _Extractor(
            f"efficientdet-d{number}",
            {"backbone.name": f"efficientnet-b{number}", "backbone.layout": "od-api"},
            _Own("swish", 1e-3),
            _bifpn,
            ("-predict/", "_net/.*pointwise", "efficientnet.*depthwise"),
        )
        for number in range(8)
    },
    "ssd_mobilenet_v1_keras": _Extractor("ssd-mobilenet-v1", {}, _MOBILENET, _levels),
    "ssd_mobilenet_v2_keras": _Extractor("ssd-mobilenet-v2", {}, _MOBILENET, _levels),
}
# Detectors by the type of their feature extractor.
SSD_NETWORKS = {kind: extractor.preset for kind, extractor in _EXTRACTORS.items()}
