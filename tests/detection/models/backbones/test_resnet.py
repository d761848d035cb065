from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.models.backbones.resnet import RESNETS, Relu, ResNet, ResNetLayout, ResNetSpec

Oracles = dict[str, dict[str, Any]]

TINY = ResNetSpec((1, 1, 1, 1))
BATCH_NORM = {"momentum": 0.9, "epsilon": 0.25}


def _resnet(spec: ResNetSpec, **options: Any) -> ResNet:
    backbone = ResNet(spec=spec, batch_norm=BATCH_NORM, name="resnet", **options)
    backbone.build((None, None, None, 3))
    return backbone


def _elements(variables: list[Any]) -> int:
    return sum(int(np.prod(variable.shape)) for variable in variables)


@pytest.mark.parametrize("depth", [50, 101])
def test_parameters_equal_the_originals(oracles: Oracles, depth: int) -> None:
    expected = oracles[f"maskrcnn.params.r{depth}_fpn"]["expected"]
    backbone = _resnet(RESNETS[f"resnet-{depth}"])
    assert _elements(backbone.trainable_variables) == expected["backbone"]
    statistics = expected["total_with_bn_stats"] - expected["trainable_before_freeze"]
    assert _elements(backbone.non_trainable_variables) == statistics


def test_depths_count_convolutions_and_the_classifier() -> None:
    for name, spec in RESNETS.items():
        assert int(name.removeprefix("resnet-")) == sum(spec.repeats) * (3 if spec.bottleneck else 2) + 2


@pytest.mark.parametrize(
    ("layout", "bottleneck", "v2"),
    [
        *((layout, bottleneck, False) for layout in ("standard", "tpu", "od-api") for bottleneck in (True, False)),
        ("standard", True, True),
        ("od-api", True, True),
    ],
)
def test_levels_halve_rounding_up(layout: ResNetLayout, bottleneck: bool, v2: bool) -> None:
    spec = ResNetSpec((2, 2, 2, 1), bottleneck=bottleneck, v2=v2)
    backbone = _resnet(spec, layout=layout)
    assert sum(map(len, backbone.stages)) == 8 + (v2 and layout == "standard")
    levels = backbone(tf.zeros([1, 50, 33, 3]))
    assert [level.shape.as_list()[1:3] for level in levels] == [[25, 17], [13, 9], [7, 5], [4, 3], [2, 2]]
    assert [level.shape[3] for level in levels] == backbone.level_filters
    assert backbone.level_filters == ([64, 256, 512, 1024, 2048] if bottleneck else [64, 64, 128, 256, 512])


def test_blocks_start_as_their_shortcuts() -> None:
    backbone = _resnet(ResNetSpec((2, 1, 1, 1), bottleneck=False))
    inputs = tf.random.stateless_uniform([1, 8, 8, 64], [0, 0])
    np.testing.assert_array_equal(backbone.blocks[1](inputs), inputs)


def _plain_conv(inputs: np.ndarray, kernel: np.ndarray, *, stride: int) -> np.ndarray:
    """Output pixel (i, j) is centred on input pixel (i, j) * stride; outside there is 0."""
    side, half = len(kernel), len(kernel) // 2
    padded = np.pad(inputs, [(half, half), (half, half), (0, 0)])
    height, width = (-(-length // stride) for length in inputs.shape[:2])
    outputs = np.zeros((height, width, kernel.shape[3]))
    for i, j in np.ndindex(height, width):
        window = padded[i * stride : i * stride + side, j * stride : j * stride + side]
        outputs[i, j] = np.einsum("yxi,yxio->o", window, kernel)
    return outputs


@pytest.mark.parametrize(
    ("layout", "activation", "bottleneck"),
    [
        ("standard", "relu", True),
        ("standard", "relu", False),
        ("tpu", "relu", True),
        ("tpu", "relu", False),
        ("tpu", "relu6", False),
        ("od-api", "relu6", True),
    ],
)
def test_a_block_with_a_stride_equals_loops(layout: ResNetLayout, activation: Relu, bottleneck: bool) -> None:
    network = _resnet(TINY._replace(bottleneck=bottleneck), layout=layout, activation=activation)
    block: Any = network.blocks[1]
    limit = 6.0 if activation == "relu6" else np.inf
    random = np.random.default_rng(0)
    for variable in block.variables:
        variable.assign(random.uniform(0.1, 0.5, variable.shape) * random.choice([-1, 1], variable.shape))
    for norm in (*block.norms, block.shortcut_norm):
        norm.moving_variance.assign(np.abs(norm.moving_variance.numpy()))

    def normalised(values: np.ndarray, norm: Any) -> np.ndarray:
        gamma, beta, mean, variance = (variable.numpy() for variable in norm.variables)
        return (values - mean) / np.sqrt(variance + BATCH_NORM["epsilon"]) * gamma + beta

    inputs = random.uniform(-1, 1, (6, 5, block.in_filters))
    strides = [2, 1, 1] if layout != "tpu" or not bottleneck else [1, 2, 1]
    outputs = inputs
    for number, (conv, norm) in enumerate(zip(block.convs, block.norms, strict=True)):
        outputs = np.clip(outputs, 0.0, limit) if number else outputs
        outputs = normalised(_plain_conv(outputs, conv.kernel.numpy(), stride=strides[number]), norm)
    shortcut = normalised(_plain_conv(inputs, block.shortcut_conv.kernel.numpy(), stride=2), block.shortcut_norm)
    expected = np.clip(outputs + shortcut, 0.0, limit)
    assert activation == "relu" or 0.05 < (expected == limit).mean() < 0.95, "some are limited"
    np.testing.assert_allclose(block(tf.constant(inputs[None], tf.float32))[0], expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("layout", "pixel"), [("standard", 2), ("tpu", 3), ("od-api", 3)])
def test_the_first_pooling_is_centred_on_even_or_odd_pixels(layout: ResNetLayout, pixel: int) -> None:
    """Of level 1, which has an even size, this pixel reaches one cell of level 2, the one below two."""
    backbone = _resnet(ResNetSpec((1, 1, 1, 1), bottleneck=layout == "od-api"), layout=layout)
    kernel = np.zeros((7, 7, 3, 64))
    kernel[3, 3] = 1.0
    backbone.stem.conv.kernel.assign(kernel)

    def reached(row: int) -> int:
        images = np.zeros((1, 16, 16, 3), np.float32)
        images[0, 2 * row, 2 * pixel] = 1.0
        return int((backbone(tf.constant(images))[1].numpy().max(axis=3) > 0).sum())

    assert (reached(pixel), reached(pixel + 1)) == (1, 2)


def test_training_moves_statistics_and_recomputing_changes_nothing() -> None:
    images = tf.random.stateless_normal([2, 32, 32, 3], [0, 0])
    plain, again = _resnet(TINY), _resnet(TINY, recompute=True)
    again.set_weights(plain.get_weights())
    before = plain.stem.norm.moving_mean.numpy()
    for ours, theirs in zip(plain(images, training=True), again(images, training=True), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (plain.stem.norm.moving_mean.numpy() != before).any()
    for ours, theirs in zip(plain.variables, again.variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
