"""Configurations of the Object Detection API in TF1: the networks of TF2, and the fields that its trainer obeys."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.input_pipeline.training_batches import Batch
from detection.interop.od_api.configuration.pipeline_config import convert_pipeline_config
from detection.training.build_step import state_from_config, train_loop_from_config
from detection.training.resolve import assumed
from detection.types import Labels
from schemas.config.config_io import parse_config
from schemas.config.section import nested
from schemas.errors import ConfigError
from tests.detection.interop.od_api.test_pipeline_config import zoo_texts
from tests.detection.interop.od_api.test_zoo_steps import CONVERTED, FAST

TWINS = [name for name in CONVERTED if name.startswith(("faster_rcnn", "ssd_resnet", "ssd_mobilenet"))]


def _with_fields(text: str, fields: str) -> str:
    start = text.index("train_config")
    place = text.index("{", start) + 1
    return f"{text[:place]} {fields} {text[place:]}".replace("_keras", "")


def test_each_network_of_tf1_is_that_of_tf2(oracle_dir: Path) -> None:
    assert len(TWINS) >= 20
    for name in TWINS:
        text = zoo_texts(oracle_dir)[name]
        twin = convert_pipeline_config(text)
        found = convert_pipeline_config(text.replace("_keras", ""))
        differing = {key for key in found.keys | twin.keys if found.keys.get(key) != twin.keys.get(key)}
        clip = {"train.clip.per_variable_norm", "train.clip.global_norm"}
        assert differing - clip == {"train.optimizer.legacy_momentum"}, name
        assert found.unsupported == twin.unsupported
        assert not any("TF2" in str(note) for note in found.notes)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            "freeze_variables: '.*FeatureExtractor'",
            {
                "train.freeze": [
                    r"mobilenet\-v2/",
                    *(f"extra_p{n}{kind}/" for n in range(6, 10) for kind in ("_reduce", "")),
                ]
            },
        ),
        (
            "freeze_variables: 'FeatureExtractor/MobilenetV2/expanded_conv_1/'",
            {"train.freeze": [r"mobilenet\-v2/blocks_1/"]},
        ),
        ("update_trainable_variables: 'BoxPredictor_[0-9]+/ClassPredictor'", {"train.trainable": ["class_net/"]}),
        ("bias_grad_multiplier: 2.0", {"train.clip.bias_multiplier": 2.0, "train.clip.bias_variables": "bias"}),
        ("keep_checkpoint_every_n_hours: 3", {"train.keep_checkpoint_every_n_hours": 3}),
        ("summarize_gradients: true", {"train.summaries.gradient_norms": True}),
        ("", {"train.optimizer.name": "sgd", "train.optimizer.legacy_momentum": True}),
        ("gradient_clipping_by_norm: 9.0", {"train.clip.per_variable_norm": 9.0, "train.clip.global_norm": None}),
    ],
)
def test_fields_of_the_trainer(fields: str, expected: dict[str, Any], oracle_dir: Path) -> None:
    text = zoo_texts(oracle_dir)[FAST]
    keys = convert_pipeline_config(_with_fields(text, fields)).keys
    for key, value in expected.items():
        assert keys[key] == value
    of_tf2 = convert_pipeline_config(_with_fields(text, fields), trainer="tf2")
    if fields and "clipping" not in fields:
        assert not of_tf2.keys.keys() & expected.keys()
        assert any("ignored by the original's TF2 trainer" in str(note) for note in of_tf2.notes)
    config = parse_config(nested(keys))
    assert config.train.batch_size == 512


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            "freeze_variables: 'InceptionV2'",
            r"freeze_variables: InceptionV2: matches no variable of the network in TF1",
        ),
        ("freeze_variables: '['", "freeze_variables: not a regular expression"),
    ],
)
def test_expressions_that_match_nothing_are_refused(fields: str, message: str, oracle_dir: Path) -> None:
    conversion = convert_pipeline_config(_with_fields(zoo_texts(oracle_dir)[FAST], fields))
    with pytest.raises(ConfigError, match=message):
        conversion.require_supported("it")


def test_an_unknown_network_does_not_hide_other_fields(oracle_dir: Path) -> None:
    text = zoo_texts(oracle_dir)[FAST].replace("ssd_mobilenet_v2_keras", "ssd_inception_v2")
    with pytest.raises(ConfigError) as refused:
        convert_pipeline_config(_with_fields(text, "merge_multiple_label_boxes: true no_such_field: 1"))
    message = str(refused.value)
    for part in ("ssd_inception_v2: no such network", "train_config.no_such_field", "merge_multiple_label_boxes"):
        assert part in message
    assert "box_predictor" not in message


@pytest.mark.slow
def test_a_step_is_that_of_the_trainer(oracle_dir: Path) -> None:
    """Against numpy: frozen variables stay, gradients of biases count twice, then each variable's norm is bounded."""
    fields = "freeze_variables: '.*FeatureExtractor' bias_grad_multiplier: 2.0 gradient_clipping_by_norm: 0.5"
    keys = {
        key: value
        for key, value in convert_pipeline_config(_with_fields(zoo_texts(oracle_dir)[FAST], fields)).keys.items()
        if not key.startswith(("model.resize.", "train.init.", "data.", "train.schedule", "train.ema"))
    }
    keys |= {"model.image_size": 128, "model.weights": "none", "train.batch_size": 2, "train.run_eagerly": True}
    keys |= {
        "train.optimizer.momentum": 0.0,
        "train.optimizer.legacy_momentum": False,
        "train.schedule.learning_rate": 1.0,
        "train.schedule.name": "constant",
    }
    keys |= {"train.schedule.warmup_steps": 0, "train.optimizer.weight_decay": 0.0, "train.ema.enabled": False}
    config = assumed(parse_config(nested(keys)), replicas=1)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    state = state_from_config(config, [{}, {}, {}], strategy=strategy)
    boxes = tf.constant([[[8.0, 10.0, 60.0, 84.0], [20.0, 4.0, 120.0, 90.0]]] * 2)
    labels = Labels(boxes, tf.constant([[0, 2]] * 2), tf.constant([[True, True]] * 2))
    images = tf.random.stateless_normal([2, 128, 128, 3], [0, 0])
    model = state.model
    with tf.GradientTape() as tape:
        loss = tf.add_n(list(model.losses(model(images, training=True), labels).values()))
    heads = [one for one in model.trainable_variables if one.path.startswith(("class_net/", "box_net/"))]
    gradients = tape.gradient(loss, [one.value for one in heads])
    before = {one.path: one.numpy() for one in model.trainable_variables}
    dataset = tf.data.Dataset.from_tensors(Batch(images, labels, tf.zeros([2], tf.int32))).repeat()
    loop = train_loop_from_config(config.train, state, strategy=strategy)
    loop(iter(strategy.distribute_datasets_from_function(lambda context: dataset)), 1)
    clipped = 0
    for variable, gradient in zip(heads, gradients, strict=True):
        expected = gradient.numpy() * (2.0 if variable.path.endswith("/bias") else 1.0)
        norm = np.linalg.norm(expected)
        clipped += int(norm > 0.5)
        expected *= min(1.0, 0.5 / norm)
        np.testing.assert_allclose(before[variable.path] - variable.numpy(), expected, rtol=2e-3, atol=1e-5)
    assert clipped > 0
    for variable in model.trainable_variables:
        if not variable.path.startswith(("class_net/", "box_net/")):
            np.testing.assert_array_equal(variable.numpy(), before[variable.path])
