from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.models.necks.fpn import Fpn, FpnOptions
from detection.ops.anchors import feature_sizes

Oracles = dict[str, dict[str, Any]]

CHANNELS = {2: 3, 3: 4, 4: 5}


def _fpn(max_level: int, **options: Any) -> Fpn:
    fpn = Fpn(FpnOptions(filters=6), min_level=2, backbone_level=4, max_level=max_level, **options)
    fpn.build([(None, None, None, channels) for channels in CHANNELS.values()])
    return fpn


def _features(image_size: tuple[int, int]) -> list[tf.Tensor]:
    sizes = feature_sizes(image_size, 4)
    return [
        tf.random.stateless_normal([2, *sizes[level], channels], [level, 0]) for level, channels in CHANNELS.items()
    ]


def _convolved(inputs: np.ndarray, conv: Any) -> np.ndarray:
    """3x3, zeros outside."""
    kernel, bias = conv.kernel.numpy(), conv.bias.numpy()
    padded = np.pad(inputs, [(0, 0), (1, 1), (1, 1), (0, 0)])
    height, width = inputs.shape[1:3]
    return sum(padded[:, y : y + height, x : x + width] @ kernel[y, x] for y, x in np.ndindex(3, 3)) + np.asarray(bias)


@pytest.mark.parametrize("image_size", [(64, 64), (40, 72), (33, 50)])
def test_levels_equal_loops(image_size: tuple[int, int]) -> None:
    fpn, features = _fpn(5), _features(image_size)
    for variable in fpn.variables:
        variable.assign(np.random.default_rng(0).normal(size=variable.shape))
    expected: dict[int, np.ndarray] = {}
    merged = None
    for level in (4, 3, 2):
        lateral = fpn.laterals[level - 2]
        own = features[level - 2].numpy() @ lateral.kernel.numpy()[0, 0] + lateral.bias.numpy()
        if merged is not None:
            for y, x in np.ndindex(own.shape[1:3]):
                # Odd sizes, too: a coarse cell covers two fine ones, the last one maybe one.
                own[:, y, x] += merged[:, y // 2, x // 2]
        merged = own
        expected[level] = _convolved(merged, fpn.outputs[level - 2])
    expected[5] = np.stack([row[:, ::2] for row in expected[4].swapaxes(0, 1)[::2]], axis=1)
    pyramid = fpn(features)
    assert [tuple(feature.shape[1:3]) for feature in pyramid] == feature_sizes(image_size, 5)[2:]
    for level, feature in zip(range(2, 6), pyramid, strict=True):
        np.testing.assert_allclose(feature, expected[level], rtol=1e-4, atol=1e-3)


def test_several_levels_above_the_backbone_are_convolutions() -> None:
    fpn, features = _fpn(6), _features((50, 64))
    pyramid = fpn(features)
    assert [tuple(feature.shape[1:]) for feature in pyramid] == [(*size, 6) for size in feature_sizes((50, 64), 6)[2:]]
    sixth = fpn.extra_levels[1]
    sixth.kernel.assign(-np.abs(sixth.kernel.numpy()))
    assert (fpn(features)[-1].numpy() <= 0).all(), "relu comes before it"
    assert (pyramid[-2].numpy() < 0).any(), "but not after it, and not before the first"


@pytest.mark.parametrize("max_level", [4, 5, 6])
def test_the_od_api_s_levels_hand_their_outputs_down(max_level: int) -> None:
    fpn, features = _fpn(max_level, layout="od-api", activation="relu6"), _features((64, 96))
    for variable in fpn.variables:
        variable.assign(np.random.default_rng(0).normal(size=variable.shape))
    assert len(fpn.outputs) == 2, "the coarsest level of the backbone has none"
    laterals = [
        feature.numpy() @ conv.kernel.numpy()[0, 0] + conv.bias.numpy()
        for feature, conv in zip(features, fpn.laterals, strict=True)
    ]
    expected = [laterals[2]]
    for level in (1, 0):
        coarser = expected[0].repeat(2, axis=1).repeat(2, axis=2)
        expected.insert(0, np.clip(_convolved(laterals[level] + coarser, fpn.outputs[level]), 0.0, 6.0))
    for conv in fpn.extra_levels:
        # Of an even size, `SAME` pads at the end alone; of an odd one, on both sides.
        odd = [length % 2 for length in expected[-1].shape[1:3]]
        centred = _convolved(expected[-1], conv)[:, 1 - odd[0] :: 2, 1 - odd[1] :: 2]
        expected.append(np.clip(centred, 0.0, 6.0))
    pyramid = fpn(features)
    assert len(pyramid) == max_level - 1
    for feature, values in zip(pyramid, expected, strict=True):
        np.testing.assert_allclose(feature, values, rtol=1e-4, atol=1e-3)


def test_without_levels_above_there_are_none() -> None:
    assert len(_fpn(4)(_features((32, 32)))) == 3


def test_parameters_equal_the_originals(oracles: Oracles) -> None:
    fpn = Fpn(FpnOptions(), min_level=2, backbone_level=5, max_level=6)
    fpn.build([(None, None, None, channels) for channels in (256, 512, 1024, 2048)])
    count = sum(int(np.prod(variable.shape)) for variable in fpn.variables)
    assert count == oracles["maskrcnn.params.r50_fpn"]["expected"]["fpn"]
