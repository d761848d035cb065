"""The necks of CenterNet against NumPy and Keras."""

from typing import Literal

import keras
import numpy as np
import pytest

from detection.models.necks.upsampling import DeconvNeck, UpsamplingNeck, UpsamplingOptions


@pytest.mark.parametrize("separable", [False, True])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_a_level_is_upsampled_and_added_to_its_lateral(
    interpolation: Literal["nearest", "bilinear"], separable: bool
) -> None:
    options = UpsamplingOptions(filters=(6, 4), interpolation=interpolation, separable_conv=separable)
    neck = UpsamplingNeck(options, momentum=0.9)
    neck.build([(None, None, None, 3), (None, None, None, 5)])
    random = np.random.default_rng(0)
    fine, coarse = (random.normal(size=shape).astype(np.float32) for shape in ((2, 8, 12, 3), (2, 4, 6, 5)))
    inputs = np.asarray(neck.laterals[0](coarse))
    # Keras' own upsampling, as in the original.
    larger = keras.layers.UpSampling2D(2, interpolation=interpolation)(inputs)
    merged = larger + np.asarray(neck.laterals[1](fine))
    expected = keras.ops.relu(neck.norms[0](neck.convs[0](merged), training=False))
    np.testing.assert_allclose(neck([fine, coarse]), expected, atol=1e-5)
    assert isinstance(neck.convs[0], keras.layers.SeparableConv2D) == separable
    assert neck.convs[0].bias is None


def test_transposed_convolutions_reach_the_size_of_the_finest_level() -> None:
    """Sides are rounded up from level to level: what exceeds is cut off at the bottom and the right."""
    neck = DeconvNeck(UpsamplingOptions(kind="deconv", filters=(6, 4)), momentum=0.9)
    neck.build([(None, None, None, channels) for channels in (3, 5, 7)])
    random = np.random.default_rng(0)
    shapes = ((2, 9, 13, 3), (2, 5, 7, 5), (2, 3, 4, 7))
    levels = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    found = neck(levels)
    assert found.shape == (2, 9, 13, 4)
    merged = levels[-1]
    for number, cut in enumerate((None, (5, 7), None, (9, 13))):
        merged = keras.ops.relu(neck.norms[number](neck.convs[number](merged), training=False))
        merged = merged if cut is None else merged[:, : cut[0], : cut[1]]
    np.testing.assert_allclose(found, merged, atol=1e-6)
    assert neck.convs[1].kernel.shape == (3, 3, 6, 6)
    assert all(conv.bias is None for conv in neck.convs)
