"""The Object Detection API's CenterNets, as keys of our configuration."""

from typing import Any

from detection.conversion.conversion import Keys
from detection.conversion.od_api_parts import overrides, resizer_keys
from detection.conversion.text_proto import Message

# Detectors by the type of their feature extractor.
CENTERNET_NETWORKS = {f"resnet_v1_{depth}_fpn": f"centernet-r{depth}" for depth in (50, 101)} | {
    "hourglass_104": "centernet-hourglass-104"
}
_NO_CHANNELS = {"channel_means": [0.0] * 3, "channel_stds": [1.0] * 3}
_TASKS = ("keypoint_estimation_task", "mask_estimation_task")
_WEIGHTS = {"offset_loss_weight": "offset_loss_weight", "scale_loss_weight": "size_loss_weight"}


def centernet_keys(model: Message) -> Keys:
    """Returns the keys of a `center_net`; {}: there is no such detector here."""
    features = model.message("feature_extractor")
    if features["type"] not in CENTERNET_NETWORKS:
        features.refuse("type", f"{features['type']}: no such network here; known: {', '.join(CENTERNET_NETWORKS)}")
        return {}
    model.only("use_depthwise", False, reason="convolutions of the heads are plain ones here")
    for task in _TASKS:
        if task in model:
            model.refuse(task, "there are boxes only here")
    values: dict[str, Any] = {"padding": "black"} | _pixels(features)
    boxes = model.message("object_detection_task")
    if "object_detection_task" not in model:
        model.refuse("object_detection_task", "missing; boxes have their loss here")
    loss = boxes.message("localization_loss")
    if loss.kind("loss", "l1_localization_loss", reason="sizes and offsets have an L1 loss here"):
        loss.accept("l1_localization_loss")
    for name, key in _WEIGHTS.items():
        values[key] = boxes["task_loss_weight"] * boxes[name]
    values |= _centers(model.message("object_center_params"))
    _require_one_head(boxes, "scale_head_params", "offset_head_params")
    model.note("num_classes", f"{model['num_classes']} classes: those of the data set are used")
    keys: Keys = {"model.name": CENTERNET_NETWORKS[features["type"]], "train.optimizer.weight_decay": 0.0}
    most = model.message("object_center_params")["max_box_predictions"]
    post = {"model.postprocess.score_threshold": 0.0, "model.postprocess.max_detections": most}
    return keys | resizer_keys(model.message("image_resizer")) | overrides(values) | post


def _pixels(features: Message) -> dict[str, Any]:
    """Returns mean and deviation of the pixels; ResNets have their own, after these."""
    features.only("use_depthwise", False, reason="convolutions of the neck are plain ones here")
    channels = {name: features[name] or default for name, default in _NO_CHANNELS.items()}
    if features["type"] != "hourglass_104":
        for name, default in _NO_CHANNELS.items():
            features.only(name, [], default, reason="a ResNet subtracts the mean of ImageNet here, and nothing else")
        features.only("bgr_ordering", False, reason="pixels are RGB here")
        return {}
    step = -1 if features["bgr_ordering"] else 1
    return {"pixel_mean": channels["channel_means"][::step], "pixel_std": channels["channel_stds"][::step]}


def _centers(centers: Message) -> dict[str, Any]:
    loss = centers.message("classification_loss")
    kind = "penalty_reduced_logistic_focal_loss"
    found = loss.kind("loss", kind, reason="heat-maps have a penalty-reduced focal loss here")
    focal = loss.message(found or kind)
    centers.only("heatmap_bias_init", -2.19, reason="the initial bias of heat-maps is -2.19 here")
    centers.only("use_labeled_classes", False, reason="all classes have a loss here")
    centers.only("peak_max_pool_kernel_size", 3, reason="peaks are maxima of 3x3 cells here")
    _require_one_head(centers, "center_head_params")
    return {
        "focal_alpha": focal["alpha"],
        "focal_beta": focal["beta"],
        "center_loss_weight": centers["object_center_loss_weight"],
        "min_box_overlap_iou": centers["min_box_overlap_iou"],
    }


def _require_one_head(task: Message, *names: str) -> None:
    """Lists heads with other layers than one 3x3 convolution of 256 channels."""
    for name in names:
        head = task.message(name)
        head.only("num_filters", [], [256], reason="heads have one inner layer of 256 channels here")
        head.only("kernel_sizes", [], [3], reason="heads have one inner 3x3 convolution here")
