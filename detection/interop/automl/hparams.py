"""Keys of google/automl EfficientDet's `hparams_config.py`, and the equivalent keys here or the reason for refusal."""

from collections.abc import Callable
from typing import Any

from detection.interop.conversion import SEPARABLE, Conversion, Keys
from detection.interop.hparams import (
    Hparam,
    Run,
    Trainer,
    any_value,
    choice,
    convert_hparams,
    only_default,
    parse_hparams,
    same,
    unless_none,
    unless_zero,
)

_OLD_NAMES = {  # names in the original's earlier versions
    "train_scale_min": "jitter_min",
    "train_scale_max": "jitter_max",
    "conv_bn_relu_pattern": "conv_bn_act_pattern",
}
_DEFAULTS_THERE = ("train.", "model.postprocess.")  # keys of hparams with the original's defaults


def convert_automl(text: str, *, batch_size: int = 64, trainer: Trainer = "tf2", where: str = "hparams") -> Conversion:
    """Converts hparams of google/automl's EfficientDet.

    Missing hparams of training and post-processing have the original's defaults; those of the network have our
    defaults of the detector `name`.

    Args:
        text: a YAML file, or `key=value,key=value`, as for `parse_hparams`.
        batch_size: the original's flag of that name.  Its `num_examples_per_epoch` needs no value: an epoch is
            as long as the training records.
        trainer: `tf2` for the original's `tf2/train.py`, `tf1` for its `main.py`; they differ in the warm-up's first
            learning rate, momentum, Adam, averaged variables and the constant schedule.
        where: name of the hparams in error messages.

    Raises:
        ConfigError: neither of the two, or an unknown key, with the nearest one.
    """
    given = {_OLD_NAMES.get(name, name): value for name, value in parse_hparams(text, where).items()}
    keys = {
        "train.batch_size": batch_size,
        "train.schedule.reference_batch_size": 64,
        "model.overrides.batch_norm.momentum": 0.99,  # a constant there
        "model.name": HPARAMS["name"].default,
    }
    defaults = {name: rule.default for name, rule in HPARAMS.items() if rule.keys.startswith(_DEFAULTS_THERE)}
    run = Run(given, HPARAMS, trainer)
    return convert_hparams(run, keys, defaults=defaults, program="google/automl", where=where, text=text)


def _image_size(value: Any, run: Run) -> Keys:
    if isinstance(value, str):
        width, separator, height = value.lower().partition("x")
        if not (separator and width.strip().isdigit() and height.strip().isdigit()):
            raise ValueError("neither a number nor WIDTHxHEIGHT")
        value = [int(height), int(width)]
    return {"model.image_size": list(value) if isinstance(value, tuple) else value}


def _rgb(key: str) -> Callable[[Any, Run], Keys]:
    return lambda value, run: {key: [value] * 3 if isinstance(value, int | float) else value}


def _heads(value: Any, run: Run) -> Keys:
    if list(value) != ["object_detection"]:
        raise ValueError(_SEGMENTATION)
    return {}


def _fpn_config(value: Any, run: Run) -> Keys:
    if not value:
        return {}
    keys: Keys = {
        "model.overrides.neck.graph": [[node["feat_level"], list(node["inputs_offsets"])] for node in value["nodes"]]
    }
    method = value.get("weight_method")
    return keys | ({"model.overrides.neck.fusion": _FUSIONS[method]} if method else {})


def _momentum(value: Any, run: Run) -> Keys:
    if run.get("optimizer") == "adam":
        return {"train.optimizer.beta_1": value} if run.trainer == "tf2" else {"train.optimizer.epsilon": 1e-8}
    legacy = {"train.optimizer.legacy_momentum": True} if run.trainer == "tf1" and value else {}
    return {"train.optimizer.momentum": value} | legacy


def _warmup_start(value: Any, run: Run) -> Keys:
    return {"train.schedule.warmup_learning_rate": value, "train.schedule.scale_warmup": run.trainer == "tf1"}


def _schedule(value: Any, run: Run) -> Keys:
    key = "train.schedule"
    if value == "stepwise":
        epochs = [run.get(name) for name in ("first_lr_drop_epoch", "second_lr_drop_epoch")]
        drops = [epoch for epoch in epochs if epoch < run.get("num_epochs")]
        if not drops:
            return {f"{key}.name": "constant"}
        return {f"{key}.name": "step", f"{key}.boundaries_epochs": drops, f"{key}.factors": [0.1, 0.01][: len(drops)]}
    if value == "polynomial":
        return {f"{key}.name": value, f"{key}.power": run.get("poly_lr_power")}
    if value == "cosine":
        return {f"{key}.name": value, f"{key}.hold_steps": 0}
    if value == "constant" and run.trainer == "tf1":
        return {f"{key}.name": value, f"{key}.warmup_epochs": 0.0}  # the only one without warm-up
    raise ValueError("not one of stepwise, cosine, polynomial, or constant of the tf1 trainer")


def _clip(value: Any, run: Run) -> Keys:
    return {"train.clip.per_variable_norm": value or None, "train.clip.global_norm": value or None}


def _averages(value: Any, run: Run) -> Keys:
    if not value:
        return {"train.ema.enabled": False}
    return {"train.ema.decay": value, "train.ema.include_batch_norm": run.trainer == "tf1"}


def _precision(value: Any, run: Run) -> Keys:
    if not value:
        return {"train.precision": "float32"}
    return {"train.precision": "mixed_bfloat16" if run.get("strategy") == "tpu" else "mixed_float16"}


def _loss_scale(value: Any, run: Run) -> Keys:
    if value is None:
        return {}
    if _precision(run.get("mixed_precision"), run)["train.precision"] != "mixed_float16":
        raise ValueError("only mixed_float16 scales its loss: set mixed_precision, or remove loss_scale")
    return {"train.loss_scale": "dynamic", "train.loss_scale_initial": value}


def _autoaugment(value: Any, run: Run) -> Keys:
    if value == "randaug":
        return {"train.augment.randaugment": {"layers": 1, "magnitude": 15.0}}
    if value not in (None, "v0", "v1", "v2", "v3"):
        raise ValueError("not one of v0, v1, v2, v3, randaug")
    return {"train.augment.autoaugment": value}


def _freeze(value: Any, run: Run) -> Keys:
    return {"train.freeze": [value.replace("tpu_batch_normalization", "batch_normalization")]} if value else {}


def _save_freq(value: Any, run: Run) -> Keys:
    return {"train.checkpoint_every_epochs": 1} if value == "epoch" else {"train.checkpoint_every": value}


def _score_threshold(value: Any, run: Run) -> Keys:
    if not value and run.get("nms_configs.method") == "gaussian":
        return {}
    return {f"{_NMS}.score_threshold": value or 0.0}


def _iou_loss(value: Any, run: Run) -> Keys:
    weight = run.get("iou_loss_weight") / 4  # the original divides by 4 coordinates, but has one value per box
    return {"model.overrides.loss.iou_loss_type": value, "model.overrides.loss.iou_loss_weight": weight}


_FUSIONS = {
    None: "fast_attention",
    "fastattn": "fast_attention",
    "attn": "attention",
    "channel_attn": "channel_attention",
    "channel_fastattn": "channel_fast_attention",
    "sum": "sum",
}
_ACTIVATIONS = {name: name for name in ("swish", "hswish", "mish", "relu", "relu6", "identity")}
_SEGMENTATION = (
    "the segmentation head needs a class per pixel, which COCO data sets do not have; the original trains it on "
    "Oxford-IIIT Pets only, in a separate script"
)
_DATA = "read from the data set"
_OVERRIDE = "model.overrides"
_NMS = "model.postprocess"

HPARAMS: dict[str, Hparam] = {
    "name": same("efficientdet-d1", "model.name"),
    "act_type": choice(
        "swish",
        f"{_OVERRIDE}.activation",
        _ACTIVATIONS | {"silu": "swish", "swish_native": "swish"},
        "the same; `silu` and `swish_native` are swish; refused: `srelu`, whose slope is in no checkpoint",
    ),
    "image_size": Hparam(640, "model.image_size", "`WIDTHxHEIGHT` becomes [height, width]", _image_size),
    "target_size": only_default(None, "the original does not use it; set image_size"),
    "input_rand_hflip": same(True, "train.augment.horizontal_flip"),
    "jitter_min": same(0.1, "train.augment.scale_min"),
    "jitter_max": same(2.0, "train.augment.scale_max"),
    "autoaugment_policy": Hparam(
        None, "train.augment.autoaugment, train.augment.randaugment", "`randaug` is RandAugment", _autoaugment
    ),
    "grid_mask": choice(
        False,
        "train.augment.grid_mask.probability",
        {False: 0.0, True: 0.69},
        "true: 0.69, the probability that the original's normal draw is below its 0.5; angles are uniform, not normal",
    ),
    "sample_image": any_value(None, "the report of every evaluation shows images"),
    "map_freq": any_value(5, "set train.validation.every_epochs"),
    "num_classes": any_value(90, f"{_DATA}: its categories, without an unused class"),
    "seg_num_classes": only_default(3, _SEGMENTATION),
    "heads": Hparam(["object_detection"], "", f"refused: segmentation: {_SEGMENTATION}", _heads),
    "skip_crowd_during_training": choice(
        True, "train.crowds", {True: "drop"}, "refused: false, which trains on crowds as if they were objects"
    ),
    "label_map": any_value(None, f"{_DATA}: its categories"),
    "max_instances_per_image": unless_none(100, "model.max_instances", "more objects are truncated, not an error"),
    "regenerate_source_id": any_value(False, f"{_DATA}: its image ids"),
    "min_level": same(3, f"{_OVERRIDE}.min_level"),
    "max_level": same(7, f"{_OVERRIDE}.max_level"),
    "num_scales": same(3, f"{_OVERRIDE}.anchors.num_scales"),
    "aspect_ratios": same(
        [1.0, 2.0, 0.5], f"{_OVERRIDE}.anchors.aspect_ratios", "the same: width / height, or [width, height]"
    ),
    "anchor_scale": same(4.0, f"{_OVERRIDE}.anchors.scale", "the same: a number, or a list of one per level"),
    "is_training_bn": choice(
        True,
        "train.freeze_batch_norm",
        {True: "none", False: "statistics"},
        "false: statistics are frozen, scale and offset train",
    ),
    "momentum": Hparam(
        0.9,
        "train.optimizer.momentum, train.optimizer.beta_1, train.optimizer.legacy_momentum, train.optimizer.epsilon",
        "beta_1 of adam; the tf1 trainer has legacy_momentum, and for adam an epsilon of 1e-8 and the default beta_1",
        _momentum,
    ),
    "optimizer": choice("sgd", "train.optimizer.name", {"sgd": "sgd", "adam": "adam"}, "the same"),
    "learning_rate": same(0.08, "train.schedule.learning_rate", "the same: for a batch of 64"),
    "lr_warmup_init": Hparam(
        0.008,
        "train.schedule.warmup_learning_rate, train.schedule.scale_warmup",
        "for any batch; of the tf1 trainer: for a batch of 64",
        _warmup_start,
    ),
    "lr_warmup_epoch": same(1.0, "train.schedule.warmup_epochs", "the same; refused unless below num_epochs"),
    "first_lr_drop_epoch": any_value(200.0, "see lr_decay_method"),
    "second_lr_drop_epoch": any_value(250.0, "see lr_decay_method"),
    "poly_lr_power": any_value(0.9, "see lr_decay_method"),
    "clip_gradients_norm": Hparam(
        10.0, "train.clip.per_variable_norm, train.clip.global_norm", "both, one after the other; 0: off", _clip
    ),
    "num_epochs": same(300, "train.epochs"),
    "data_format": only_default(
        "channels_last", "weights are the same in both formats, and TensorFlow selects the layout on GPUs"
    ),
    "mean_rgb": Hparam(None, f"{_OVERRIDE}.pixel_mean", "one number: all three", _rgb(f"{_OVERRIDE}.pixel_mean")),
    "stddev_rgb": Hparam(None, f"{_OVERRIDE}.pixel_std", "one number: all three", _rgb(f"{_OVERRIDE}.pixel_std")),
    "scale_range": only_default(False, "for inputs from -1 to 1, set mean_rgb and stddev_rgb to 127.5"),
    "label_smoothing": same(0.0, f"{_OVERRIDE}.loss.label_smoothing"),
    "alpha": same(0.25, f"{_OVERRIDE}.loss.focal_alpha"),
    "gamma": same(1.5, f"{_OVERRIDE}.loss.focal_gamma"),
    "delta": same(0.1, f"{_OVERRIDE}.loss.huber_delta"),
    "box_loss_weight": same(50.0, f"{_OVERRIDE}.loss.box_loss_weight"),
    "iou_loss_type": Hparam(
        None,
        f"{_OVERRIDE}.loss.iou_loss_type, {_OVERRIDE}.loss.iou_loss_weight",
        "a quarter of iou_loss_weight, for the same loss: the original divides it by 4",
        lambda value, run: _iou_loss(value, run) if value else {},
    ),
    "iou_loss_weight": any_value(1.0, "see iou_loss_type"),
    "weight_decay": same(4e-5, "train.optimizer.weight_decay"),
    "strategy": choice(
        None,
        "train.strategy",
        {None: "auto", "": "auto", "tpu": "tpu", "gpus": "mirrored", "multi-gpus": "multi_worker"},
        "`gpus`: mirrored; `multi-gpus`: multi_worker",
    ),
    "mixed_precision": Hparam(
        False,
        "train.precision",
        "mixed_bfloat16 on TPUs, else mixed_float16, also on CPUs, where the original has float32",
        _precision,
    ),
    "loss_scale": Hparam(None, "train.loss_scale, train.loss_scale_initial", "dynamic, from this value", _loss_scale),
    "model_optimizations": only_default(
        {}, "pruning and quantisation-aware training came from tfmot, which Keras 3 lacks"
    ),
    "box_class_repeats": same(3, f"{_OVERRIDE}.head.layers"),
    "fpn_cell_repeats": same(3, f"{_OVERRIDE}.neck.cells"),
    "fpn_num_filters": same(88, f"{_OVERRIDE}.neck.filters"),
    "separable_conv": Hparam(
        True,
        ", ".join(f"{_OVERRIDE}.{key}" for key in SEPARABLE),
        "both",
        lambda value, run: {f"{_OVERRIDE}.{key}": value for key in SEPARABLE},
    ),
    "apply_bn_for_resampling": same(True, f"{_OVERRIDE}.neck.resample_batch_norm"),
    "conv_after_downsample": same(False, f"{_OVERRIDE}.neck.conv_after_pooling"),
    "conv_bn_act_pattern": same(False, f"{_OVERRIDE}.neck.conv_bn_act"),
    "drop_remainder": any_value(True, "evaluation covers every image"),
    "nms_configs.method": choice(
        "gaussian",
        f"{_NMS}.nms",
        {"gaussian": "gaussian", "hard": "hard", None: "hard"},
        "none: hard; refused: `diou` and `linear` of pyfunc",
    ),
    "nms_configs.iou_thresh": unless_zero(
        None, f"{_NMS}.iou_threshold", "for hard NMS, 0 or none: 0.5; Gaussian NMS has none, and refuses it"
    ),
    "nms_configs.score_thresh": Hparam(
        0.0, f"{_NMS}.score_threshold", "0 or none: 0.001 for Gaussian NMS, 0 for hard NMS", _score_threshold
    ),
    "nms_configs.sigma": unless_zero(None, f"{_NMS}.sigma", "for Gaussian NMS, 0 or none: 0.5"),
    "nms_configs.pyfunc": only_default(
        False, "it computes other scores than the original's own graph, with a pixel more"
    ),
    "nms_configs.max_nms_inputs": unless_zero(
        0, f"{_NMS}.pre_nms_top_k", "0 or none: 5000, which the original's evaluation sets; see postprocessing.md"
    ),
    "nms_configs.max_output_size": same(100, f"{_NMS}.max_detections"),
    "tflite_max_detections": any_value(100, "model.postprocess.max_detections counts in every export"),
    "fpn_name": choice(
        None,
        f"{_OVERRIDE}.neck.graph",
        {None: "bifpn", "bifpn": "bifpn", "bifpn_dyn": "bifpn", "qufpn": "qufpn"},
        "the same; `bifpn_dyn` is bifpn",
    ),
    "fpn_weight_method": choice(
        None, f"{_OVERRIDE}.neck.fusion", _FUSIONS, "`attn`: attention, `fastattn`: fast_attention; `channel_`, too"
    ),
    "fpn_config": Hparam(
        None, f"{_OVERRIDE}.neck.graph, {_OVERRIDE}.neck.fusion", "its nodes and its weight_method", _fpn_config
    ),
    "survival_prob": Hparam(
        None,
        f"{_OVERRIDE}.head.survival_probability",
        "of the heads, as in the original; survival_probability is the backbone's",
        lambda value, run: {f"{_OVERRIDE}.head.survival_probability": value or None},
    ),
    "img_summary_steps": unless_none(None, "train.summaries.images_every"),
    "lr_decay_method": Hparam(
        "cosine",
        "train.schedule.name, train.schedule.boundaries_epochs, train.schedule.factors, train.schedule.power",
        "stepwise is step, with drops to a tenth and a hundredth, or constant if num_epochs ends before them; phases "
        "count from the end of warm-up, see phase; constant only of the tf1 trainer, without warm-up",
        _schedule,
    ),
    "moving_average_decay": Hparam(
        0.9998,
        "train.ema.decay, train.ema.enabled, train.ema.include_batch_norm",
        "0: off; the tf1 trainer also averages batch-norm statistics",
        _averages,
    ),
    "ckpt_var_scope": only_default(None, "set train.init.rename, which changes variable names by rules"),
    "skip_mismatch": any_value(True, "set train.init.skip_mismatch beside train.init.checkpoint"),
    "backbone_name": same("efficientnet-b1", f"{_OVERRIDE}.backbone.name"),
    "backbone_config": only_default(
        None, "no published model has blocks of its own; choose a backbone by backbone_name"
    ),
    "var_freeze_expr": Hparam(
        None, "train.freeze", "the same; `tpu_batch_normalization` is called batch_normalization", _freeze
    ),
    "use_keras_model": any_value(True, "both of the original's models are the same function"),
    "dataset_type": only_default(None, "the original does not use it"),
    "positives_momentum": Hparam(
        None,
        f"{_OVERRIDE}.loss.positives_momentum",
        "the same; below 0: the default here, the positives of all replicas",
        lambda value, run: {f"{_OVERRIDE}.loss.positives_momentum": value} if value is not None and value > 0 else {},
    ),
    "grad_checkpoint": same(False, f"{_OVERRIDE}.gradient_checkpointing"),
    "verbose": any_value(1, "train.log_every sets how often progress is reported"),
    "save_freq": Hparam(
        "epoch", "train.checkpoint_every, train.checkpoint_every_epochs", "a number is one of steps", _save_freq
    ),
}
