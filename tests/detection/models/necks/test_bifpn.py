from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.models.necks.bifpn import BiFpn, Fusion, Resample, bifpn_nodes, fuse, output_ids, upsample_nearest

Oracles = dict[str, dict[str, Any]]


@pytest.mark.parametrize("name", ["bifpn.nodes.l3_l7", "bifpn.nodes.l2_l7", "bifpn.nodes.l3_l8"])
def test_nodes(oracles: Oracles, name: str) -> None:
    oracle = oracles[name]
    levels = oracle["inputs"]["min_level"], oracle["inputs"]["max_level"]
    assert [[node.level, list(node.inputs)] for node in bifpn_nodes(*levels)] == oracle["expected"]["nodes"]
    if "output_ids" in oracle["expected"]:
        assert output_ids(*levels) == oracle["expected"]["output_ids"]


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


def test_every_use_of_another_width_has_its_own_projection() -> None:
    layer = BiFpn(
        min_level=3,
        max_level=5,
        filters=8,
        num_cells=2,
        fusion="fast_attention",
        activation="relu",
        batch_norm={},
    )
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


@pytest.mark.parametrize(
    ("source", "target"), [((3, 2), (6, 4)), ((3, 4), (5, 7)), ((1, 5), (1, 10)), ((2, 2), (8, 6))]
)
def test_upsampling_takes_the_pixel_at_the_floor_of_the_ratio(source: tuple[int, int], target: tuple[int, int]) -> None:
    inputs = np.random.default_rng(0).normal(size=(2, *source, 3)).astype(np.float32)
    rows = np.arange(target[0]) * source[0] // target[0]
    columns = np.arange(target[1]) * source[1] // target[1]
    np.testing.assert_array_equal(upsample_nearest(tf.constant(inputs), target), inputs[:, rows][:, :, columns])


@pytest.mark.parametrize("finer", [*range(1, 40), 641, 767, 768])
def test_levels_of_any_size_are_resampled_as_tensorflow_s_own_ops_do(finer: int) -> None:
    """google/automl calls these ops: nearest-neighbour resizing up, max pooling of stride + 1 down."""
    coarser = (finer + 1) // 2
    random = np.random.default_rng(finer)
    up = tf.constant(random.normal(size=(1, coarser, coarser, 2)), tf.float32)
    resized = tf.compat.v1.image.resize_nearest_neighbor(up, [finer, finer])
    np.testing.assert_array_equal(upsample_nearest(up, (finer, finer)), resized)
    if finer == 1:
        return
    layer = Resample(filters=2, batch_norm={}, name="resample", dtype=None)
    layer.build((None, None, None, 2))
    down = tf.constant(random.normal(size=(1, finer, finer, 2)), tf.float32)
    stride = (finer - 1) // coarser + 1
    pooled = tf.nn.max_pool2d(down, stride + 1, stride, padding="SAME")
    np.testing.assert_array_equal(layer(down, size=(coarser, coarser)), pooled)


def test_upsampling_has_a_deterministic_gradient(op_determinism: None) -> None:
    inputs = tf.ones([1, 2, 3, 1])
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = upsample_nearest(inputs, (3, 6))
        total = tf.reduce_sum(outputs)
    np.testing.assert_array_equal(tape.gradient(total, inputs)[0, :, :, 0], [[4, 4, 4], [2, 2, 2]])


def test_pooling_takes_the_maximum_of_windows_one_larger_than_the_stride() -> None:
    layer = Resample(filters=1, batch_norm={}, name="resample", dtype=None)
    layer.build((None, None, None, 1))
    assert not layer.variables
    inputs = np.random.default_rng(1).normal(size=(1, 4, 6, 1)).astype(np.float32)
    expected = [[inputs[0, y : y + 3, x : x + 3, 0].max() for x in range(0, 6, 2)] for y in range(0, 4, 2)]
    np.testing.assert_array_equal(layer(inputs, size=(2, 3))[0, :, :, 0], expected)


def test_other_channels_are_projected_before_pooling() -> None:
    layer = Resample(filters=2, batch_norm={"epsilon": 1e-6}, name="resample", dtype=None)
    layer.build((None, None, None, 1))
    layer.conv.kernel.assign([[[[1.0, -1.0]]]])
    inputs = tf.reshape(tf.range(4.0), [1, 2, 2, 1])
    np.testing.assert_allclose(layer(inputs, size=(1, 1)).numpy().ravel(), [3.0, 0.0], atol=1e-4)
