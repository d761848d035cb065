"""The Object Detection API's Faster R-CNNs, as keys of our configuration."""

from typing import Any

from detection.interop.conversion import Keys
from detection.interop.od_api.configuration.parts import (
    RESNET,
    RESNET_FUNCTION,
    Penalty,
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

# Detectors by the type of their feature extractor.
FASTER_RCNN_NETWORKS = {f"faster_rcnn_resnet{depth}_keras": f"faster-rcnn-r{depth}-c4" for depth in (50, 101, 152)} | {
    f"faster_rcnn_resnet{depth}_fpn_keras": f"faster-rcnn-r{depth}" for depth in (50, 101, 152)
}
# Fields of `model.overrides` with which every network, its detections and its losses are the original's.
FUNCTION: dict[str, Any] = {
    **RESNET,
    "padding": "black",
    "dialect": "od-api",
    "rpn.train.pre_nms_top_k": 100_000,
    "rpn.test.pre_nms_top_k": 100_000,
    "rpn.min_size": 0.0,
}
_STRIDE = 16  # stride of the features without an FPN
# Defaults of fields with the same meaning, and fields of `model.overrides`.
_SAME: dict[str, tuple[Any, ...]] = {
    "first_stage_box_predictor_depth": (512, "rpn.filters"),
    "first_stage_minibatch_size": (256, "rpn.sampling.count"),
    "first_stage_positive_balance_fraction": (0.5, "rpn.sampling.positive_fraction"),
    "first_stage_nms_iou_threshold": (0.7, "rpn.train.iou_threshold", "rpn.test.iou_threshold"),
    "first_stage_max_proposals": (300, "rpn.train.post_nms_top_k", "rpn.test.post_nms_top_k"),
    "second_stage_batch_size": (64, "roi.sampling.count"),
    "second_stage_balance_fraction": (0.25, "roi.sampling.positive_fraction"),
    "first_stage_objectness_loss_weight": (1.0, "rpn.score_loss_weight"),
    "first_stage_localization_loss_weight": (1.0, "rpn.box_loss_weight"),
    "second_stage_classification_loss_weight": (1.0, "box_head.class_loss_weight"),
    "second_stage_localization_loss_weight": (1.0, "box_head.box_loss_weight"),
}


def faster_rcnn_keys(model: Message) -> Keys:
    """Returns the keys of a `faster_rcnn`; {}: there is no such detector here."""
    extractor = feature_extractor(model, FASTER_RCNN_NETWORKS)
    if extractor is None:
        return {}
    features, kind = extractor
    is_fpn = kind.endswith("_fpn_keras")
    values = FUNCTION | (_pyramid(model, features) if is_fpn else _one_level(model, features))
    values |= {"backbone.frozen_stages": 0, "backbone.train_batch_norm": features.get("batch_norm_trainable", False)}
    features.only("pad_to_multiple", 32, reason="features have the size of the images here")
    model.only("number_of_stages", 2, reason="boxes come from two stages here, and masks have another head")
    model.only("first_stage_nms_score_threshold", 0.0, reason="proposals have no min score here")
    for name, (default, *ours) in _SAME.items():
        values |= dict.fromkeys(ours, model.get(name, default))
    values["anchors.crossing"] = "clip" if model.get("clip_anchors_to_image", False) else "ignore"
    values["box_head.roi_size"] = _roi_size(model)
    predictor = model.message("second_stage_box_predictor").message("mask_rcnn_box_predictor")
    values["box_head.class_agnostic"] = predictor.get("share_box_across_classes", False)
    base = penalty(features.message("conv_hyperparams")) if is_fpn else Penalty()
    keys: Keys = {"model.name": FASTER_RCNN_NETWORKS[kind]} | penalty_keys(base, _head_penalties(model))
    resizer = resizer_keys(model.message("image_resizer"))
    post = postprocess_keys(model.message("second_stage_post_processing"), converter="SOFTMAX")
    return keys | resizer | overrides(values) | post


def _pyramid(model: Message, features: Message) -> dict[str, Any]:
    """Returns the fields of a network with an FPN."""
    reason = "a backbone has the FPN's layers here"
    features.only("override_base_feature_extractor_hyperparams", True, default=False, reason=reason)
    fpn = features.message("fpn")
    generator = model.message("first_stage_anchor_generator")
    levels = pyramid_levels(fpn)
    anchors = multiscale_anchors(generator, levels)
    reason = "anchors of the first stage are in pixels"
    generator.message("multiscale_anchor_generator").only("normalize_coordinates", False, default=True, reason=reason)
    layers = layer_values(features.message("conv_hyperparams")) | {"box_head.units": 1024}
    sizes = {"neck.filters": fpn.get("additional_layer_depth", 256), "roi.canonical_level": levels[1] - 1}
    return layers | anchors | sizes


def _one_level(model: Message, features: Message) -> dict[str, Any]:
    """Returns the fields of a network without an FPN."""
    features.only("first_stage_features_stride", _STRIDE, reason=f"the first stage has a stride of {_STRIDE} here")
    reason = "a single level has a grid of anchors here"
    grid = model.message("first_stage_anchor_generator").member("generator", "grid_anchor_generator", reason)
    height = grid.get("height", 256)
    for name in ("height_stride", "width_stride"):
        grid.only(name, _STRIDE, reason="as the features")
    for name in ("height_offset", "width_offset"):
        grid.only(name, 0, reason="the first anchor is at 0 here")
    grid.only("width", height, default=256, reason="the base is a square here")
    scales, ratios = (grid.values(name, float) or [0.5, 1.0, 2.0] for name in ("scales", "aspect_ratios"))
    if min(*scales, *ratios) <= 0.0:
        grid.refuse("scales", f"{scales}, with aspect_ratios {ratios}: all are above 0")
        scales, ratios = [1.0], [1.0]
    shapes = [
        (scale / min(scales) * ratio**0.5, scale / min(scales) / ratio**0.5) for ratio in ratios for scale in scales
    ]
    anchors = {"anchors.scale": height * min(scales) / _STRIDE, "anchors.aspect_ratios": shapes}
    return RESNET_FUNCTION | {"batch_norm.momentum": 0.997} | anchors


def _roi_size(model: Message) -> int:
    size, kernel, stride = (
        model.get(name, 0) for name in ("initial_crop_size", "maxpool_kernel_size", "maxpool_stride")
    )
    if (kernel, stride) != (2, 2) or size < 2 or size % 2:
        model.refuse("initial_crop_size", f"{size}, pooled by {kernel}: crops of an even side are pooled by 2 here")
        return 7
    return int(size // 2)


def _head_penalties(model: Message) -> dict[str, Penalty]:
    """Returns the regularisation of the heads by our names; the original's have their own hyperparameters."""
    penalties = {}
    rpn = model.message("first_stage_box_predictor_conv_hyperparams")
    predictor = model.message("second_stage_box_predictor")
    kind = "mask_rcnn_box_predictor"
    boxes = predictor.member("predictor", kind, f"RoIs have a {kind} here")
    boxes.only("use_dropout", False, reason="heads have no dropout here")
    if boxes.get("predict_instance_masks", False):
        boxes.refuse("predict_instance_masks", "the mask head is another one here: train mask-rcnn-r50")
    for name, hyperparams in {"rpn": rpn, "box_head": boxes.message("fc_hyperparams")}.items():
        penalties[f"{name}/"] = penalty(hyperparams)
        for field in ("activation", "initializer"):
            if field in hyperparams:
                hyperparams.note(field, "layers of the heads have their own here, as the original's")
    return penalties
