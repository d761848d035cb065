"""The Object Detection API's CenterNets, as keys of our configuration."""

from typing import Any

from detection.interop.conversion import Keys
from detection.interop.od_api.configuration.parts import overrides, resizer_keys
from detection.interop.text_proto import Message
from detection.models.backbones.hourglass import HOURGLASSES
from detection.models.centernet.config import head_fields
from detection.models.heads.keypoint_options import HEATMAP, KEYPOINT_TASKS, OFFSET, REGRESSION, KeypointPostprocess

# Detectors by the type of their feature extractor.
CENTERNET_NETWORKS = {f"resnet_v1_{depth}_fpn": f"centernet-r{depth}" for depth in (18, 34, 50, 101)} | {
    "mobilenet_v2_fpn": "centernet-mobilenet-v2",
    "mobilenet_v2_fpn_sep_conv": "centernet-mobilenet-v2",
    **{name.replace("-", "_"): f"centernet-{name}" for name in HOURGLASSES},
}
_NO_CHANNELS = {"channel_means": [0.0] * 3, "channel_stds": [1.0] * 3}
_KEYPOINTS = "keypoint_estimation_task"
_KEYPOINT_WEIGHTS = tuple(f"{task}_loss_weight" for task in KEYPOINT_TASKS)
_BOX_HEADS = {"size": "scale_head_params", "offset": "offset_head_params"}
_KEYPOINT_HEADS = {HEATMAP: "heatmap_head_params", OFFSET: "offset_head_params", REGRESSION: "regress_head_params"}
_WEIGHTS = {"offset_loss_weight": "offset_loss_weight", "scale_loss_weight": "size_loss_weight"}


def centernet_keys(model: Message) -> Keys:
    """Returns the keys of a `center_net`; {}: there is no such detector here."""
    features = model.message("feature_extractor")
    if features["type"] not in CENTERNET_NETWORKS:
        features.refuse("type", f"{features['type']}: no such network here; known: {', '.join(CENTERNET_NETWORKS)}")
        return {}
    if "mask_estimation_task" in model:
        model.refuse("mask_estimation_task", "there are boxes and keypoints only here")
    values: dict[str, Any] = {"padding": "black", "separable_heads": model["use_depthwise"]}
    values |= _neck(features) | _pixels(features)
    boxes = model.message("object_detection_task")
    if "object_detection_task" not in model:
        model.refuse("object_detection_task", "missing; boxes have their loss here")
    _require_l1(boxes.message("localization_loss"))
    for name, key in _WEIGHTS.items():
        values[key] = boxes["task_loss_weight"] * boxes[name]
    centers = model.message("object_center_params")
    values |= _centers(centers)
    heads = {"center": _convs(centers, "center_head_params")}
    heads |= {task: _convs(boxes, name) for task, name in _BOX_HEADS.items()}
    model.note("num_classes", f"{model['num_classes']} classes: those of the data set are used")
    keys: Keys = {"model.name": CENTERNET_NETWORKS[features["type"]], "train.optimizer.weight_decay": 0.0}
    if _KEYPOINTS in model:
        keys["model.name"] += "-kpts"
        tasks = model.messages(_KEYPOINTS)
        if len(tasks) > 1:
            model.refuse(_KEYPOINTS, "all keypoints have one task here")
        focal = (values["focal_alpha"], values["focal_beta"])
        values |= _keypoints(tasks[0], focal)
        heads |= {task: _convs(tasks[0], name) for task, name in _KEYPOINT_HEADS.items()}
        keys |= {f"model.postprocess.keypoints.{name}": tasks[0][name] for name in KeypointPostprocess.model_fields}
        model.note("keypoint_label_map_path", "keypoints are those of the data set's categories")
    values |= head_fields(heads)
    most = centers["max_box_predictions"]
    post = {"model.postprocess.score_threshold": 0.0, "model.postprocess.max_detections": most}
    return keys | resizer_keys(model.message("image_resizer")) | overrides(values) | post


def _neck(features: Message) -> dict[str, Any]:
    features.only("use_depthwise", False, reason="use_separable_conv is the neck's option here")
    features.only("depth_multiplier", 1.0, reason="networks have their own widths here")
    if features["type"] in ("resnet_v1_18_fpn", "resnet_v1_34_fpn"):
        return {"resnet_layout": "od-api"}
    if not features["type"].startswith("mobilenet"):
        return {}
    interpolation = features.only("upsampling_interpolation", "nearest", "bilinear", reason="unknown interpolation")
    # Of a `..._sep_conv` without the field, the checkpoint tells whether the neck is separable.
    of_version = "use_separable_conv" in features or not features["type"].endswith("_sep_conv")
    separable = features["use_separable_conv"]
    return {"neck_interpolation": interpolation} | ({"separable_neck": separable} if of_version else {})


def _keypoints(task: Message, focal: tuple[float, float]) -> dict[str, Any]:
    """Returns the overrides of a task of keypoints; `focal`: alpha and beta of the centers' heat-map."""
    task.accept("task_name")
    task.note("keypoint_class_name", "keypoints are those of all categories of the data set")
    loss = task.message("loss")
    _require_l1(loss.message("localization_loss"))
    if _focal(loss.message("classification_loss")) != focal:
        loss.refuse("classification_loss", "all heat-maps have the same loss here")
    task.only("heatmap_bias_init", -2.19, reason="the initial bias of heat-maps is -2.19 here")
    task.only("predict_depth", False, reason="keypoints have no depth here")
    task.only("argmax_postprocessing", False, reason="candidates are refined peaks here")
    if not task["predict_depth"]:
        task.accept("per_keypoint_depth", "keypoint_depth_loss_weight")
    task.accept("gaussian_denom_ratio")  # of argmax_postprocessing
    return {name: task["task_loss_weight"] * task[name] for name in _KEYPOINT_WEIGHTS} | {
        "keypoint_spread": {entry["key"]: entry["value"] for entry in task.messages("keypoint_label_to_std")},
        "keypoint_radius": task["offset_peak_radius"],
        "per_keypoint_offset": task["per_keypoint_offset"],
    }


def _pixels(features: Message) -> dict[str, Any]:
    """Returns mean and deviation of the pixels; ResNets have their own, after these."""
    channels = {name: features[name] or default for name, default in _NO_CHANNELS.items()}
    if not features["type"].startswith("hourglass"):
        for name, default in _NO_CHANNELS.items():
            features.only(name, [], default, reason="the backbone has its own mean of pixels here")
        features.only("bgr_ordering", False, reason="pixels are RGB here")
        return {}
    step = -1 if features["bgr_ordering"] else 1
    return {"pixel_mean": channels["channel_means"][::step], "pixel_std": channels["channel_stds"][::step]}


def _centers(centers: Message) -> dict[str, Any]:
    alpha, beta = _focal(centers.message("classification_loss"))
    centers.only("heatmap_bias_init", -2.19, reason="the initial bias of heat-maps is -2.19 here")
    centers.only("use_labeled_classes", False, reason="all classes have a loss here")
    centers.only("peak_max_pool_kernel_size", 3, reason="peaks are maxima of 3x3 cells here")
    return {
        "focal_alpha": alpha,
        "focal_beta": beta,
        "center_loss_weight": centers["object_center_loss_weight"],
        "min_box_overlap_iou": centers["min_box_overlap_iou"],
    }


def _focal(loss: Message) -> tuple[float, float]:
    """Returns alpha and beta of a heat-map's loss."""
    kind = "penalty_reduced_logistic_focal_loss"
    found = loss.kind("loss", kind, reason="heat-maps have a penalty-reduced focal loss here")
    focal = loss.message(found or kind)
    return focal["alpha"], focal["beta"]


def _require_l1(loss: Message) -> None:
    kind = "l1_localization_loss"
    if loss.kind("loss", kind, reason="sizes, offsets and keypoints have an L1 loss here"):
        loss.accept(kind)


def _convs(parent: Message, name: str) -> list[tuple[int, int]]:
    """Returns the channels and the kernel sides of a head's convolutions; without the message, they are 256 and 3."""
    if name not in parent:
        return [(256, 3)]
    head = parent.message(name)
    filters, kernels = head["num_filters"], head["kernel_sizes"]
    if len(filters) != len(kernels):
        head.refuse("kernel_sizes", f"{len(filters)} num_filters, but {len(kernels)} kernel_sizes")
    return list(zip(filters, kernels, strict=False))
