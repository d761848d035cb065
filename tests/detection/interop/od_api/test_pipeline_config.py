"""The Object Detection API's pipeline.config as our configuration: its values, its defaults, what is listed."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detection.interop.conversion import Conversion, Remark
from detection.interop.od_api.configuration.other_fields import IGNORED, INSIDE, NO_EFFECT, UNSUPPORTED
from detection.interop.od_api.configuration.pipeline_config import convert_pipeline_config
from detection.models.registry import detector_config
from detection.training.build_step import schedule_from_config
from schemas.config.config import Config
from schemas.config.config_io import from_yaml
from schemas.config.train.augmentation_steps import REFUSED_STEPS, STEPS
from schemas.errors import ConfigError

# The steps of `preprocessor.proto`, in its order.
ORIGINAL_STEPS = re.findall(
    r"\w+",
    """normalize_image random_horizontal_flip random_pixel_value_scale random_image_scale random_rgb_to_gray
    random_adjust_brightness random_adjust_contrast random_adjust_hue random_adjust_saturation random_distort_color
    random_jitter_boxes random_crop_image random_pad_image random_crop_pad_image random_crop_to_aspect_ratio
    random_black_patches random_resize_method scale_boxes_to_pixel_coordinates resize_image subtract_channel_mean
    ssd_random_crop ssd_random_crop_pad ssd_random_crop_fixed_aspect_ratio ssd_random_crop_pad_fixed_aspect_ratio
    random_vertical_flip random_rotation90 rgb_to_gray convert_class_logits_to_softmax random_absolute_pad_image
    random_self_concat_image autoaugment_image drop_label_probabilistically remap_labels random_jpeg_quality
    random_downscale_to_target_pixels random_patch_gaussian random_square_crop_by_scale
    random_scale_crop_and_pad_to_square adjust_gamma""",
)
ZOO = 35

# An SSD with the fields that the original needs; all others have their defaults.
SSD = """
model {
  ssd {
    num_classes: 3
    image_resizer { fixed_shape_resizer {} }
    feature_extractor {
      type: "ssd_mobilenet_v2_keras"
      conv_hyperparams {
        regularizer { l2_regularizer { weight: 4e-5 } }
        activation: RELU_6
        batch_norm { scale: true }
      }
      override_base_feature_extractor_hyperparams: true
    }
    box_coder { faster_rcnn_box_coder {} }
    matcher { argmax_matcher {} }
    similarity_calculator { iou_similarity {} }
    box_predictor {
      convolutional_box_predictor {
        conv_hyperparams { regularizer { l2_regularizer { weight: 4e-5 } } }
        use_dropout: false
        class_prediction_bias_init: -4.6
      }
    }
    anchor_generator { ssd_anchor_generator { aspect_ratios: [1.0, 2.0, 0.5] } }
    post_processing { score_converter: SIGMOID }
    loss {
      localization_loss { weighted_smooth_l1 {} }
      classification_loss { weighted_sigmoid_focal {} }
    }
  }
}
train_config {
  num_steps: 100000
  optimizer { momentum_optimizer { learning_rate { cosine_decay_learning_rate {} } } }
}
"""


def zoo_texts(oracle_dir: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in sorted((oracle_dir / "od_api/zoo_configs").glob("*.config"))}


def with_lines(old: str, new: str, text: str = SSD) -> str:
    assert old in text
    return text.replace(old, new, 1)


def converted(text: str) -> Config:
    conversion = convert_pipeline_config(text)
    assert not conversion.unsupported
    return conversion.config("pipeline.config")


def listed(text: str) -> str:
    """The only field that is not supported, and why."""
    [remark] = convert_pipeline_config(text).unsupported
    assert isinstance(remark.line, int)
    assert remark.field.rpartition(".")[2] in text.splitlines()[remark.line - 1]
    return str(remark)


def preset(config: Config) -> Any:
    model = config.model
    return detector_config(
        model.name,
        image_size=model.image_size,
        resize=model.resize,
        overrides=model.overrides,
        postprocess=model.postprocess,
    )


def test_all_39_preprocessing_steps_are_known() -> None:
    assert STEPS.keys() | REFUSED_STEPS.keys() == set(ORIGINAL_STEPS)


def test_a_field_is_known_for_one_reason() -> None:
    assert len({*IGNORED, *INSIDE, *NO_EFFECT, *UNSUPPORTED}) == sum(
        map(len, (IGNORED, INSIDE, NO_EFFECT, UNSUPPORTED))
    )


def _conversion_of(name: str, text: str) -> Conversion | None:
    """The conversion; None: the model is not supported, and the message has its line."""
    family = re.search(r"(ssd|faster_rcnn|center_net) \{", text)
    assert family is not None
    kind = re.search(r"type: ['\"](\w+(?:-b\d)?\w*)['\"]", text)
    assert kind is not None
    if kind[1] != "faster_rcnn_inception_resnet_v2_keras":
        return convert_pipeline_config(text, name)
    with pytest.raises(ConfigError, match=rf"\n  line \d+: model\.{family[1]}"):
        convert_pipeline_config(text, name)
    return None


def test_each_configuration_of_the_zoo_is_converted_or_says_by_line_what_is_missing(oracle_dir: Path) -> None:
    texts = zoo_texts(oracle_dir)
    assert len(texts) == ZOO
    for name, text in texts.items():
        conversion = _conversion_of(name, text)
        if conversion is None:
            continue
        for remark in (*conversion.unsupported, *conversion.notes):
            assert remark.line is not None
            name_there = remark.field.rpartition(".")[2]
            assert name_there in text.splitlines()[remark.line - 1] or name_there not in text
        written = from_yaml(conversion.to_yaml(name, "the original"))
        assert preset(written) == preset(conversion.config(name))
        ours = conversion.config(name)
        for section in ("data", "train", "evaluate"):
            assert getattr(written, section) == getattr(ours, section)
        assert (written.model.image_size, written.model.resize) == (ours.model.image_size, ours.model.resize)


def test_a_configuration_of_the_zoo(oracle_dir: Path) -> None:
    text = zoo_texts(oracle_dir)["ssd_mobilenet_v2_320x320_coco17_tpu-8"]
    config = converted(text)
    model, train = preset(config), config.train
    assert (config.model.name, model.image_size, config.model.resize.mode) == (
        "ssd-mobilenet-v2",
        (300, 300),
        "stretch",
    )
    assert (model.batch_norm.momentum, model.batch_norm.epsilon, model.activation) == (0.97, 0.001, "relu6")
    assert (model.loss.focal_gamma, model.loss.focal_alpha, model.loss.huber_delta, model.loss.box_loss_weight) == (
        2.0,
        0.75,
        1.0,
        1.0,
    )
    assert (model.loss.code_weights, model.loss.normalizer, model.matcher.force_match) == (
        (10, 10, 5, 5),
        "positives",
        True,
    )
    assert (model.loss.background_class, model.loss.background_target) == (True, False)
    assert model.anchors.aspect_ratios == (1.0, 2.0, 0.5, 3.0, 0.3333)
    assert (model.postprocess.score_threshold, model.postprocess.iou_threshold) == (1e-8, 0.6)
    assert (train.batch_size, train.steps, train.optimizer.name, train.optimizer.momentum) == (512, 50000, "sgd", 0.9)
    assert (train.schedule.learning_rate, train.schedule.warmup_learning_rate) == (0.8, 0.13333)
    assert (train.schedule.warmup_steps, train.optimizer.weight_decay) == (2000, 4e-5)
    assert not train.ema.enabled
    assert (train.clip.global_norm, train.clip.per_variable_norm) == (None, None)
    assert [list(step) for step in train.augment.steps] == [["random_horizontal_flip"], ["ssd_random_crop"]]
    assert (train.augment.horizontal_flip, train.augment.scale_min, train.augment.scale_max) == (False, 1.0, 1.0)
    assert train.init.fine_tune_type == "classification"
    assert config.data.splits["train"].records == "PATH_TO_BE_CONFIGURED/train2017-?????-of-00256.tfrecord"
    assert config.data.label_map == "PATH_TO_BE_CONFIGURED/label_map.txt"
    assert config.evaluate.iou_types == ("bbox",)


def test_fields_that_are_not_set_have_the_defaults_of_the_protos() -> None:
    config = converted(SSD)
    model, train, analysis = preset(config), config.train, config.evaluate.analysis
    assert (model.image_size, model.anchors.min_scale, model.anchors.max_scale) == ((300, 300), 0.2, 0.95)
    assert (model.loss.focal_gamma, model.loss.focal_alpha, model.loss.huber_delta) == (2.0, None, 1.0)
    # Without division by the size of the code, the loss is the sum of four deltas, ours their mean.
    assert (model.loss.box_loss_weight, model.loss.class_loss_weight, model.loss.normalizer) == (4.0, 1.0, "positives")
    assert (model.matcher.force_match, model.matcher.positive_iou, model.matcher.negative_iou) == (False, 0.5, None)
    assert (model.loss.background_class, model.loss.background_target) == (True, True)
    assert (model.batch_norm.momentum, model.batch_norm.epsilon) == (0.999, 0.001)
    assert (model.postprocess.score_threshold, model.postprocess.iou_threshold) == (0.0, 0.6)
    assert (train.batch_size, train.ema.enabled, train.ema.decay) == (32, True, 0.9999)
    assert (train.ema.use_moving_averages, train.ema.include_batch_norm) == (False, False)
    assert (train.clip.global_norm, train.clip.per_variable_norm) == (None, None)
    assert (train.schedule.learning_rate, train.schedule.total_steps, train.schedule.warmup_steps) == (
        0.002,
        4_000_000,
        10_000,
    )
    assert not train.augment.horizontal_flip
    assert (train.augment.scale_min, train.augment.scale_max, config.model.weights) == (1.0, 1.0, "none")
    assert (analysis.score, analysis.visualizations, analysis.max_boxes) == (0.5, 10, 20)
    assert (config.evaluate.batch_size, config.model.max_instances) == (1, 100)


@pytest.mark.parametrize(
    ("old", "new", "remark"),
    [
        ("score_converter: SIGMOID", "", "score_converter: 'IDENTITY': scores are those of SIGMOID"),
        ("use_dropout: false", "", "use_dropout"),
        ("num_steps: 100000", "", "0: a training has an end"),
        (
            "cosine_decay_learning_rate {}",
            "cosine_decay_learning_rate { learning_rate_base: 0.1 warmup_learning_rate: 0.2 }",
            "warmup_learning_rate: 0.2: above learning_rate_base, 0.1, which the original refuses, too",
        ),
        ("iou_similarity {}", "ioa_similarity {}", "ioa_similarity: anchors are matched by IoU"),
        ("argmax_matcher {}", "bipartite_matcher {}", "bipartite_matcher"),
        ("argmax_matcher {}", "argmax_matcher { ignore_thresholds: true }", "ignore_thresholds: there is no"),
        ("faster_rcnn_box_coder", "square_box_coder", "square_box_coder"),
        ("fixed_shape_resizer {}", "identity_resizer {}", "identity_resizer"),
        ("weighted_sigmoid_focal", "penalty_reduced_logistic_focal_loss", "penalty_reduced_logistic_focal_loss"),
        ("weighted_smooth_l1", "l1_localization_loss", "l1_localization_loss"),
        ("weighted_smooth_l1 {}", "", "localization_loss.loss: missing; the original needs it"),
        ("num_classes: 3", "num_classes: 3 negative_class_weight: 0.5", "negative_class_weight: there is no such"),
        ("loss {", "loss { random_example_sampler {}", "random_example_sampler"),
        ("scale: true", "", "scale: False: batch norm has a scale here"),
        ("batch_norm { scale: true }", "group_norm {}", "group_norm: layers have batch norm"),
        ("score_converter: SIGMOID", "score_converter: SIGMOID calibration_config {}", "calibration_config"),
        ("num_steps: 100000", "num_steps: 9 data_augmentation_options {}", "data_augmentation_options"),
        ("ssd_anchor_generator { aspect_ratios: [1.0, 2.0, 0.5]", "ssd_anchor_generator {", "aspect_ratios: missing"),
    ],
)
def test_what_has_no_equivalent_is_listed_with_its_line(old: str, new: str, remark: str) -> None:
    conversion = convert_pipeline_config(with_lines(old, new))
    assert any(remark in f"{one.field}: {one.text}" or remark in one.field for one in conversion.unsupported), (
        conversion.unsupported
    )
    line = next(number for number, text in enumerate(SSD.splitlines(), 1) if old in text)
    assert min(abs(line - (one.line or 0)) for one in conversion.unsupported) <= 4  # or that of the message around it


@pytest.mark.parametrize("step", ORIGINAL_STEPS)
def test_a_preprocessing_step_is_converted_or_listed(step: str) -> None:
    text = with_lines("num_steps: 100000", f"num_steps: 100000\n  data_augmentation_options {{ {step} {{}} }}")
    conversion = convert_pipeline_config(text)
    changed = [key for key, value in conversion.keys.items() if value != convert_pipeline_config(SSD).keys.get(key)]
    assert changed or conversion.unsupported
    assert all(key.startswith("train.augment") for key in changed)
    for remark in conversion.unsupported:
        assert step in str(remark)
    conversion.config("pipeline.config")


def _augmented(*steps: str) -> Conversion:
    options = "".join(f"  data_augmentation_options {{ {step} }}\n" for step in steps)
    return convert_pipeline_config(with_lines("train_config {\n", f"train_config {{\n{options}"))


def test_heads_keep_their_own_regularisation() -> None:
    other = SSD.replace("hyperparams { regularizer { l2_regularizer { weight: 4e-5 } } }", "hyperparams {}")
    [entry] = convert_pipeline_config(other).config("p").train.optimizer.regularizers
    assert (entry.match, entry.l1, entry.l2) == ("(class|box)_net/", 0.0, 0.0)
    optimizer = convert_pipeline_config(other.replace("l2_reg", "l1_reg")).config("p").train.optimizer
    assert [(entry.match, entry.l1) for entry in optimizer.regularizers] == [("(class|box)_net/", 0), ("", 4e-5)]
    assert optimizer.weight_decay == 0.0
    assert not convert_pipeline_config(SSD).config("p").train.optimizer.regularizers


def test_without_the_regularization_loss_no_part_is_regularised(oracle_dir: Path) -> None:
    text = zoo_texts(oracle_dir)["ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8"]
    before, _, after = text.rpartition("weight: 0.00004")  # the feature extractor's
    heads_only = f"{before}weight: 0.0{after}"
    optimizer = converted(heads_only).train.optimizer
    assert (optimizer.weight_decay, [entry.l2 for entry in optimizer.regularizers]) == (0.0, [pytest.approx(4e-5)])
    assert optimizer.weight_decay_exclude
    off = converted(heads_only.replace("train_config: {", "train_config: { add_regularization_loss: false"))
    assert (off.train.optimizer.weight_decay, off.train.optimizer.regularizers) == (0.0, ())


def test_steps_are_converted_in_order_with_the_fields_that_are_set() -> None:
    operations = "operations { min_area: 0.5 max_area: 1 min_aspect_ratio: 1 max_aspect_ratio: 1 random_coef: 0.15 }"
    conversion = _augmented(
        "random_scale_crop_and_pad_to_square { scale_max: 1.5 }",
        "random_pad_image { pad_color: 1 pad_color: 2 pad_color: 3 }",
        "random_horizontal_flip { probability: 0.25 }",
        f"ssd_random_crop {{ {operations} }}",
        "random_distort_color {}",
    )
    operation = {"min_aspect_ratio": 1, "max_aspect_ratio": 1, "min_area": 0.5, "max_area": 1, "random_coef": 0.15}
    assert conversion.keys["train.augment.steps"] == [
        {"random_scale_crop_and_pad_to_square": {"scale_max": 1.5}},
        {"random_pad_image": {"pad_color": [1, 2, 3]}},
        {"random_horizontal_flip": {"probability": 0.25}},
        {"ssd_random_crop": {"operations": [pytest.approx(operation)]}},
        "random_distort_color",
    ]
    assert not conversion.unsupported
    augment = conversion.config("pipeline.config").train.augment
    assert (augment.horizontal_flip, augment.scale_min, augment.scale_max, len(augment.steps)) == (False, 1, 1, 5)


def test_a_flip_and_scale_jitter_at_the_end_are_those_of_the_input_pipeline() -> None:
    jitter = "random_scale_crop_and_pad_to_square { scale_min: 0.2 }"
    augment = _augmented("random_rgb_to_gray {}", "random_horizontal_flip {}", jitter).config("p").train.augment
    assert [list(step) for step in augment.steps] == [["random_rgb_to_gray"]]
    assert (augment.horizontal_flip, augment.scale_min, augment.scale_max) == (True, pytest.approx(0.2), 2.0)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ("random_crop_image { clip_boxes: false }", "boxes are always clipped"),
        ("ssd_random_crop { operations { max_area: 1 } }", "operations.0.min_aspect_ratio: Field required"),
        ("random_jpeg_quality { min_jpeg_quality: 9 max_jpeg_quality: 8 }", "min_jpeg_quality = 9 is above"),
        ("rgb_to_gray {}", "networks take three channels"),
    ],
)
def test_a_step_that_is_not_supported_is_listed_with_its_line(step: str, reason: str) -> None:
    [remark] = _augmented("random_horizontal_flip {}", step).unsupported
    line = next(number for number, text in enumerate(SSD.splitlines(), 1) if text.startswith("train_config")) + 2
    assert (remark.line, remark.field.rpartition(".")[2]) == (line, step.partition(" ")[0])
    assert reason in remark.text


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("weighted_sigmoid {}", {"class_loss": "focal", "focal_gamma": 0.0, "focal_alpha": None}),
        ("weighted_sigmoid_focal { gamma: 1.5 alpha: 0.25 }", {"focal_gamma": 1.5, "focal_alpha": 0.25}),
        ("bootstrapped_sigmoid { alpha: 0.9 }", {"class_loss": "bootstrapped_sigmoid", "bootstrap_alpha": 0.9}),
        ("bootstrapped_sigmoid { alpha: 0.9 hard_bootstrap: true }", {"class_loss": "hard_bootstrapped_sigmoid"}),
    ],
)
def test_class_losses(loss: str, expected: dict[str, Any]) -> None:
    model = preset(converted(with_lines("weighted_sigmoid_focal {}", loss)))
    assert {name: getattr(model.loss, name) for name in expected} == expected


def test_a_softmax_needs_its_score_converter() -> None:
    text = with_lines("weighted_sigmoid_focal {}", "weighted_softmax { logit_scale: 2.0 }")
    remarks = {remark.field.rpartition(".")[2]: remark.text for remark in convert_pipeline_config(text).unsupported}
    assert remarks["score_converter"] == "'SIGMOID': scores are those of SOFTMAX here"
    assert "logit_scale" in remarks
    text = with_lines("score_converter: SIGMOID", "score_converter: SOFTMAX logit_scale: 2.0", text)
    model = preset(converted(text))
    assert (model.loss.class_loss, model.loss.logit_scale) == ("softmax", 2.0)


def test_a_grid_of_anchors_has_scales_above_0(oracle_dir: Path) -> None:
    text = zoo_texts(oracle_dir)["faster_rcnn_resnet50_v1_640x640_coco17_tpu-8"]
    assert "scales: [0.0, 0.5, 1.0, 2.0], with aspect_ratios" in listed(with_lines("[0.25, 0.5", "[0.0, 0.5", text))


def test_the_initial_bias_is_a_prior_probability() -> None:
    assert preset(converted(SSD)).loss.prior_probability == 0.01
    for bias, expected in (("", 0.5), ("class_prediction_bias_init: -2.0", 1 / (1 + math.exp(2.0)))):
        model = preset(converted(with_lines("class_prediction_bias_init: -4.6", bias)))
        assert model.loss.prior_probability == pytest.approx(expected)
    separable = with_lines("use_dropout: false", "use_dropout: false use_depthwise: true")
    separable = with_lines("override_base", "use_depthwise: true override_base", separable)
    separable = with_lines("4e-5 } } }", "4e-5 } } activation: RELU_6 batch_norm { scale: true } }", separable)
    assert preset(converted(separable)).loss.prior_probability == 0.5, "the original does not set it"


def test_images_of_any_size_are_padded_to_one() -> None:
    conversion = convert_pipeline_config(with_lines("fixed_shape_resizer {}", "keep_aspect_ratio_resizer {}"))
    assert any("images are padded to 1024 here" in str(note) for note in conversion.notes)
    assert conversion.config("it").model.image_size == (1024, 1024)


def test_hard_examples_and_code_size() -> None:
    text = with_lines("loss {", "loss { localization_weight: 3.0 hard_example_miner { num_hard_examples: 0 }")
    model = preset(converted(with_lines("num_classes: 3", "normalize_loc_loss_by_codesize: true", text)))
    assert model.loss.box_loss_weight == 3.0
    assert model.loss.hard_example_miner.num_hard_examples is None
    assert (model.loss.hard_example_miner.iou_threshold, model.loss.hard_example_miner.loss_type) == (0.7, "both")


def test_soft_nms_has_twice_the_sigma_of_tensorflows_op_and_no_threshold() -> None:
    nms = "batch_non_max_suppression { soft_nms_sigma: 0.25 iou_threshold: 1.0 }"
    text = with_lines("score_converter: SIGMOID", f"score_converter: SIGMOID {nms}")
    options = preset(converted(text)).postprocess
    assert (options.nms, options.sigma) == ("gaussian", 0.5)
    assert "iou_threshold" in listed(text.replace("iou_threshold: 1.0", "iou_threshold: 0.6"))


def _rates(learning_rate: str, steps: int) -> np.ndarray:
    text = with_lines("cosine_decay_learning_rate {}", learning_rate).replace("100000", str(steps))
    schedule = schedule_from_config(converted(text).train)
    return np.array([float(schedule(step)) for step in range(steps)])


def test_cosine_with_warm_up_and_hold() -> None:
    fields = "learning_rate_base: 0.1 total_steps: 30 warmup_learning_rate: 0.02 warmup_steps: 4"
    rates = _rates(f"cosine_decay_learning_rate {{ {fields} hold_base_rate_steps: 6 }}", 40)
    steps = np.arange(40)
    expected = 0.05 * (1 + np.cos(np.pi * (steps - 10) / 20))
    expected[:10], expected[30:] = 0.1, 0.0
    expected[:4] = 0.02 + 0.08 * steps[:4] / 4
    np.testing.assert_allclose(rates, expected, atol=1e-8)


def test_manual_steps_with_and_without_warm_up() -> None:
    entries = "schedule { step: 4 learning_rate: 0.05 } schedule { step: 8 learning_rate: 0.01 }"
    rates = _rates(f"manual_step_learning_rate {{ initial_learning_rate: 0.1 {entries} }}", 10)
    np.testing.assert_allclose(rates, [0.1] * 4 + [0.05] * 4 + [0.01] * 2, rtol=1e-6)
    rates = _rates(f"manual_step_learning_rate {{ initial_learning_rate: 0.01 {entries} warmup: true }}", 7)
    np.testing.assert_allclose(rates, [0.01, 0.02, 0.03, 0.04, 0.05, 0.05, 0.05], rtol=1e-6)


def test_exponential_with_burn_in_and_constant() -> None:
    fields = "initial_learning_rate: 0.1 decay_steps: 3 decay_factor: 0.5 burnin_learning_rate: 0.02 burnin_steps: 2"
    rates = _rates(f"exponential_decay_learning_rate {{ {fields} min_learning_rate: 0.03 }}", 10)
    expected = np.maximum(0.1 * 0.5 ** ((np.arange(10) - 2) // 3), 0.03)
    expected[:2] = 0.03  # the floor holds for the burn-in, too
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    rates = _rates("exponential_decay_learning_rate { initial_learning_rate: 0.1 decay_steps: 3 burnin_steps: 2 }", 3)
    np.testing.assert_allclose(rates, 0.1, rtol=1e-6)  # without a rate of its own, the burn-in has the initial one
    np.testing.assert_allclose(_rates("constant_learning_rate { learning_rate: 0.3 }", 3), 0.3)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("adam_optimizer", {"name": "adam", "epsilon": 1e-8}),
        ("rms_prop_optimizer", {"name": "rmsprop", "rho": 0.9, "momentum": 0.9, "epsilon": 1.0}),
        ("momentum_optimizer", {"name": "sgd", "momentum": 0.9, "legacy_momentum": False}),
    ],
)
def test_optimizers(optimizer: str, expected: dict[str, Any]) -> None:
    config = converted(with_lines("momentum_optimizer", optimizer)).train.optimizer
    assert {name: getattr(config, name) for name in expected} == expected


def test_fields_that_the_original_ignores_are_notes() -> None:
    fields = 'freeze_variables: "a.*" sync_replicas: true bias_grad_multiplier: 2 num_batch_queue_threads: 4'
    conversion = convert_pipeline_config(with_lines("num_steps: 100000", f"num_steps: 100000 {fields}"))
    ignored = [remark.field.rpartition(".")[2] for remark in conversion.notes if "ignored" in remark.text]
    assert ignored == ["freeze_variables", "sync_replicas", "bias_grad_multiplier", "num_batch_queue_threads"]
    assert not conversion.unsupported


READERS = """
train_input_reader { label_map_path: "a.pbtxt" sample_1_of_n_examples: 3 max_number_of_boxes: 50
  tf_record_input_reader { input_path: "train-*" } }
eval_input_reader { label_map_path: "a.pbtxt" shuffle: false tf_record_input_reader { input_path: "val" } }
eval_config { metrics_set: "coco_detection_metrics" metrics_set: "coco_mask_metrics" num_visualizations: 4
  min_score_threshold: 0.2 max_num_boxes_to_visualize: 7 batch_size: 2 use_moving_averages: true num_examples: 9 }
"""


def test_input_readers_and_evaluation() -> None:
    config = converted(SSD + READERS)
    assert {name: split.records for name, split in config.data.splits.items()} == {"train": "train-*", "eval": "val"}
    assert (config.data.label_map, config.data.sample_1_of_n, config.model.max_instances) == (
        "a.pbtxt",
        {"train": 3},
        50,
    )
    analysis = config.evaluate.analysis
    assert config.evaluate.iou_types == ("bbox", "segm")
    assert (analysis.visualizations, analysis.score, analysis.max_boxes) == (4, 0.2, 7)
    assert config.train.ema.use_moving_averages


def test_metrics_besides_coco_s() -> None:
    names = ["weighted_pascal_voc_detection", "oid_challenge_segmentation", "precision_at_recall_detection"]
    fields = " ".join(f'metrics_set: "{name}_metrics"' for name in names)
    fields += " recall_lower_bound: 0.25 skip_predictions_for_unlabeled_class: true"
    config = converted(f"{SSD} eval_config {{ {fields} }}")
    assert config.evaluate.iou_types == ("bbox", "segm")
    kinds = ("weighted_pascal_voc", "open_images_challenge", "precision_at_recall_verified_25_100")
    assert config.evaluate.metrics == tuple(f"{kind}_AP50" for kind in kinds)


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('input_path: "train-*"', 'input_path: ["a", "b"]', "input_path"),
        ('tf_record_input_reader { input_path: "val" }', "external_input_reader {}", "external_input_reader"),
        ("shuffle: false", "sample_1_of_n_examples: 1 expand_labels_hierarchy: true", "expand_labels_hierarchy"),
        ('"coco_mask_metrics"', '"lvis_mask_metrics"', "metrics_set"),
        ('label_map_path: "a.pbtxt" shuffle', 'label_map_path: "b.pbtxt" shuffle', "label_map_path"),
        ("sample_1_of_n_examples: 3", "input_type: TF_SEQUENCE_EXAMPLE", "input_type"),
        ("batch_size: 2", "recall_lower_bound: 0.5", "recall_lower_bound"),
    ],
)
def test_readers_and_metrics_that_have_no_equivalent(old: str, new: str, field: str) -> None:
    assert field in listed(with_lines(old, new, SSD + READERS))


def test_a_second_eval_input_reader_is_listed() -> None:
    [remark] = convert_pipeline_config(f'{SSD}{READERS}eval_input_reader {{ name: "b" }}').unsupported
    assert "a further eval_input_reader" in remark.text


def test_remarks_are_comments_above_the_keys() -> None:
    text = with_lines(
        "num_steps: 100000", "num_steps: 100000 sync_replicas: true load_all_detection_checkpoint_vars: true"
    )
    written = convert_pipeline_config(text, "my.config").to_yaml("my.config", "the original")
    head = [line for line in written.splitlines() if line.startswith("#")]
    assert written.splitlines()[: len(head)] == head
    line = next(number for number, one in enumerate(text.splitlines(), 1) if "num_steps" in one)
    assert f"#   line {line}: train_config.load_all_detection_checkpoint_vars: there is no such option" in head
    assert any(one.startswith(f"#   line {line}: train_config.sync_replicas: ignored") for one in head)
    assert from_yaml(written).model.name == "ssd-mobilenet-v2"


def test_a_remark_is_one_line() -> None:
    conversion = Conversion({}, (Remark("a\nb", 3, "c"),))
    with pytest.raises(ConfigError, match=re.escape("x: not supported here:\n  line 3: a\\nb: c\ndo")):
        conversion.require_supported("x", "do")
