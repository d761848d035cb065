from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.models.necks.bifpn import BiFpn, Fusion, fuse
from detection.models.necks.fpn_graphs import fpn_nodes

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


def test_every_use_of_another_width_has_its_own_projection() -> None:
    layer = BiFpn(
        min_level=3,
        max_level=5,
        filters=8,
        num_cells=2,
        nodes=fpn_nodes("bifpn", 3, 5),
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
