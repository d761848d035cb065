"""RoIAlign against loops over bins, samples and neighbours, in both formulations."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from hypothesis import given, settings
from hypothesis import strategies as st

from detection.ops.roi_align import crop_max_pool, roi_align, roi_levels

Oracles = dict[str, dict[str, Any]]
IMAGE = (96, 160)
SIZES = [(24, 40), (12, 20), (6, 10)]  # of levels 2 to 4
OPTIONS: dict[str, Any] = {"image_size": IMAGE, "min_level": 2, "output_size": 3}

BOXES = np.array(
    [
        [[10, 20, 40, 90], [0, 0, 96, 160], [5.3, 7.9, 9.1, 11.2], [-40, -30, 20, 50], [80, 130, 200, 400]],
        [[-90, -90, -20, -20], [200, 300, 240, 380], [50, 60, 50, 60], [30, 30, 30.001, 90], [20, 140, 90, 159.5]],
    ],
    np.float32,
)


def _features(
    sizes: list[tuple[int, int]] = SIZES, *, channels: int = 2, batch: int = 2, seed: int = 0
) -> list[tf.Tensor]:
    random = np.random.default_rng(seed)
    return [tf.constant(random.normal(size=(batch, *size, channels)), tf.float32) for size in sizes]


def _plain_level(box: np.ndarray, min_level: int, max_level: int) -> int:
    area = max(float(box[2]) - float(box[0]), 0.0) * max(float(box[3]) - float(box[1]), 0.0)
    if area == 0.0:
        return min_level
    return min(max(math.floor(math.log2(math.sqrt(area) / 224.0)) + 4, min_level), max_level)


def _plain_cell(place: float, count: int) -> list[tuple[int, float]]:
    """Cells and weights at a place along an axis, counted in cells from the first centre."""
    place = min(max(place, 0.0), count - 1.0)
    low = math.floor(place)
    return [(low, 1.0 - (place - low)), (min(low + 1, count - 1), place - low)]


def _plain_bins(
    sizes: list[tuple[int, int]],
    box: np.ndarray,
    *,
    image_size: tuple[int, int],
    min_level: int,
    output_size: int,
    samples: int = 1,
    cell_centre: float = 0.5,
) -> list[tuple[int, int, int, int, int, float]]:
    """All (bin's row, bin's column, level's index, row, column, weight) of one box."""
    level = _plain_level(box, min_level, min_level + len(sizes) - 1) - min_level
    height, width = sizes[level]
    ymin, xmin, ymax, xmax = box.astype(np.float64)
    parts = []
    for i in range(output_size):
        for j in range(output_size):
            for u in range(samples):
                for v in range(samples):
                    y = ymin + (i + (u + 0.5) / samples) * (ymax - ymin) / output_size
                    x = xmin + (j + (v + 0.5) / samples) * (xmax - xmin) / output_size
                    for row, by_row in _plain_cell(y * height / image_size[0] - cell_centre, height):
                        for column, by_column in _plain_cell(x * width / image_size[1] - cell_centre, width):
                            parts.append((i, j, level, row, column, by_row * by_column / samples**2))
    return parts


def _plain_align(features: list[tf.Tensor], boxes: np.ndarray, **options: Any) -> np.ndarray:
    sizes, side = [tuple(feature.shape[1:3]) for feature in features], options["output_size"]
    maps = [feature.numpy().astype(np.float64) for feature in features]
    result = np.zeros((*boxes.shape[:2], side, side, maps[0].shape[-1]))
    for image, number in np.ndindex(*boxes.shape[:2]):
        for i, j, level, row, column, weight in _plain_bins(sizes, boxes[image, number], **options):
            result[image, number, i, j] += weight * maps[level][image, row, column]
    return result


def _plain_gradient(
    features: list[tf.Tensor], boxes: np.ndarray, upstream: np.ndarray, **options: Any
) -> list[np.ndarray]:
    sizes = [tuple(feature.shape[1:3]) for feature in features]
    gradients = [np.zeros(feature.shape) for feature in features]
    for image, number in np.ndindex(*boxes.shape[:2]):
        for i, j, level, row, column, weight in _plain_bins(sizes, boxes[image, number], **options):
            gradients[level][image, row, column] += weight * upstream[image, number, i, j]
    return gradients


def test_levels(oracles: Oracles) -> None:
    oracle = oracles["roi.level"]
    sides = np.array(oracle["inputs"]["s"], np.float32)
    boxes = np.stack([sides * 0 + 3, sides * 0 + 5, sides + 3, sides + 5], axis=1)
    np.testing.assert_array_equal(roi_levels(boxes, min_level=2, max_level=6), oracle["expected"])


@settings(max_examples=60)
@given(st.integers(1, 1500), st.integers(1, 1500))
def test_levels_equal_the_formula(height: int, width: int) -> None:
    box = np.array([7, 9, 7 + height, 9 + width], np.float32)
    assert roi_levels(box, min_level=2, max_level=6) == _plain_level(box, 2, 6)


def test_boxes_without_area_read_the_finest_level() -> None:
    boxes = np.array([[5, 5, 5, 5], [5, 5, 5, 900], [900, 900, 0, 0], [5, 5, 5.001, 5.001]], np.float32)
    np.testing.assert_array_equal(roi_levels(boxes, min_level=3, max_level=6), [3, 3, 3, 3])


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("options", [{}, {"samples": 2}, {"samples": 3, "cell_centre": 0.0}])
def test_equals_loops(options: dict[str, Any], portable: bool) -> None:
    features = _features()
    aligned = roi_align(features, BOXES, portable=portable, **OPTIONS, **options)
    assert aligned.shape == (2, 5, 3, 3, 2)
    np.testing.assert_allclose(aligned, _plain_align(features, BOXES, **OPTIONS, **options), atol=2e-5)


@pytest.mark.parametrize("portable", [False, True])
def test_large_boxes_read_their_level(portable: bool) -> None:
    """Boxes of all levels, in an oblong image whose sizes are odd, so that strides are not powers of 2."""
    sizes = [(19, 13), (10, 7), (5, 4), (3, 2), (2, 1)]
    random = np.random.default_rng(1)
    side = np.geomspace(30, 1100, 12)[:, np.newaxis] * random.uniform(0.8, 1.2, (2, 12, 2))
    low = random.uniform(-200, 1000, (2, 12, 2))
    boxes = np.concatenate([low, low + side], axis=2).astype(np.float32)
    assert set(roi_levels(boxes, min_level=2, max_level=6).numpy().ravel()) == {2, 3, 4, 5, 6}
    features, options = _features(sizes), OPTIONS | {"image_size": (1201, 790)}
    aligned = roi_align(features, boxes, portable=portable, **options)
    np.testing.assert_allclose(aligned, _plain_align(features, boxes, **options), atol=1e-4)


@pytest.mark.parametrize("portable", [False, True])
@pytest.mark.parametrize("samples", [1, 2])
def test_gradient_equals_loops(samples: int, portable: bool) -> None:
    features, boxes = _features(), tf.constant(BOXES)
    upstream = np.random.default_rng(2).normal(size=(2, 5, 3, 3, 2)).astype(np.float32)
    with tf.GradientTape() as tape:
        tape.watch([features, boxes])
        aligned = roi_align(features, boxes, portable=portable, samples=samples, **OPTIONS)
    gradients, of_boxes = tape.gradient(aligned, [features, boxes], output_gradients=upstream)
    assert of_boxes is None
    expected = _plain_gradient(features, BOXES, upstream, samples=samples, **OPTIONS)
    for gradient, values in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, values, atol=2e-5)


def test_rows_are_y() -> None:
    """A map that counts its rows is read at a box's own rows, a fifth of the way from each side."""
    rows = tf.broadcast_to(tf.range(24, dtype=tf.float32)[tf.newaxis, :, tf.newaxis, tf.newaxis], [1, 24, 40, 1])
    aligned = roi_align([rows], tf.constant([[[8.0, 100.0, 28.0, 104.0]]]), **(OPTIONS | {"output_size": 5}))
    np.testing.assert_allclose(aligned[0, 0, :, :, 0], np.repeat([[2.0], [3.0], [4.0], [5.0], [6.0]], 5, axis=1))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_adds_up_in_float32(dtype: str) -> None:
    features = [tf.cast(feature, dtype) for feature in _features()]
    boxes = tf.repeat(tf.constant(BOXES[:, :1]), 600, axis=1)  # the same cells many times
    with tf.GradientTape() as tape:
        tape.watch(features)
        aligned = roi_align(features, boxes, **OPTIONS)
    gradients = tape.gradient(aligned, features, output_gradients=tf.ones_like(aligned))
    assert aligned.dtype == dtype
    assert {gradient.dtype for gradient in gradients} == {tf.as_dtype(dtype)}
    plain = [tf.cast(feature, tf.float32) for feature in features]
    epsilon = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    expected = _plain_align(plain, BOXES[:, :1], **OPTIONS)
    np.testing.assert_allclose(tf.cast(aligned[:, :1], tf.float32), expected, rtol=epsilon, atol=1e-4)
    one = _plain_gradient(plain, BOXES[:, :1], np.ones((2, 1, 3, 3, 2)), **OPTIONS)
    for gradient, values in zip(gradients, one, strict=True):
        np.testing.assert_allclose(tf.cast(gradient, tf.float32), 600.0 * values, rtol=epsilon, atol=0.05)


def test_compiles_under_xla_inside_a_function() -> None:
    """A function that a compiled one calls is compiled, too."""
    inner = tf.function(partial(roi_align, **OPTIONS))
    doubled = tf.function(lambda features, boxes: 2.0 * inner(features, boxes), jit_compile=True)
    np.testing.assert_allclose(doubled(_features(), BOXES), 2.0 * roi_align(_features(), BOXES, **OPTIONS), atol=1e-5)


def test_ops_without_xla_are_used_only_where_there_is_no_xla() -> None:
    def ops(*, jit_compile: bool = False, **options: Any) -> set[str]:
        traced = tf.function(partial(roi_align, **OPTIONS, **options), jit_compile=jit_compile)
        graph = traced.get_concrete_function(_features(), BOXES).graph.as_graph_def()
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        return {node.op for node in nodes}

    if not tf.config.list_physical_devices("GPU"):
        assert "SparseTensorDenseMatMul" in ops()
    for options in ({"jit_compile": True}, {"portable": True}):
        assert "SparseTensorDenseMatMul" not in ops(**options)


def test_any_batch_and_no_box() -> None:
    features = _features()
    signature = [[tf.TensorSpec([None, *size, 2]) for size in SIZES], tf.TensorSpec([None, None, 4])]
    for portable in (False, True):
        aligned = tf.function(partial(roi_align, portable=portable, **OPTIONS), input_signature=signature)
        np.testing.assert_allclose(aligned(features, BOXES), roi_align(features, BOXES, **OPTIONS), atol=1e-5)
        assert aligned(features, BOXES[:, :0]).shape == (2, 0, 3, 3, 2)


@pytest.mark.parametrize("portable", [False, True])
def test_boxes_that_are_not_numbers_give_no_numbers(portable: bool) -> None:
    """So that training's guard against NaN sees them, not an error about an index."""
    boxes = np.full((2, 1, 4), np.nan, np.float32)
    assert np.isnan(roi_align(_features(), boxes, portable=portable, **OPTIONS)).all()


@pytest.mark.parametrize("samples", [1, 2])
def test_converts_to_lite_rt_without_other_ops(samples: int) -> None:
    specs = [tf.TensorSpec(feature.shape) for feature in _features()]
    function = tf.function(
        lambda boxes, *features: roi_align(list(features), boxes, portable=True, samples=samples, **OPTIONS)
    ).get_concrete_function(tf.TensorSpec(BOXES.shape), *specs)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function])
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    interpreter = Interpreter(model_content=converter.convert())
    interpreter.allocate_tensors()
    values = {tuple(value.shape): value for value in (BOXES, *_features())}
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], np.asarray(values[tuple(detail["shape"])], np.float32))
    interpreter.invoke()
    got = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_allclose(got, roi_align(_features(), BOXES, samples=samples, **OPTIONS), atol=1e-4)


@pytest.mark.parametrize("portable", [False, True])
def test_crops_equal_those_of_tensorflow(*, portable: bool) -> None:
    """The level's index in the TF Object Detection API: floor(log2(side / 224)) + L - 2, clamped to 0..L - 1."""
    height, width = 640, 512
    features = _features([(160, 128), (80, 64), (40, 32)])
    corners = np.random.default_rng(0).uniform(0, [height, width], (2, 6, 2, 2))
    boxes = np.sort(corners, axis=2).reshape(2, 6, 4).astype(np.float32)
    boxes[:, 0] = [0, 0, height, width]
    boxes[:, 1] = [30, 40, 50, 60]
    options: dict[str, Any] = {"image_size": (height, width), "min_level": 2, "canonical_level": 3}
    found = crop_max_pool(features, tf.constant(boxes), output_size=3, portable=portable, **options)
    indices = set()
    for image, roi in np.ndindex(2, 6):
        y0, x0, y1, x1 = boxes[image, roi]
        index = int(np.clip(np.floor(np.log2(np.sqrt((y1 - y0) * (x1 - x0)) / 224)) + 1, 0, 2))
        indices.add(index)
        box = boxes[image, roi] / [height, width, height, width]
        crop = tf.image.crop_and_resize(features[index][image : image + 1], [box], [0], (6, 6))
        np.testing.assert_allclose(found[image, roi], tf.nn.max_pool2d(crop, 2, 2, "VALID")[0], atol=1e-4)
    assert indices == {0, 1, 2}
