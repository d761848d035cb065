"""Every detector's training step and detection compile under XLA with static shapes; a CPU stands in for a TPU.

The harness holds which detectors these are.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from detection.models.detector import Detector
from detection.types import Detections, ImageInfo, Labels
from tests.detection.models.harness import (
    QUERIES,
    SLOW,
    Adam,
    assert_gradients_near,
    build,
    check_detections,
    gradient_step,
    image_info,
    images,
    labels,
)


def assert_compiles(name: str, detector: Detector) -> Any:
    """Compares the compiled gradients with eager ones; returns the plain and the compiled step."""

    def step(pixels: tf.Tensor, objects: Labels, seed: tf.Tensor) -> Any:
        return gradient_step(detector, pixels, objects, seed)

    def detect(pixels: tf.Tensor, info: ImageInfo) -> Detections:
        return detector.detect(detector(pixels), info)

    compiled_step, compiled_detect = (
        tf.function(function, jit_compile=True, autograph=False) for function in (step, detect)
    )
    check_detections(compiled_detect(images(), image_info()))
    weights, seed = detector.get_weights(), tf.constant([1, 2])
    terms, gradients = compiled_step(images(), labels(), seed)
    detector.set_weights(weights)
    expected_terms, expected_gradients = step(images(), labels(), seed)
    for key, term in terms.items():
        np.testing.assert_allclose(term, expected_terms[key], rtol=5e-3)
    assert_gradients_near(name, gradients, expected_gradients)
    return step, compiled_step


def test_the_default_family_compiles_under_xla() -> None:
    """All else of `efficientdet-nano` is in `make test-all`, as most tests of training take it."""
    assert_compiles("efficientdet-nano", build("efficientdet-nano"))


def test_compiles_under_xla_and_learns(name: str, detector: Detector) -> None:
    step, compiled_step = assert_compiles(name, detector)
    optimizer = Adam(detector)
    # Not optimized, the code of a large detector is slower than its ops.
    is_compiled = name not in SLOW or name in QUERIES
    learn, steps = (compiled_step, 10) if is_compiled else (step, 20)
    steps, part = (20, 0.8) if name in QUERIES else (steps, 0.5)  # queries learn slowly, from more terms
    losses = [optimizer.step(learn(images(), labels(), tf.constant([number, 0]))) for number in range(steps)]
    assert losses[-1] < part * losses[0]
