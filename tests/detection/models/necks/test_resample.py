import numpy as np
import pytest
import tensorflow as tf

from detection.models.necks.resample import Resample, nearest_by_op, upsample_nearest


@pytest.mark.parametrize(
    ("source", "target"),
    [((3, 2), (6, 4)), ((3, 4), (5, 7)), ((1, 5), (1, 10)), ((2, 2), (8, 6)), ((3, 2), (10, 2)), ((3, 5), (10, 9))],
)
def test_upsampling_takes_the_pixel_at_the_floor_of_the_ratio(source: tuple[int, int], target: tuple[int, int]) -> None:
    inputs = np.random.default_rng(0).normal(size=(2, *source, 3)).astype(np.float32)
    rows = np.arange(target[0]) * source[0] // target[0]
    columns = np.arange(target[1]) * source[1] // target[1]
    expected = inputs[:, rows][:, :, columns]
    np.testing.assert_array_equal(upsample_nearest(tf.constant(inputs), target), expected)
    with nearest_by_op():
        graph = tf.function(lambda values: upsample_nearest(values, target)).get_concrete_function(inputs)
    np.testing.assert_array_equal(graph(tf.constant(inputs)), expected)
    assert {node.op for node in graph.graph.as_graph_def().node} <= {
        "Placeholder",
        "Const",
        "ResizeNearestNeighbor",
        "Identity",
        "NoOp",
    }


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


def test_the_projection_may_follow_pooling_and_have_no_batch_norm() -> None:
    layer = Resample(filters=1, batch_norm=None, conv_after_pooling=True, name="resample", dtype=None)
    layer.build((None, None, None, 2))
    assert sorted(variable.path for variable in layer.variables) == ["resample/conv2d/bias", "resample/conv2d/kernel"]
    layer.conv.kernel.assign([[[[1.0], [-1.0]]]])
    inputs = np.random.default_rng(2).normal(size=(1, 4, 4, 2)).astype(np.float32)
    pooled = np.array([[inputs[0, y : y + 3, x : x + 3].max((0, 1)) for x in (0, 2)] for y in (0, 2)])
    np.testing.assert_allclose(layer(inputs, size=(2, 2))[0, :, :, 0], pooled @ [1.0, -1.0], rtol=1e-5)
    projected = inputs @ [[1.0], [-1.0]]  # nothing to pool: the projection comes before upsampling
    np.testing.assert_allclose(layer(inputs, size=(4, 8))[0, :, ::2], projected[0], rtol=1e-5)
