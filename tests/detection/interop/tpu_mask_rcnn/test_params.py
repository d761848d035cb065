"""TPU Mask R-CNN's params as our configuration."""

import re
from pathlib import Path
from typing import Any

import pytest

from detection.interop.tpu_mask_rcnn.params import PARAMS, convert_tpu_mask_rcnn
from detection.models.registry import detector_config
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.errors import ConfigError

CONFIGS = Path(__file__).parents[4] / "pipelines" / "configs"
# The keys of `MASK_RCNN_CFG`, and those of later versions.
KEYS = """transpose_input iterations_per_loop num_cores use_tpu image_size input_rand_hflip gt_mask_size num_classes
    skip_crowd_during_training use_category rpn_positive_overlap rpn_negative_overlap rpn_batch_size_per_im
    rpn_fg_fraction rpn_pre_nms_topn rpn_post_nms_topn rpn_nms_threshold rpn_min_size batch_size_per_im fg_fraction
    fg_thresh bg_thresh_hi bg_thresh_lo fast_rcnn_mlp_head_dim output_box_features bbox_reg_weights include_mask
    mrcnn_resolution test_detections_per_image test_nms test_rpn_pre_nms_topn test_rpn_post_nms_topn
    test_rpn_nms_thresh use_batched_nms min_level max_level num_scales aspect_ratios anchor_scale num_batch_norm_group
    is_training_bn momentum delta rpn_box_loss_weight fast_rcnn_box_loss_weight mrcnn_weight_loss_mask l2_weight_decay
    train_batch_size init_learning_rate warmup_learning_rate warmup_steps learning_rate_levels learning_rate_steps
    total_steps training_file_pattern backbone checkpoint warm_start_path precision use_host_call optimizer
    global_gradient_clip_ratio skip_checkpoint_variables lars_weight_decay eval_batch_size num_steps_per_eval
    eval_samples validation_file_pattern val_json_file include_groundtruth_in_features visualize_images_summary"""
LATER = {"aug_scale_min", "aug_scale_max", "conv0_space_to_depth_block_size", "learning_rate_type"}
POD = """train_batch_size: 512
init_learning_rate: 0.24
warmup_steps: 1600
learning_rate_levels: [0.024, 0.0024, 0.00024]
learning_rate_steps: [6000, 8000, 10000]
total_steps: 11250
momentum: 0.95
global_gradient_clip_ratio: 0.02
"""


def converted(text: str) -> Config:
    conversion = convert_tpu_mask_rcnn(text)
    assert not conversion.unsupported
    return conversion.config("params")


def test_every_key_of_the_original_is_known() -> None:
    assert set(KEYS.split()) == PARAMS.keys() - LATER
    assert all(rule.meaning for rule in PARAMS.values())


@pytest.mark.parametrize(("text", "name"), [("{}", "mask_rcnn_8_cores"), (POD, "mask_rcnn_128_cores")])
def test_the_published_schedules_are_the_configurations_that_we_ship(text: str, name: str) -> None:
    ours, shipped = converted(text), load_config(CONFIGS / f"{name}.yaml")
    summaries = shipped.train.summaries
    assert ours.train.model_copy(update={"summaries": summaries, "log_every": 100}) == shipped.train
    # Those are for keras.applications' weights.
    layouts: Any = {"backbone": {"layout"}, "pixel_mean": True, "pixel_std": True}
    networks = [
        detector_config(one.model.name, overrides=one.model.overrides, postprocess=one.model.postprocess)
        for one in (ours, shipped)
    ]
    first, second = (network.model_dump(exclude=layouts) for network in networks)
    assert first.pop("postprocess") | {"pre_nms_top_k": 5000} == second.pop("postprocess")
    assert first == second


def test_a_faster_rcnn_with_other_params() -> None:
    config = converted("include_mask=False,backbone=resnet200,optimizer=adam,precision=float32,use_tpu=False")
    network = detector_config(config.model.name, overrides=config.model.overrides)
    assert (network.backbone.name, network.include_mask, config.evaluate.iou_types) == ("resnet-200", False, ("bbox",))
    assert (config.train.optimizer.name, config.train.optimizer.epsilon) == ("adam", 1e-8)
    assert (config.train.precision, config.train.strategy) == ("float32", "auto")


def test_lines_and_reasons() -> None:
    conversion = convert_tpu_mask_rcnn("test_nms: 0.4\n\nuse_category: false\neval_samples: 7\nmrcnn_resolution: 27\n")
    assert [(remark.field, remark.line) for remark in conversion.unsupported] == [
        ("use_category = False", 3),
        ("mrcnn_resolution = 27", 5),
    ]
    assert [(remark.field, remark.line) for remark in conversion.notes] == [("eval_samples", 4)]
    assert conversion.keys["model.postprocess.iou_threshold"] == 0.4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rpn_nms_thresh=0.5", "rpn_nms_thresh is not a key of TPU Mask R-CNN's. The nearest is rpn_nms_threshold."),
        ("backbone", "'backbone' is not key=value,key=value"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        convert_tpu_mask_rcnn(text)


@pytest.mark.parametrize(
    "text",
    [
        "backbone: vgg",
        "optimizer: sgd",
        "precision: float16",
        "num_batch_norm_group: 4",
        "learning_rate_levels: [0.1]",
        "rpn_min_size: wide",
        "skip_checkpoint_variables: fc",
        "learning_rate_type: linear",
    ],
)
def test_a_value_without_an_equivalent_is_listed(text: str) -> None:
    [remark] = convert_tpu_mask_rcnn(text).unsupported
    assert remark.line == 1 or text.startswith("learning_rate_levels")
    assert remark.text
