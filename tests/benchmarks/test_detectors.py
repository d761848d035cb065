"""The measured size and work of detectors are those of the networks."""

from typing import Any

import pytest
import tensorflow as tf

from benchmarks.detectors import CATEGORIES, build, multiply_adds, parameters
from detection.inference.formats.serving_module import ServingModule
from docs.detectors import measured_detectors

# Ops of which TensorFlow's profiler counts two for a multiply-add; the detectors below have no others of weight.
PROFILED = ("Conv2D", "DepthwiseConv2dNative", "MatMul")


@pytest.mark.parametrize("name", ["efficientdet-nano", "faster-rcnn-nano", "centernet-nano-kpts", "ssd-nano"])
def test_the_recorded_work_is_that_of_the_network(name: str) -> None:
    detector = build(name)
    recorded = measured_detectors()[name]
    assert recorded["parameters"] == parameters(detector)
    trained = sum(tf.size(variable.value).numpy() for variable in detector.trainable_variables)
    assert recorded["parameters"] == trained  # all weights of these train
    graph = ServingModule(detector, CATEGORIES, batch_size=1).fitted_function("op").get_concrete_function().graph
    profiler = tf.compat.v1.profiler
    options = profiler.ProfileOptionBuilder(profiler.ProfileOptionBuilder.float_operation()).with_empty_output().build()
    profile = profiler.profile(graph, cmd="op", options=options)
    assert recorded["multiply_adds"] == multiply_adds(graph) == _profiled(profile) // 2


def _profiled(node: Any) -> int:
    own = node.float_ops if node.name in PROFILED else 0
    return int(own + sum(_profiled(child) for child in node.children))


def test_multiply_adds_of_transposed_and_batched_products() -> None:
    with tf.Graph().as_default() as graph:
        kernel = tf.zeros([2, 2, 5, 3])  # height, width, channels of the output, of the input
        tf.nn.conv2d_transpose(tf.zeros([1, 4, 4, 3]), kernel, [1, 8, 8, 5], 2)
        tf.linalg.matmul(tf.zeros([6, 7, 2]), tf.zeros([6, 7, 3]), transpose_a=True)
    assert multiply_adds(graph) == 4 * 4 * 3 * 2 * 2 * 5 + 6 * 2 * 7 * 3
