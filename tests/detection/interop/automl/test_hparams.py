"""google/automl's hparams as our configuration."""

import re
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import yaml

from detection.interop.automl.hparams import HPARAMS, convert_automl
from detection.interop.hparams import Trainer
from detection.training.build_step import schedule_from_config
from detection.training.resolve import with_steps
from schemas.config.config_io import load_config, parse_config
from schemas.config.section import nested
from schemas.errors import ConfigError

CONFIGS = Path(__file__).parents[4] / "pipelines" / "configs"
# The keys of `default_detection_configs` in the original's last version.
KEYS = (
    "name act_type image_size target_size input_rand_hflip jitter_min jitter_max autoaugment_policy grid_mask "
    "sample_image map_freq num_classes seg_num_classes heads skip_crowd_during_training label_map "
    "max_instances_per_image regenerate_source_id min_level max_level num_scales aspect_ratios anchor_scale "
    "is_training_bn momentum optimizer learning_rate lr_warmup_init lr_warmup_epoch first_lr_drop_epoch "
    "second_lr_drop_epoch poly_lr_power clip_gradients_norm num_epochs data_format mean_rgb stddev_rgb "
    "scale_range label_smoothing alpha gamma delta box_loss_weight iou_loss_type iou_loss_weight weight_decay "
    "strategy mixed_precision loss_scale box_class_repeats fpn_cell_repeats fpn_num_filters separable_conv "
    "apply_bn_for_resampling conv_after_downsample conv_bn_act_pattern drop_remainder nms_configs "
    "tflite_max_detections fpn_name fpn_weight_method fpn_config survival_prob img_summary_steps lr_decay_method "
    "moving_average_decay ckpt_var_scope skip_mismatch backbone_name backbone_config var_freeze_expr "
    "use_keras_model dataset_type positives_momentum grad_checkpoint verbose save_freq"
)
RGB = {"mean_rgb": [123.675, 116.28, 103.53], "stddev_rgb": [58.395, 57.12, 57.375]}


def _tree(text: str, **options: Any) -> dict[str, Any]:
    conversion = convert_automl(text, **options)
    conversion.require_supported("hparams")
    conversion.config("hparams")
    return nested(conversion.keys)


def test_every_key_of_the_original_is_known() -> None:
    known = {name.partition(".")[0] for name in HPARAMS}
    assert set(KEYS.split()) <= known
    assert known - set(KEYS.split()) == {"model_optimizations"}  # of the version before
    assert all(rule.meaning for rule in HPARAMS.values())


def test_all_defaults_together_are_a_configuration() -> None:
    defaults: dict[str, Any] = {name: rule.default for name, rule in HPARAMS.items()} | RGB
    conversion = convert_automl(yaml.safe_dump(defaults))
    assert not conversion.unsupported
    config = conversion.config("hparams")
    assert config.train.epochs == 300
    assert config.train.schedule.warmup_epochs == 1
    assert config.train.checkpoint_every_epochs == 1
    assert config.train.schedule.name == "cosine"
    assert config.model.image_size == 640
    assert config.model.postprocess == {"nms": "gaussian", "max_detections": 100}


@pytest.mark.parametrize(
    ("text", "section", "expected"),
    [
        ("image_size=640x384", "model", {"image_size": [384, 640]}),
        # Divided by 4 there, although there is one value per box.
        (
            "iou_loss_type=ciou,iou_loss_weight=2.0,positives_momentum=0.9",
            "overrides",
            {"loss": {"iou_loss_type": "ciou", "iou_loss_weight": 0.5, "positives_momentum": 0.9}},
        ),
        ("{image_size: 1920x1280, num_classes: 3}", "model", {"image_size": [1280, 1920]}),
        (
            "fpn_name=qufpn,fpn_weight_method=channel_attn,act_type=silu,survival_prob=0.9",
            "overrides",
            {
                "neck": {"graph": "qufpn", "fusion": "channel_attention"},
                "activation": "swish",
                "head": {"survival_probability": 0.9},
            },
        ),
        (
            "separable_conv=false,apply_bn_for_resampling=false,conv_after_downsample=true,conv_bn_relu_pattern=true",
            "overrides",
            {
                "neck": {
                    "separable_conv": False,
                    "resample_batch_norm": False,
                    "conv_after_pooling": True,
                    "conv_bn_act": True,
                },
                "head": {"separable_conv": False},
            },
        ),
        (
            "aspect_ratios=1.0*2.0*0.5,anchor_scale=3*4*4*4*5,mean_rgb=127.0",
            "overrides",
            {"anchors": {"aspect_ratios": [1.0, 2.0, 0.5], "scale": [3, 4, 4, 4, 5]}, "pixel_mean": [127.0] * 3},
        ),
        (
            "{fpn_config: {weight_method: sum, nodes: [{feat_level: 6, inputs_offsets: [3, 4]}]}}",
            "overrides",
            {"neck": {"graph": [[6, [3, 4]]], "fusion": "sum"}},
        ),
        (
            "nms_configs.method=hard,nms_configs.iou_thresh=0.4,nms_configs.max_nms_inputs=5000",
            "postprocess",
            {"nms": "hard", "iou_threshold": 0.4, "pre_nms_top_k": 5000, "score_threshold": 0.0},
        ),
        # Without a threshold, hard NMS returns every box there; 0 stands for the default of each method.
        ("nms_configs.method=hard,nms_configs.score_thresh=0.0", "postprocess", {"score_threshold": 0.0}),
        ("{nms_configs: {method: null, iou_thresh: 0}}", "postprocess", {"nms": "hard", "score_threshold": 0.0}),
        ("nms_configs.method=hard,nms_configs.score_thresh=0.2", "postprocess", {"score_threshold": 0.2}),
        ("nms_configs.score_thresh=0.2,nms_configs.sigma=0", "postprocess", {"score_threshold": 0.2}),
    ],
)
def test_values_of_the_network(text: str, section: str, expected: dict[str, Any]) -> None:
    model = _tree(text)["model"]
    assert _part_of(model if section == "model" else model[section], expected) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optimizer=adam,momentum=0.8,learning_rate=0.008", {"optimizer": {"name": "adam", "beta_1": 0.8}}),
        (
            "lr_decay_method=stepwise,num_epochs=300",
            {"schedule": {"name": "step", "boundaries_epochs": [200, 250], "factors": [0.1, 0.01]}, "epochs": 300},
        ),
        # Drops after the last epoch do nothing there.
        (
            "lr_decay_method=stepwise,num_epochs=250",
            {"schedule": {"name": "step", "boundaries_epochs": [200], "factors": [0.1]}, "epochs": 250},
        ),
        ("lr_decay_method=stepwise,num_epochs=9", {"schedule": {"name": "constant", "warmup_epochs": 1}, "epochs": 9}),
        ("lr_decay_method=polynomial", {"schedule": {"name": "polynomial", "power": 0.9}}),
        ("moving_average_decay=0", {"ema": {"enabled": False}}),
        ("clip_gradients_norm=0", {"clip": {"per_variable_norm": None, "global_norm": None}}),
        ("strategy=tpu,mixed_precision=true", {"strategy": "tpu", "precision": "mixed_bfloat16"}),
        (
            "mixed_precision=true,loss_scale=65536",
            {"precision": "mixed_float16", "loss_scale": "dynamic", "loss_scale_initial": 65536},
        ),
        ("is_training_bn=false,save_freq=epoch", {"freeze_batch_norm": "statistics", "checkpoint_every_epochs": 1}),
        ("save_freq=500", {"checkpoint_every": 500}),
        ("autoaugment_policy=randaug", {"augment": {"randaugment": {"layers": 1, "magnitude": 15.0}}}),
        (
            "jitter_min=0.5,train_scale_max=1.5,input_rand_hflip=false",
            {"augment": {"scale_min": 0.5, "scale_max": 1.5, "horizontal_flip": False}},
        ),
        (
            "var_freeze_expr=(efficientnet|resample_p6).*/tpu_batch_normalization",
            {"freeze": ["(efficientnet|resample_p6).*/batch_normalization"]},
        ),
    ],
)
def test_values_of_the_training(text: str, expected: dict[str, Any]) -> None:
    train = _tree(text, batch_size=8)["train"]
    assert _part_of(train, expected) == expected


@pytest.mark.parametrize("batch_size", [8, 64, 128])
@pytest.mark.parametrize("trainer", ["tf1", "tf2"])
def test_warmup_starts_where_it_does_in_each_trainer(trainer: Trainer, batch_size: int) -> None:
    """From `update_learning_rate_schedule_parameters`: only the estimator's scales `lr_warmup_init`."""
    config = parse_config(_tree("name=efficientdet-d0,num_epochs=3", trainer=trainer, batch_size=batch_size))
    schedule = schedule_from_config(with_steps(config, records=12800).train)
    steps = 12800 // batch_size
    peak, first = 0.08 * batch_size / 64, 0.008 * (batch_size / 64 if trainer == "tf1" else 1.0)
    rates = [float(schedule(tf.constant(step))) for step in (0, steps // 2, steps)]
    np.testing.assert_allclose(rates, [first, (first + peak) / 2, peak], rtol=1e-6)


def test_the_estimators_momentum_averages_and_adam() -> None:
    """TF1's momentum gathers gradients, its Adam has an epsilon of 1e-8, its averages include batch norm."""
    sgd = parse_config(_tree("name=efficientdet-d0", trainer="tf1")).train
    adam = parse_config(_tree("optimizer=adam,momentum=0.8", trainer="tf1")).train
    assert (sgd.optimizer.legacy_momentum, sgd.ema.include_batch_norm) == (True, True)
    assert adam.optimizer.hyperparameters == {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8}
    constant = parse_config(_tree("lr_decay_method=constant", trainer="tf1", batch_size=32)).train
    schedule = schedule_from_config(with_steps(parse_config({"train": constant.model_dump()}), records=64).train)
    assert float(schedule(tf.constant(0))) == pytest.approx(0.04)


def test_grid_mask_has_the_probability_of_the_original() -> None:
    """gridmask.py masks if a draw of a normal distribution is below `prob`, 0.5."""
    probability = _tree("grid_mask=true")["train"]["augment"]["grid_mask"]["probability"]
    assert probability == pytest.approx(NormalDist().cdf(0.5), abs=0.005)


def test_hparams_of_the_training_that_are_absent_have_the_originals_defaults() -> None:
    """From the defaults in hparams_config.py; those of the network are the detector's."""
    config = parse_config(_tree("name=efficientdet-d0,num_epochs=50"))
    train, schedule = config.train, config.train.schedule
    assert (train.epochs, train.batch_size, train.optimizer.name, train.optimizer.momentum) == (50, 64, "sgd", 0.9)
    assert (schedule.learning_rate, schedule.reference_batch_size) == (0.08, 64)
    assert (schedule.name, schedule.warmup_learning_rate, schedule.warmup_epochs) == ("cosine", 0.008, 1.0)
    assert (train.augment.scale_min, train.augment.scale_max, train.optimizer.weight_decay) == (0.1, 2.0, 4e-5)
    assert (train.ema.decay, train.clip.global_norm, train.checkpoint_every_epochs) == (0.9998, 10.0, 1)
    assert (train.clip.per_variable_norm, train.precision, train.crowds) == (10.0, "float32", "drop")
    assert (train.augment.horizontal_flip, train.augment.grid_mask.probability) == (True, 0.0)
    assert (train.augment.autoaugment, train.freeze_batch_norm, train.freeze) == (None, "none", ())
    assert config.model.postprocess == {"nms": "gaussian", "max_detections": 100}
    assert (config.model.image_size, config.model.overrides) == (None, {"batch_norm": {"momentum": 0.99}})


def test_automl_yaml_is_the_recipe_of_the_original() -> None:
    shipped = load_config(CONFIGS / "automl.yaml")
    defaults = parse_config(_tree("name=efficientdet-d0"))
    assert shipped.train == defaults.train
    assert shipped.model.overrides == defaults.model.overrides
    assert shipped.model.postprocess["nms"] == defaults.model.postprocess["nms"]


def _part_of(tree: Any, expected: Any) -> Any:
    """The part of the tree that has keys in `expected`."""
    if not isinstance(expected, dict):
        return tree
    return {key: _part_of(tree[key], value) for key, value in expected.items()}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("anchor_scales=4", "anchor_scales is not a key of google/automl's. The nearest is anchor_scale."),
        ("heads=object_detection*segmentation", "the segmentation head needs a class per pixel"),
        ("seg_num_classes=5", "the segmentation head needs a class per pixel"),
        ("data_format=channels_first", "data_format = 'channels_first': weights are the same in both formats"),
        ("act_type=srelu", "act_type = 'srelu': not one of swish, hswish, mish, relu"),
        ("scale_range=true", "set mean_rgb and stddev_rgb to 127.5"),
        ("skip_crowd_during_training=false", "skip_crowd_during_training = False: not one of True"),
        ("{backbone_config: {blocks: 3}}", "no published model has blocks of its own"),
        ("nms_configs.pyfunc=true", "nms_configs.pyfunc = True: it computes other scores"),
        ("nms_configs.methods=hard", "The nearest is nms_configs.method."),
        ("loss_scale=4", "only mixed_float16 scales its loss"),
        ("image_size=wide", "image_size = 'wide': neither a number nor WIDTHxHEIGHT"),
        ("lr_decay_method=exponential", "not one of stepwise, cosine, polynomial, or constant of the tf1 trainer"),
        ("lr_decay_method=constant", "constant of the tf1 trainer"),
        ("{fpn_config: {nodes: [{level: 3}]}}", "fpn_config = "),
        ("{var_freeze_expr: [1]}", "var_freeze_expr = [1]: "),
        ("gamma", "'gamma' is not key=value,key=value"),
        ("[1, 2]", "hparams are a mapping, not [1, 2]"),
        ("{a: ]", "not a YAML file"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        _tree(text)
