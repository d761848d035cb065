"""Keys of TPU Mask R-CNN's `mask_rcnn_config.py`, and the equivalent keys here or the reason for refusal."""

from typing import Any

from detection.interop.conversion import Conversion, Keys
from detection.interop.hparams import (
    Hparam,
    Run,
    any_value,
    choice,
    convert_hparams,
    only_default,
    parse_hparams,
    same,
    unless_zero,
)
from detection.models.backbones.resnet import RESNETS
from detection.models.detector import IMAGENET_MEAN, IMAGENET_STD
from detection.models.faster_rcnn.config import FASTER_RCNNS

_OVERRIDE, _NMS, _SCHEDULE = "model.overrides", "model.postprocess", "train.schedule"
_BACKBONES = {name.replace("-", ""): name for name in RESNETS}
_BACKBONES |= {name: name for name in ("mnasnet-a1", "mnasnet-b1", "mnasnet-small")}
# Fields of `model.overrides` of all its networks.
NETWORK: dict[str, Any] = {
    "dialect": "tpu",
    "backbone.layout": "tpu",
    "pixel_mean": list(IMAGENET_MEAN),
    "pixel_std": list(IMAGENET_STD),
}
# What no key of the original changes.
_CONSTANT: Keys = {
    **{f"{_OVERRIDE}.{name}": value for name, value in NETWORK.items()},
    f"{_NMS}.score_threshold": 0.05,
    f"{_NMS}.pre_nms_top_k": 1000,
    "train.clip.per_variable_norm": None,
    "train.clip.global_norm": None,
    "train.clip.bias_multiplier": 2.0,
    "train.clip.multiply_after_clipping": True,
    "train.ema.enabled": False,
    "train.augment.scale_min": 1.0,
    "train.augment.scale_max": 1.0,
}
_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "momentum": {"name": "sgd", "legacy_momentum": True},
    "adam": {"name": "adam", "epsilon": 1e-8},
    "rmsprop": {"name": "rmsprop", "epsilon": 1e-10, "initial_accumulator_value": 1.0},
    "adadelta": {"name": "adadelta"},
    "adagrad": {"name": "adagrad"},
    "lars": {"name": "lars", "lars_decays_weights": True},
}


def convert_tpu_mask_rcnn(text: str, *, where: str = "params") -> Conversion:
    """Converts params of TPU Mask R-CNN; missing ones have the original's defaults.

    Args:
        text: a YAML file, or `key=value,key=value`, as for `parse_hparams`.
        where: name of the params in error messages.

    Raises:
        ConfigError: neither of the two, or an unknown key, with the nearest one.
    """
    run = Run(parse_hparams(text, where), PARAMS)
    defaults = {name: rule.default for name, rule in PARAMS.items()}
    return convert_hparams(run, dict(_CONSTANT), defaults=defaults, program="TPU Mask R-CNN", where=where, text=text)


def _backbone(value: Any, run: Run) -> Keys:
    name = _BACKBONES[value]
    family = "mask-rcnn" if run.get("include_mask") else "faster-rcnn"
    preset = f"{family}-{name.replace('resnet-', 'r')}"
    return {"model.name": preset if preset in FASTER_RCNNS else f"{family}-r50", f"{_OVERRIDE}.backbone.name": name}


def _masks(value: Any, run: Run) -> Keys:
    return {"evaluate.iou_types": ["bbox", "segm"] if value else ["bbox"]}


def _mask_size(value: Any, run: Run) -> Keys:
    if value % 2:
        raise ValueError("masks have twice the side of their RoIs' features here: set an even number")
    return {f"{_OVERRIDE}.mask_head.roi_size": value // 2}


def _background(value: Any, run: Run) -> Keys:
    return {f"{_OVERRIDE}.roi.background_iou": [run.get("bg_thresh_lo"), run.get("bg_thresh_hi")]}


def _proposal_iou(value: Any, run: Run) -> Keys:
    return {f"{_OVERRIDE}.rpn.train.iou_threshold": value, f"{_OVERRIDE}.rpn.test.iou_threshold": value}


def _groups(value: Any, run: Run) -> Keys:
    if value > 1:
        raise ValueError("statistics are those of one replica or of all here: set -1 or 1")
    return {"train.sync_batch_norm": value == 1} if run.get("is_training_bn") else {}


def _optimizer(value: Any, run: Run) -> Keys:
    keys = {f"train.optimizer.{key}": setting for key, setting in _OPTIMIZERS[value].items()}
    if value in ("momentum", "rmsprop", "lars"):
        keys["train.optimizer.momentum"] = run.get("momentum")
    if value == "lars":
        keys["train.optimizer.lars_weight_decay"] = run.get("lars_weight_decay")
    return keys


def _schedule(value: Any, run: Run) -> Keys:
    if value == "cosine":
        return {f"{_SCHEDULE}.name": "cosine", f"{_SCHEDULE}.hold_steps": 0}
    if value != "step":
        raise ValueError("not one of step, cosine")
    rates, steps = run.get("learning_rate_levels"), run.get("learning_rate_steps")
    if len(rates) != len(steps):
        raise ValueError(f"{len(rates)} learning_rate_levels for {len(steps)} learning_rate_steps")
    if not rates:
        return {f"{_SCHEDULE}.name": "constant"}
    return {f"{_SCHEDULE}.name": "step", f"{_SCHEDULE}.rates": list(rates), f"{_SCHEDULE}.boundaries": list(steps)}


def _clip(value: Any, run: Run) -> Keys:
    return {"train.clip.norm_ratio": value if value > 0.0 else None}


def _checkpoint(value: Any, run: Run) -> Keys:
    if run.get("warm_start_path"):
        return {"train.init.checkpoint": run.get("warm_start_path"), "train.init.fine_tune_type": "full"}
    if not value:
        return {"model.weights": "none"}
    return {"train.init.checkpoint": value, "train.init.fine_tune_type": "classification"}


_LOOP = ("train.steps_per_loop", "train.checkpoint_every", "train.summaries.images_every")
_DATA = "read from the data set"

PARAMS: dict[str, Hparam] = {
    "transpose_input": any_value(True, "the same results"),
    "conv0_space_to_depth_block_size": any_value(2, "the same results"),
    "iterations_per_loop": Hparam(
        2500,
        ", ".join(_LOOP),
        "all, as a picture or a checkpoint ends a loop",
        lambda value, run: dict.fromkeys(_LOOP, value),
    ),
    "num_cores": any_value(8, "all cores of the TPU are used"),
    "use_tpu": choice(True, "train.strategy", {True: "tpu", False: "auto"}, "true: tpu; false: auto"),
    "image_size": same([1024, 1024], "model.image_size"),
    "input_rand_hflip": same(True, "train.augment.horizontal_flip"),
    "aug_scale_min": same(1.0, "train.augment.scale_min"),
    "aug_scale_max": same(1.0, "train.augment.scale_max"),
    "gt_mask_size": same(112, f"{_OVERRIDE}.mask_head.object_size"),
    "num_classes": any_value(91, f"{_DATA}: its categories and a background"),
    "skip_crowd_during_training": choice(
        True, "train.crowds", {True: "drop"}, "refused: false, which trains on crowds as if they were objects"
    ),
    "use_category": only_default(True, "set categories in the data set"),
    "rpn_positive_overlap": same(0.7, f"{_OVERRIDE}.rpn.matcher.positive_iou"),
    "rpn_negative_overlap": same(0.3, f"{_OVERRIDE}.rpn.matcher.negative_iou"),
    "rpn_batch_size_per_im": same(256, f"{_OVERRIDE}.rpn.sampling.count"),
    "rpn_fg_fraction": same(0.5, f"{_OVERRIDE}.rpn.sampling.positive_fraction"),
    "rpn_pre_nms_topn": same(2000, f"{_OVERRIDE}.rpn.train.pre_nms_top_k"),
    "rpn_post_nms_topn": same(1000, f"{_OVERRIDE}.rpn.train.post_nms_top_k"),
    "rpn_nms_threshold": Hparam(
        0.7, f"{_OVERRIDE}.rpn.train.iou_threshold, {_OVERRIDE}.rpn.test.iou_threshold", "both, as there", _proposal_iou
    ),
    "rpn_min_size": Hparam(
        0.0,
        f"{_OVERRIDE}.rpn.min_size",
        "at least 1, as there",
        lambda value, run: {f"{_OVERRIDE}.rpn.min_size": max(1.0, value)},
    ),
    "batch_size_per_im": same(512, f"{_OVERRIDE}.roi.sampling.count"),
    "fg_fraction": same(0.25, f"{_OVERRIDE}.roi.sampling.positive_fraction"),
    "fg_thresh": same(0.5, f"{_OVERRIDE}.roi.positive_iou"),
    "bg_thresh_hi": Hparam(0.5, f"{_OVERRIDE}.roi.background_iou", "[bg_thresh_lo, bg_thresh_hi]", _background),
    "bg_thresh_lo": any_value(0.0, "see bg_thresh_hi"),
    "fast_rcnn_mlp_head_dim": same(1024, f"{_OVERRIDE}.box_head.units"),
    "output_box_features": only_default(False, "features of boxes are no output"),
    "bbox_reg_weights": same([10.0, 10.0, 5.0, 5.0], f"{_OVERRIDE}.box_head.code_factors"),
    "include_mask": Hparam(True, "evaluate.iou_types", "also chooses model.name", _masks),
    "mrcnn_resolution": Hparam(28, f"{_OVERRIDE}.mask_head.roi_size", "its half", _mask_size),
    "test_detections_per_image": same(100, f"{_NMS}.max_detections"),
    "test_nms": same(0.5, f"{_NMS}.iou_threshold"),
    "test_rpn_pre_nms_topn": same(1000, f"{_OVERRIDE}.rpn.test.pre_nms_top_k"),
    "test_rpn_post_nms_topn": same(1000, f"{_OVERRIDE}.rpn.test.post_nms_top_k"),
    "test_rpn_nms_thresh": any_value(0.7, "the original does not read it"),
    "use_batched_nms": any_value(False, "the same results"),
    "min_level": same(2, f"{_OVERRIDE}.min_level"),
    "max_level": same(6, f"{_OVERRIDE}.max_level"),
    "num_scales": same(1, f"{_OVERRIDE}.anchors.num_scales"),
    "aspect_ratios": same([[1.0, 1.0], [1.4, 0.7], [0.7, 1.4]], f"{_OVERRIDE}.anchors.aspect_ratios"),
    "anchor_scale": same(8.0, f"{_OVERRIDE}.anchors.scale"),
    "num_batch_norm_group": Hparam(-1, "train.sync_batch_norm", "-1: false; 1: true", _groups),
    "is_training_bn": same(False, f"{_OVERRIDE}.backbone.train_batch_norm"),
    "momentum": any_value(0.9, "see optimizer: train.optimizer.momentum"),
    "delta": any_value(0.1, "the original does not read it"),
    "rpn_box_loss_weight": same(1.0, f"{_OVERRIDE}.rpn.box_loss_weight"),
    "fast_rcnn_box_loss_weight": same(1.0, f"{_OVERRIDE}.box_head.box_loss_weight"),
    "mrcnn_weight_loss_mask": same(1.0, f"{_OVERRIDE}.mask_head.loss_weight"),
    "l2_weight_decay": same(1e-4, "train.optimizer.weight_decay"),
    "train_batch_size": same(64, "train.batch_size"),
    "learning_rate_type": Hparam(
        "step", f"{_SCHEDULE}.name, {_SCHEDULE}.rates, {_SCHEDULE}.boundaries", "step or cosine", _schedule
    ),
    "init_learning_rate": same(0.08, f"{_SCHEDULE}.learning_rate"),
    "warmup_learning_rate": same(0.0067, f"{_SCHEDULE}.warmup_learning_rate"),
    "warmup_steps": same(500, f"{_SCHEDULE}.warmup_steps"),
    "learning_rate_levels": any_value([0.008, 0.0008], "see learning_rate_type: train.schedule.rates"),
    "learning_rate_steps": any_value([15000, 20000], "see learning_rate_type: train.schedule.boundaries"),
    "total_steps": same(22500, "train.steps"),
    "training_file_pattern": unless_zero(None, "data.splits.train.records", "the same"),
    "backbone": Hparam("resnet50", f"model.name, {_OVERRIDE}.backbone.name", "with a hyphen: resnet-50", _backbone),
    "checkpoint": Hparam(
        "", "train.init.checkpoint, train.init.fine_tune_type, model.weights", "the backbone only", _checkpoint
    ),
    "warm_start_path": any_value("", "see checkpoint: all variables"),
    "skip_checkpoint_variables": only_default("^NO_SKIP$", "names of variables differ here: set train.init.skip"),
    "precision": choice("bfloat16", "train.precision", {"bfloat16": "bfloat16", "float32": "float32"}, "the same"),
    "use_host_call": any_value(False, "summaries are written in any case"),
    "optimizer": Hparam(
        "momentum",
        "train.optimizer.name, train.optimizer.momentum, train.optimizer.epsilon",
        "momentum is sgd with legacy_momentum; others have the constants of TF1",
        _optimizer,
    ),
    "global_gradient_clip_ratio": Hparam(-1.0, "train.clip.norm_ratio", "0 or below: off", _clip),
    "lars_weight_decay": any_value(1e-4, "see optimizer: train.optimizer.lars_weight_decay"),
    "eval_batch_size": same(8, "evaluate.batch_size"),
    "num_steps_per_eval": any_value(2500, "set train.validation.every"),
    "eval_samples": any_value(5000, "an evaluation covers every image"),
    "validation_file_pattern": unless_zero(None, "data.splits.eval.records", "the same"),
    "val_json_file": any_value("", "ground truth is that of the records"),
    "include_groundtruth_in_features": any_value(False, "ground truth is that of the records"),
    "visualize_images_summary": any_value(False, "summaries have images in any case"),
}
