"""The options of google/automl's hparams beyond the presets."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.interop.automl.checkpoint import automl_name
from detection.models.efficientdet.model import EfficientDet
from detection.models.registry import build_detector
from detection.types import ImageInfo
from schemas.config.section import merged
from schemas.errors import ConfigError

SIDE = 64
SMALL = {"min_level": 4, "neck": {"cells": 1, "filters": 8}, "head": {"layers": 2}}
OPTIONS: dict[str, dict[str, Any]] = {
    "other graph, weights per channel": {
        "neck": {"graph": "qufpn", "fusion": "channel_fast_attention", "conv_bn_act": True},
        "activation": "hswish",
        "anchors": {"scale": (2.0, 3.0), "aspect_ratios": (1.0, (1.4, 0.7))},
    },
    "own graph, plain convolutions": {
        "neck": {
            "graph": [[5, [0, 1]], [4, [0, 2]], [5, [1, 2, 3]]],
            "fusion": "channel_attention",
            "separable_conv": False,
            "resample_batch_norm": False,
            "conv_after_pooling": True,
        },
        "head": {"separable_conv": False, "survival_probability": 0.5},
        "activation": "mish",
    },
}


def _build(image_size: int = SIDE, **overrides: Any) -> EfficientDet:
    keras.utils.set_random_seed(0)
    detector = build_detector(
        "efficientdet-nano", num_classes=3, image_size=image_size, overrides=merged(SMALL, overrides)
    )
    assert isinstance(detector, EfficientDet)
    return detector


def _images(side: int = SIDE) -> tf.Tensor:
    return tf.random.stateless_normal([2, side, side, 3], [0, 1])


def _outputs_and_gradients(detector: EfficientDet, seed: list[int] | None) -> Any:
    with tf.GradientTape() as tape:
        outputs = detector(_images(), training=True, seed=None if seed is None else tf.constant(seed))
        loss = tf.add_n([tf.reduce_sum(tf.square(output)) for output in tf.nest.flatten(outputs)])
    gradients = tape.gradient(loss, [variable.value for variable in detector.trainable_variables])
    return tf.nest.flatten(outputs), gradients


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_variable_gets_a_gradient(options: dict[str, Any]) -> None:
    detector = _build(**options)
    outputs, gradients = _outputs_and_gradients(detector, [1, 2])
    assert all(np.isfinite(output).all() for output in outputs)
    missing = [
        variable.path
        for variable, gradient in zip(detector.trainable_variables, gradients, strict=True)
        if gradient is None
    ]
    assert not missing
    told = detector.output_classes(3)
    shapes = {variable.path: variable.shape for variable in detector.variables}
    assert {len(classes) == shapes[path][-1] for path, classes in told.items()} == {True}


@pytest.mark.extended
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_detections_compile_under_xla(options: dict[str, Any]) -> None:
    detector = _build(**options)
    info = ImageInfo(original_size=tf.fill([2, 2], 64.0), scale=tf.ones([2, 2]))
    expected = detector(_images())
    compiled = tf.function(lambda images: (detector(images), detector.detect(detector(images), info)), jit_compile=True)
    outputs, detections = compiled(_images())
    for ours, theirs in zip(tf.nest.flatten(outputs), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert detections.boxes.shape == (2, 100, 4)


def test_names_and_shapes_are_those_of_the_original() -> None:
    plain: dict[str, Any] = {
        "neck": {
            "separable_conv": False,
            "fusion": "channel_attention",
            "conv_bn_act": True,
            "resample_batch_norm": False,
        },
        "head": {"separable_conv": False},
    }
    detector = _build(max_level=6, **plain)
    shapes = {automl_name(variable.path): tuple(variable.shape) for variable in detector.variables}
    expected = {
        "class_net/class-0/kernel": (3, 3, 8, 8),
        "class_net/class-0/bias": (8,),
        "class_net/class-predict/kernel": (3, 3, 8, 27),
        "box_net/box-predict/kernel": (3, 3, 8, 36),
        "fpn_cells/cell_0/fnode2/WSM_2": (8,),
        "fpn_cells/cell_0/fnode0/op_after_combine3/conv/kernel": (3, 3, 8, 8),
        "fpn_cells/cell_0/fnode0/resample_0_1_3/conv2d/kernel": (1, 1, 128, 8),
        "resample_p6/conv2d/bias": (8,),
    }
    assert expected.items() <= shapes.items()
    assert not [name for name in shapes if "conv/bias" in name or ("resample" in name and "/bn/" in name)]


def test_residual_heads_add_their_inputs_and_drop_whole_branches() -> None:
    detector = _build(head={"survival_probability": 0.5})
    head = detector.class_net
    feature = tf.random.stateless_normal([6, 4, 4, 8], [3, 4])
    first = tf.nn.relu(head.norms[0](head.convs[0](feature)))
    second = first + tf.nn.relu(head.norms[2](head.convs[1](first)))
    np.testing.assert_allclose(head([feature])[0], head.predict(second), atol=1e-5)
    for norm in head.norms:
        norm.fixed_statistics = True  # so that training differs by drop-connect alone
    branch = tf.nn.relu(head.norms[2](head.convs[1](first)))
    dropped, kept = head.predict(first).numpy(), head.predict(first + 2.0 * branch).numpy()
    outputs = head([feature], training=True, seed=tf.constant([5, 6]))[0].numpy()
    is_kept = [bool(np.allclose(ours, theirs, atol=1e-4)) for ours, theirs in zip(outputs, kept, strict=True)]
    is_dropped = [bool(np.allclose(ours, theirs, atol=1e-4)) for ours, theirs in zip(outputs, dropped, strict=True)]
    assert np.logical_xor(is_kept, is_dropped).all()
    assert set(is_kept) == {True, False}
    np.testing.assert_allclose(head([feature], training=True)[0], head.predict(second), atol=1e-5)


def test_the_activation_is_that_of_backbone_neck_and_heads() -> None:
    one = _build(activation="identity", neck={"fusion": "sum"})
    # Without a non-linearity but max-pooling, whose inputs are scaled alike, twice the image gives twice the change.
    zero, once, twice = (one(_images() * factor).class_logits[0].numpy() for factor in (0.0, 1.0, 2.0))
    np.testing.assert_allclose(twice - zero, 2.0 * (once - zero), atol=1e-4)
    relu = _build(activation="relu", neck={"fusion": "sum"})
    zero, once, twice = (relu(_images() * factor).class_logits[0].numpy() for factor in (0.0, -1.0, 1.0))
    assert np.abs(twice + once - 2 * zero).max() > 1e-3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"anchors": {"scale": [1.0, 2.0, 3.0]}},
            r"model\.overrides: anchors\.scale has 3 values for the 2 levels 4 to 5",
        ),
        ({"neck": {"graph": [[4, [0, 1]]]}}, r"model\.overrides\.neck\.graph: level 5 has no node"),
        ({"neck": {"graph": "fpn"}}, r"model\.overrides\.neck\.graph"),
        (
            {"neck": {"fusion": "fastattn"}},
            r"model\.overrides\.neck\.fusion = 'fastattn': Input should be 'fast_attention'",
        ),
        ({"anchors": {"aspect_ratios": []}}, r"model\.overrides\.anchors\.aspect_ratios"),
        ({"activation": "srelu"}, r"model\.overrides\.activation = 'srelu': Input should be 'swish'"),
    ],
)
def test_invalid_options_are_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _build(**overrides)


def test_odd_sides_have_the_levels_of_the_original() -> None:
    """google/automl halves each level and rounds up: 160 pixels have a P6 of 3 x 3."""
    outputs = _build(image_size=160, max_level=7)(_images(160))
    assert [tuple(level.shape[1:3]) for level in outputs.box_deltas] == [(10, 10), (5, 5), (3, 3), (2, 2)]
