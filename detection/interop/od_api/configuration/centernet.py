"""The Object Detection API's CenterNets, as keys of our configuration."""

from typing import Any

from detection.interop.conversion import Keys
from detection.interop.od_api.configuration.parts import feature_extractor, overrides, resizer_keys, values_by_key
from detection.interop.text_proto import Message
from detection.models.backbones.hourglass import HOURGLASSES
from detection.models.centernet.config import head_keys
from detection.models.centernet.keypoint_options import HEATMAP, KEYPOINT_TASKS, OFFSET, REGRESSION, KeypointPostprocess
from schemas.quoting import quoted

# Detectors by the type of their feature extractor.
CENTERNET_NETWORKS = {f"resnet_v1_{depth}_fpn": f"centernet-r{depth}" for depth in (18, 34, 50, 101)} | {
    **{f"resnet_v2_{depth}": f"centernet-r{depth}-v2" for depth in (50, 101)},
    "mobilenet_v2_fpn": "centernet-mobilenet-v2",
    "mobilenet_v2_fpn_sep_conv": "centernet-mobilenet-v2",
    **{name.replace("-", "_"): f"centernet-{name}" for name in HOURGLASSES},
}
_NO_CHANNELS = {"channel_means": [0.0] * 3, "channel_stds": [1.0] * 3}
_KEYPOINTS = "keypoint_estimation_task"
_KEYPOINT_WEIGHTS = {
    f"{task}_loss_weight": f"keypoints.{task.removeprefix('keypoint_')}_loss_weight" for task in KEYPOINT_TASKS
}
_BOX_HEADS = {"size": "scale_head_params", "offset": "offset_head_params"}
_KEYPOINT_HEADS = {HEATMAP: "heatmap_head_params", OFFSET: "offset_head_params", REGRESSION: "regress_head_params"}
_WEIGHTS = {"offset_loss_weight": (1.0, "loss.offset_loss_weight"), "scale_loss_weight": (0.1, "loss.size_loss_weight")}


def centernet_keys(model: Message) -> Keys:
    """Returns the keys of a `center_net`; {}: there is no such detector here."""
    extractor = feature_extractor(model, CENTERNET_NETWORKS)
    if extractor is None:
        return {}
    features, kind = extractor
    if "mask_estimation_task" in model:
        model.refuse("mask_estimation_task", "there are boxes and keypoints only here")
    values: dict[str, Any] = {"padding": "black", "head.separable_conv": model.get("use_depthwise", False)}
    values |= _neck(features, kind) | _pixels(features, kind)
    boxes = model.message("object_detection_task")
    if "object_detection_task" not in model:
        model.refuse("object_detection_task", "missing; boxes have their loss here")
    _require_l1(boxes.message("localization_loss"))
    for name, (default, key) in _WEIGHTS.items():
        values[key] = boxes.get("task_loss_weight", 1.0) * boxes.get(name, default)
    centers = model.message("object_center_params")
    values |= _centers(centers)
    heads = {"center": _convs(centers, "center_head_params")}
    heads |= {task: _convs(boxes, name) for task, name in _BOX_HEADS.items()}
    keys: Keys = {"model.name": CENTERNET_NETWORKS[kind], "train.optimizer.weight_decay": 0.0}
    if _KEYPOINTS in model:
        keys["model.name"] += "-kpts"
        tasks = model.messages(_KEYPOINTS)
        if len(tasks) > 1:
            model.refuse(_KEYPOINTS, "all keypoints have one task here")
        focal = (values["loss.focal_alpha"], values["loss.focal_beta"])
        for task in reversed(tasks):  # the first one counts
            values |= _keypoints(task, focal)
            heads |= {head: _convs(task, name) for head, name in _KEYPOINT_HEADS.items()}
            keys |= {
                f"model.postprocess.keypoints.{name}": task.get(name, field.default)
                for name, field in KeypointPostprocess.model_fields.items()
            }
        model.note("keypoint_label_map_path", "keypoints are those of the data set's categories")
    values |= head_keys(heads)
    most = centers.get("max_box_predictions", 100)
    post = {"model.postprocess.score_threshold": 0.0, "model.postprocess.max_detections": most}
    return keys | resizer_keys(model.message("image_resizer")) | overrides(values) | post


def _neck(features: Message, kind: str) -> dict[str, Any]:
    features.only("use_depthwise", False, reason="use_separable_conv is the neck's option here")
    features.only("depth_multiplier", 1.0, reason="networks have their own widths here")
    if kind in ("resnet_v1_18_fpn", "resnet_v1_34_fpn", "resnet_v2_50", "resnet_v2_101"):
        return {"backbone.layout": "od-api"}
    if not kind.startswith("mobilenet"):
        return {}
    interpolation = features.only("upsampling_interpolation", "nearest", "bilinear", reason="unknown interpolation")
    # For a `..._sep_conv` without the field, the checkpoint's variables decide: versions of the original differ.
    of_version = "use_separable_conv" in features or not kind.endswith("_sep_conv")
    separable = features.get("use_separable_conv", False)
    return {"neck.interpolation": interpolation} | ({"neck.separable_conv": separable} if of_version else {})


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
    if not task.get("predict_depth", False):
        task.accept("per_keypoint_depth", "keypoint_depth_loss_weight")
    task.accept("gaussian_denom_ratio")  # only argmax_postprocessing reads it
    weight = task.get("task_loss_weight", 1.0)
    return {key: weight * task.get(name, 1.0) for name, key in _KEYPOINT_WEIGHTS.items()} | {
        "keypoints.spread": values_by_key(task, "keypoint_label_to_std"),
        "keypoints.radius": task.get("offset_peak_radius", 0),
        "keypoints.per_keypoint_offset": task.get("per_keypoint_offset", False),
    }


def _pixels(features: Message, kind: str) -> dict[str, Any]:
    """Returns mean and deviation of the pixels; ResNets have their own, after these."""
    channels = {name: features.values(name, float) or default for name, default in _NO_CHANNELS.items()}
    if not kind.startswith("hourglass"):
        for name, values in channels.items():
            if values != _NO_CHANNELS[name]:
                features.refuse(name, f"{quoted(values)}: the backbone has its own mean of pixels here")
        features.only("bgr_ordering", False, reason="pixels are RGB here")
        return {}
    step = -1 if features.get("bgr_ordering", False) else 1
    return {"pixel_mean": channels["channel_means"][::step], "pixel_std": channels["channel_stds"][::step]}


def _centers(centers: Message) -> dict[str, Any]:
    alpha, beta = _focal(centers.message("classification_loss"))
    centers.only("heatmap_bias_init", -2.19, reason="the initial bias of heat-maps is -2.19 here")
    centers.only("use_labeled_classes", False, reason="all classes have a loss here")
    centers.only("peak_max_pool_kernel_size", 3, reason="peaks are maxima of 3x3 cells here")
    return {
        "loss.focal_alpha": alpha,
        "loss.focal_beta": beta,
        "loss.center_loss_weight": centers.get("object_center_loss_weight", 1.0),
        "loss.min_box_overlap_iou": centers.get("min_box_overlap_iou", 0.7),
    }


def _focal(loss: Message) -> tuple[float, float]:
    """Returns alpha and beta of a heat-map's loss."""
    reason = "heat-maps have a penalty-reduced focal loss here"
    focal = loss.member("loss", "penalty_reduced_logistic_focal_loss", reason)
    return focal.get("alpha", 0.0), focal.get("beta", 0.0)


def _require_l1(loss: Message) -> None:
    kind = "l1_localization_loss"
    if loss.kind("loss", kind, reason="sizes, offsets and keypoints have an L1 loss here"):
        loss.accept(kind)


def _convs(parent: Message, name: str) -> list[tuple[int, int]]:
    """Returns the channels and the kernel sides of a head's convolutions; without the message, they are 256 and 3."""
    if name not in parent:
        return [(256, 3)]
    head = parent.message(name)
    filters, kernels = head.values("num_filters", int), head.values("kernel_sizes", int)
    if len(filters) != len(kernels):
        head.refuse("kernel_sizes", f"{len(filters)} num_filters, but {len(kernels)} kernel_sizes")
    return list(zip(filters, kernels, strict=False))
