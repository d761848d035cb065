from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.models.necks.bifpn import BiFpn, BiFpnOptions, Fusion, fuse
from detection.models.necks.fpn_graphs import Node, fpn_nodes

Oracles = dict[str, dict[str, Any]]


@pytest.mark.parametrize(("method", "key"), [("fast_attention", "fastattn"), ("attention", "attn"), ("sum", "sum")])
def test_fusion_with_initial_weights(oracles: Oracles, method: Fusion, key: str) -> None:
    oracle = oracles["bifpn.fusion"]
    nodes = [tf.constant(node, tf.float32) for node in oracle["inputs"]["nodes"]]
    np.testing.assert_allclose(fuse(nodes, [tf.ones([])] * 2, method), oracle["expected"][key], atol=1e-5)


def test_fast_attention_of_three_inputs(oracles: Oracles) -> None:
    weight = oracles["bifpn.fusion"]["expected"]["fastattn_weight_with_three_inputs"]
    nodes = [tf.constant([1.0]), tf.constant([0.0]), tf.constant([0.0])]
    np.testing.assert_allclose(fuse(nodes, [tf.ones([])] * 3, "fast_attention"), [weight], rtol=1e-5)


def test_weights_belong_to_their_inputs_and_negative_ones_are_off() -> None:
    nodes, weights = [tf.constant([10.0]), tf.constant([1.0])], [tf.constant(3.0), tf.constant(1.0)]
    np.testing.assert_allclose(fuse(nodes, weights, "fast_attention"), [31 / 4.0001], rtol=1e-6)
    np.testing.assert_allclose(fuse(nodes, [tf.constant(-3.0), tf.constant(1.0)], "fast_attention"), [1 / 1.0001])
    normalized = np.exp([3.0, 1.0]) / np.exp([3.0, 1.0]).sum()
    np.testing.assert_allclose(fuse(nodes, weights, "attention"), [normalized @ [10.0, 1.0]], rtol=1e-6)


def test_channels_may_have_weights_of_their_own() -> None:
    nodes = [tf.constant([[10.0, 2.0]]), tf.constant([[1.0, 4.0]])]
    weights = [tf.constant([3.0, 1.0]), tf.constant([1.0, -2.0])]
    fast = [[31 / 4.0001, 2.0 / 1.0001]]
    np.testing.assert_allclose(fuse(nodes, weights, "channel_fast_attention"), fast, rtol=1e-6)
    shares = np.exp([[3.0, 1.0], [1.0, -2.0]]) / np.exp([[3.0, 1.0], [1.0, -2.0]]).sum(axis=0)
    expected = [[10.0, 2.0] * shares[0] + [1.0, 4.0] * shares[1]]
    np.testing.assert_allclose(fuse(nodes, weights, "channel_attention"), expected, rtol=1e-6)


@pytest.mark.parametrize("separable", [True, False])
@pytest.mark.parametrize("conv_bn_act", [True, False])
def test_the_order_after_fusion(separable: bool, conv_bn_act: bool) -> None:
    """Against convolutions in numpy; batch norm with moving statistics is a line per channel."""
    options = BiFpnOptions(filters=2, cells=1, fusion="sum", separable_conv=separable, conv_bn_act=conv_bn_act)
    layers: dict[str, Any] = {"activation": "relu6", "batch_norm": {"epsilon": 0.5}}
    layer = BiFpn([Node(3, (0, 0)), Node(4, (1, 1))], options, min_level=3, max_level=4, **layers)
    layer.build([(None, None, None, 2)] * 2)
    random = np.random.default_rng(0)
    for variable in layer.variables:
        variable.assign(random.uniform(0.2, 1.0, variable.shape))
    after = layer.cells[0].fusions[0].after
    values = {variable.path.rpartition("op_after_combine2/")[2]: variable.numpy() for variable in after.variables}
    assert ("conv/bias" in values) is not conv_bn_act
    if separable:
        kernel = values["conv/depthwise_kernel"][..., 0][..., None] * values["conv/pointwise_kernel"][0, 0]
    else:
        kernel = values["conv/kernel"]
    feature = random.normal(size=(4, 5, 2)).astype(np.float32)

    def conv(inputs: np.ndarray) -> np.ndarray:
        padded = np.pad(inputs, [(1, 1), (1, 1), (0, 0)])
        windows = [[padded[y : y + 3, x : x + 3] for x in range(5)] for y in range(4)]
        return np.einsum("yxijc,ijcd->yxd", np.array(windows), kernel) + values.get("conv/bias", 0.0)

    def norm(inputs: np.ndarray) -> np.ndarray:
        scale = values["bn/gamma"] / np.sqrt(values["bn/moving_variance"] + 0.5)
        return (inputs - values["bn/moving_mean"]) * scale + values["bn/beta"]

    def relu6(inputs: np.ndarray) -> np.ndarray:
        return np.clip(inputs, 0.0, 6.0)

    fused = 2.0 * feature
    expected = relu6(norm(conv(fused))) if conv_bn_act else norm(conv(relu6(fused)))
    outputs = layer([tf.constant(feature[None]), tf.zeros([1, 2, 3, 2])])
    np.testing.assert_allclose(outputs[0][0], expected, rtol=1e-4, atol=1e-5)


def test_every_use_of_another_width_has_its_own_projection() -> None:
    nodes, options = fpn_nodes("bifpn", 3, 5), BiFpnOptions(filters=8, cells=2)
    layer = BiFpn(nodes, options, min_level=3, max_level=5, activation="relu", batch_norm={})
    layer.build([(None, None, None, channels) for channels in (4, 6, 8)])
    projections = sorted(variable.path for variable in layer.variables if variable.path.endswith("conv2d/kernel"))
    # Level 4 is used twice, level 5 has the right width already.
    assert projections == [
        "fpn_cells/cell_0/fnode0/resample_0_1_3/conv2d/kernel",
        "fpn_cells/cell_0/fnode1/resample_0_0_4/conv2d/kernel",
        "fpn_cells/cell_0/fnode2/resample_0_1_5/conv2d/kernel",
    ]
    features = [tf.ones([1, side, side + 2, width]) for side, width in ((8, 4), (4, 6), (2, 8))]
    features = [features[0], tf.ones([1, 4, 5, 6]), tf.ones([1, 2, 3, 8])]
    assert [output.shape.as_list() for output in layer(features)] == [[1, 8, 10, 8], [1, 4, 5, 8], [1, 2, 3, 8]]


def _elements_of_a_cell(**options: Any) -> int:
    """Trainable elements of the first cell of D0's neck."""
    nodes = options.pop("nodes", fpn_nodes("bifpn", 3, 7))
    common = BiFpnOptions(cells=1, **options)
    layer = BiFpn(nodes, common, min_level=3, max_level=7, activation="relu", batch_norm={})
    layer.build([(None, None, None, channels) for channels in (40, 112, 320, 64, 64)])
    return sum(int(np.prod(variable.shape)) for variable in layer.trainable_variables)


def test_parameter_counts_are_those_of_the_arithmetic(oracles: Oracles) -> None:
    """The cell has 8 nodes with 19 inputs, and projects P3 once, P4 and P5 twice."""
    base = _elements_of_a_cell()
    assert base == oracles["effdet.params.d0"]["expected"]["fpn_first_cell"]
    assert _elements_of_a_cell(fusion="sum") == base - 19
    assert _elements_of_a_cell(fusion="channel_attention") == base + 19 * 63
    assert _elements_of_a_cell(conv_bn_act=True) == base - 8 * 64
    assert _elements_of_a_cell(resample_batch_norm=False) == base - 5 * 2 * 64
    plain, separable = 9 * 64 * 64, 9 * 64 + 64 * 64
    assert _elements_of_a_cell(separable_conv=False) == base + 8 * (plain - separable)
    # QuFPN has 13 nodes and 29 inputs more, and projects each of P3, P4 and P5 twice more.
    more = 13 * (separable + 64 + 2 * 64) + 29 + sum(2 * (width * 64 + 3 * 64) for width in (40, 112, 320))
    assert _elements_of_a_cell(nodes=fpn_nodes("qufpn", 3, 7)) == base + more
