"""LiteRT models of a few ops with the inputs and outputs of detectors: what they detect is known.

A white image of `SIDE` pixels gives the scores as they are, a darker one lower scores.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from detection.export.mediapipe.metadata import DetectorMetadata

SIDE = 100
BOXES = [  # ymin, xmin, ymax, xmax
    [0.104, 0.203, 0.508, 0.61],
    [0.305, 0.052, 0.9, 0.956],
    [0.0, 0.0, 0.207, 0.103],
    [0.0, 0.0, 0.0, 0.0],
]
CLASSES = [2, 0, 1, 0]
SCORES = [0.9, 0.7, 0.5, 0.0]
COUNT = 3
LABELS = ("raccoon", "hérisson", "chien")
NAMES = ("detection_boxes", "detection_classes", "detection_scores", "num_detections")  # in the signature
ANCHORS = np.array([[0.3, 0.4, 0.4, 0.4], [0.6, 0.5, 0.6, 0.9], [0.1, 0.05, 0.2, 0.1]], np.float32)  # yxhw
LOGITS = [[-9.0, -9.0, 2.0], [1.0, -9.0, -9.0], [-9.0, 0.5, -9.0]]
RAW_NAMES = ("box_deltas", "class_logits")

METADATA = DetectorMetadata(name="tiny", description="A test.", labels=LABELS, normalization=(0.0, 1.0))
UINT8_METADATA = DetectorMetadata(name="tiny", description="A test.", labels=LABELS, normalization=None)
RAW_METADATA = DetectorMetadata(
    name="tiny", description="A test.", labels=LABELS, normalization=(0.0, 1.0), anchors_yxhw=ANCHORS
)


@functools.cache
def detections_model(dtype: str = "float32") -> bytes:
    """A model with the outputs of suppressed detections, in the converter's own order."""
    return _convert(
        lambda light: {
            NAMES[0]: tf.constant([BOXES], tf.float32) + 0.0 * light,
            NAMES[1]: tf.constant([CLASSES], tf.float32) + 0.0 * light,
            NAMES[2]: tf.constant([SCORES], tf.float32) * light,
            NAMES[3]: tf.constant([COUNT], tf.float32) + 0.0 * light,
        },
        dtype,
    )


@functools.cache
def model_of_classes(count: int) -> bytes:
    """A model that detects each class once, in boxes of one pixel, by descending scores."""
    top = np.arange(count, dtype=np.float32)[:, np.newaxis] / SIDE
    boxes = np.concatenate([top, top, top + 1 / SIDE, top + 1 / SIDE], axis=1)
    return _convert(
        lambda light: {
            NAMES[0]: tf.constant(boxes[np.newaxis]) + 0.0 * light,
            NAMES[1]: tf.range(count, dtype=tf.float32)[tf.newaxis] + 0.0 * light,
            NAMES[2]: tf.linspace(0.9, 0.5, count)[tf.newaxis] * light,
            NAMES[3]: tf.constant([count], tf.float32) + 0.0 * light,
        },
        "float32",
    )


@functools.cache
def raw_model() -> bytes:
    """A model with box deltas of 0 and logits, one row per anchor."""
    return _convert(
        lambda light: {
            RAW_NAMES[0]: tf.zeros([1, len(ANCHORS), 4]) * light,
            RAW_NAMES[1]: tf.constant([LOGITS], tf.float32) * light,
        },
        "float32",
    )


@functools.cache
def wrong_model(problem: str) -> bytes:
    """A model of detections with something that MediaPipe does not take."""
    batch, channels = 2 if problem == "batch" else 1, 1 if problem == "gray" else 3
    classes = tf.int32 if problem == "classes" else tf.float32

    def outputs(light: tf.Tensor) -> dict[str, tf.Tensor]:
        return {
            NAMES[0]: tf.constant([BOXES[: 3 if problem == "boxes" else 4]], tf.float32) + 0.0 * light,
            NAMES[1]: tf.constant([CLASSES], classes) + tf.cast(0.0 * light, classes),
            NAMES[2]: tf.constant([SCORES], tf.float32) * light,
            NAMES[3]: tf.constant([[COUNT]] if problem == "count" else [COUNT], tf.float32) + 0.0 * light,
        }

    dtype = "int32" if problem == "int32" else "float32"
    return _convert(outputs, dtype, [batch, SIDE, SIDE, channels])


@functools.cache
def model_with_weights() -> tuple[bytes, bytes]:
    """A model with a constant, and the bytes of the constant."""
    weights = np.random.default_rng(0).normal(size=[3, 64]).astype(np.float32)
    model = _convert(lambda light: {"x": tf.reshape(light, [1, 1]) * (tf.constant(weights) + light)}, "float32")
    return model, weights.tobytes()


@functools.cache
def looping_model() -> bytes:
    """A model with a loop, which has graphs of its own."""

    def outputs(light: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"x": tf.while_loop(lambda x: x < 9.0, lambda x: (x + light + 1.0,), (light,))[0]}

    return _convert(outputs, "float32")


def _convert(
    outputs: Callable[[tf.Tensor], dict[str, tf.Tensor]], dtype: str, shape: Sequence[int] = (1, SIDE, SIDE, 3)
) -> bytes:
    class Module(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec(shape, tf.as_dtype(dtype), name="images")])
        def detect(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
            return outputs(tf.reduce_mean(tf.cast(images, tf.float32)) / 255.0)

    module = Module()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([module.detect.get_concrete_function()], module)
    return bytes(converter.convert())


def run(content: bytes, image: np.ndarray[Any, Any], names: Sequence[str]) -> list[np.ndarray[Any, Any]]:
    """Outputs of a model by their names in the signature, as LiteRT computes them."""
    from ai_edge_litert.interpreter import Interpreter

    found = Interpreter(model_content=content).get_signature_runner("serving_default")(images=image[np.newaxis])
    return [found[name] for name in names]
