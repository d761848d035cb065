"""`load_detector`: the raw network on images of any size."""

import numpy as np
import pytest
import tensorflow as tf

from detection.inference.load import LoadedDetector
from detection.inference.restore import TrainedDetector
from detection.models.registry import build_detector
from schemas.config.config import Config
from tests.detection.training.tiny_run import CATEGORIES

LEVELS = (3, 4, 5)


@pytest.fixture(scope="module")
def model() -> LoadedDetector:
    detector = build_detector("efficientdet-nano", num_classes=len(CATEGORIES), overrides={"fpn_cells": 1})
    random = np.random.default_rng(0)
    for variable in detector.variables:
        if "variance" not in variable.path:
            variable.assign(variable.numpy() + random.normal(0, 0.05, variable.shape))
    return LoadedDetector(TrainedDetector(detector, CATEGORIES, Config(), None))


def _images(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(2, height, width, 3)).astype(np.float32)


@pytest.mark.parametrize(("height", "width"), [(128, 128), (100, 132), (65, 31), (160, 40)])
def test_levels_are_halved_and_rounded_up(model: LoadedDetector, height: int, width: int) -> None:
    outputs = model(_images(height, width))
    assert list(outputs) == [f"{kind}_p{level}" for kind in ("class", "box") for level in LEVELS]
    for level in LEVELS:
        rows, columns = (-(-side // 2**level) for side in (height, width))
        assert outputs[f"class_p{level}"].shape == (2, rows, columns, 9 * len(CATEGORIES))
        assert outputs[f"box_p{level}"].shape == (2, rows, columns, 9 * 4)


@pytest.mark.parametrize("size", [(64, 96), (72, 40)])
def test_the_answer_is_that_of_the_detector_of_this_size(model: LoadedDetector, size: tuple[int, int]) -> None:
    """The same weights in a detector whose input has the images' size."""
    overrides = {"fpn_cells": 1, "image_size": size}
    detector = build_detector("efficientdet-nano", num_classes=len(CATEGORIES), overrides=overrides)
    for variable, trained in zip(detector.variables, model.detector.variables, strict=True):
        variable.assign(trained.value)
    images = _images(*size)
    expected = detector.named_outputs(detector(tf.constant(images)))
    for name, values in model(images).items():
        np.testing.assert_allclose(values, expected[name], atol=1e-5)
    with pytest.raises(ValueError, match="takes images of 128 x 128 pixels"):
        model.detector(tf.constant(images))


def test_the_raw_network_traces(model: LoadedDetector) -> None:
    images = _images(64, 64)
    traced = tf.function(model.__call__)(tf.constant(images))
    for name, values in model(images).items():
        np.testing.assert_allclose(traced[name], values, atol=1e-4)


@pytest.mark.parametrize("shape", [(128, 128, 3), (1, 128, 128, 4)])
def test_other_shapes_are_refused(model: LoadedDetector, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"takes normalised images \[B, H, W, 3\] of a static size"):
        model(np.zeros(shape, np.float32))
