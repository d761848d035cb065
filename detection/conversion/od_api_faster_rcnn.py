"""The Object Detection API's Faster R-CNNs with an FPN, as keys of our configuration."""

from typing import Any

from detection.conversion.conversion import Keys
from detection.conversion.od_api_parts import (
    l2_weight,
    layer_values,
    multiscale_anchors,
    overrides,
    postprocess_keys,
    resizer_keys,
)
from detection.conversion.text_proto import Message
from detection.models.backbones.resnet import RESNET_PIXEL_MEAN

# Detectors by the type of their feature extractor.
FASTER_RCNN_NETWORKS = {f"faster_rcnn_resnet{depth}_fpn_keras": f"faster-rcnn-r{depth}" for depth in (50, 101, 152)}
_LAYOUT = {
    "resnet_layout": "od-api",
    "fpn_layout": "od-api",
    "rpn_layout": "od-api",
    "pixel_mean": list(RESNET_PIXEL_MEAN),
    "pixel_std": [1.0, 1.0, 1.0],
    "frozen_stages": 0,
    "fc_units": 1024,
    "roi_align_samples": 2,
}
# Fields with the same meaning, and fields of `model.overrides`.
_SAME = {
    "first_stage_box_predictor_depth": ("rpn_filters",),
    "first_stage_minibatch_size": ("rpn_samples",),
    "first_stage_positive_balance_fraction": ("rpn_positive_fraction",),
    "first_stage_nms_iou_threshold": ("train_proposal_iou", "test_proposal_iou"),
    "first_stage_max_proposals": ("train_post_nms_top_k", "test_post_nms_top_k"),
    "second_stage_batch_size": ("roi_samples",),
    "second_stage_balance_fraction": ("roi_positive_fraction",),
}
_WEIGHTS = {
    "first_stage_objectness_loss_weight": "rpn_score_loss_weight",
    "first_stage_localization_loss_weight": "rpn_box_loss_weight",
    "second_stage_classification_loss_weight": "class_loss_weight",
    "second_stage_localization_loss_weight": "box_loss_weight",
}
_NORMALIZED = "losses of the two stages are divided as in TPU Mask R-CNN here, see mask_rcnn.md"


def faster_rcnn_keys(model: Message) -> Keys:
    """Returns the keys of a `faster_rcnn`; {}: there is no such detector here."""
    features = model.message("feature_extractor")
    if features["type"] not in FASTER_RCNN_NETWORKS:
        features.refuse("type", f"{features['type']}: no such network here; known: {', '.join(FASTER_RCNN_NETWORKS)}")
        return {}
    hyperparams = features.message("conv_hyperparams")
    values = _LAYOUT | layer_values(hyperparams) | _pyramid(model, features)
    values["train_batch_norm"] = features["batch_norm_trainable"]
    features.only("override_base_feature_extractor_hyperparams", True, reason="a backbone has the FPN's layers here")
    model.only("number_of_stages", 2, reason="boxes come from two stages here, and masks have another head")
    model.only("first_stage_nms_score_threshold", 0.0, reason="proposals have no min score here")
    for name, ours in _SAME.items():
        values |= dict.fromkeys(ours, model[name])
    for name, key in _WEIGHTS.items():
        values[key] = model[name]
        if name in model:
            model.note(name, _NORMALIZED)
    if model["clip_anchors_to_image"]:
        model.note("clip_anchors_to_image", "anchors that cross the border are neither clipped nor dropped here")
    values["box_roi_size"] = _roi_size(model)
    decay = l2_weight(hyperparams)
    keys: Keys = {"model.name": FASTER_RCNN_NETWORKS[features["type"]], "train.optimizer.weight_decay": decay}
    excluded = [f"{part}/" for part, weight in _head_weights(model).items() if weight == 0.0]
    if excluded and decay:
        keys |= {"train.optimizer.weight_decay_exclude": excluded}
    model.note("num_classes", f"{model['num_classes']} classes: those of the data set are used")
    resizer = resizer_keys(model.message("image_resizer"))
    if resizer.get("model.resize.mode") == "short_side":
        model.note("image_resizer", "padding has the mean of the pixels here, and is black there")
    post = postprocess_keys(model.message("second_stage_post_processing"), converter="SOFTMAX")
    return keys | resizer | overrides(values) | post


def _pyramid(model: Message, features: Message) -> dict[str, Any]:
    fpn = features.message("fpn")
    generator = model.message("first_stage_anchor_generator")
    anchors = multiscale_anchors(generator, (fpn["min_level"], fpn["max_level"]))
    reason = "anchors of the first stage are in pixels"
    generator.message("multiscale_anchor_generator").only("normalize_coordinates", False, reason=reason)
    return anchors | {"fpn_filters": fpn["additional_layer_depth"]}


def _roi_size(model: Message) -> int:
    size, kernel, stride = (model[name] for name in ("initial_crop_size", "maxpool_kernel_size", "maxpool_stride"))
    if (kernel, stride) != (2, 2) or size < 2 or size % 2:
        model.refuse("initial_crop_size", f"{size}, pooled by {kernel}: RoIs are means of 2 x 2 samples here")
        return 7
    return int(size // 2)


def _head_weights(model: Message) -> dict[str, float]:
    """Returns the L2 weights of the heads by our names; the original's have their own hyperparameters."""
    weights = {}
    rpn = model.message("first_stage_box_predictor_conv_hyperparams")
    predictor = model.message("second_stage_box_predictor")
    kind = predictor.kind("predictor", "mask_rcnn_box_predictor", reason="RoIs have a mask_rcnn_box_predictor here")
    boxes = predictor.message(kind or "mask_rcnn_box_predictor")
    if boxes["predict_instance_masks"]:
        boxes.refuse("predict_instance_masks", "the mask head is another one here: train mask-rcnn-r50")
    for name, hyperparams in {"rpn": rpn, "box_head": boxes.message("fc_hyperparams")}.items():
        weights[name] = l2_weight(hyperparams)
        if weights[name]:
            hyperparams.refuse("regularizer", f"0, or as in feature_extractor, here: {weights[name]:g}")
        for field in ("activation", "initializer"):
            if field in hyperparams:
                hyperparams.note(field, "layers of the heads have their own here, as the original's")
    return weights
