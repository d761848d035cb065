"""A detector with masks and keypoints that follow from the image; `register` makes it `model.name=mask-keypoint`.

Its classes are the colours red, green and blue.  Of each, an image holds one object: the
pixels where that colour is above a half.
"""

from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from detection.models import registry
from detection.models.backbones.make import BackboneOptions
from detection.models.config import BatchNormOptions, DetectorConfig
from detection.models.detector import Capabilities, Detector
from detection.models.heads.postprocess import MaskPostprocess
from detection.ops.replicas import sum_over_replicas
from detection.types import Detections, ImageInfo, Labels
from schemas import detectors

NUM_KEYPOINTS = 17
CROP = 28


class MaskKeypointConfig(DetectorConfig):
    """Size and post-processing."""

    FUNCTION_FIELDS: ClassVar[tuple[str, ...]] = ()

    image_size: tuple[int, int] = (64, 64)
    min_level: int = 1
    max_level: int = 2
    backbone: BackboneOptions = BackboneOptions(name="none")
    batch_norm: BatchNormOptions = BatchNormOptions(momentum=0.99)
    pixel_mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    pixel_std: tuple[float, float, float] = (255.0, 255.0, 255.0)
    postprocess: MaskPostprocess = MaskPostprocess()


class Outputs(NamedTuple):
    """maps: float32 [B, H, W, 3], fractions of the colours; bias: float32 [C], of the losses only."""

    maps: tf.Tensor
    bias: tf.Tensor


class MaskKeypointDetector(Detector):
    """Finds at most one object of each colour; its score is the fraction of its box that it fills."""

    def __init__(self, *, config: MaskKeypointConfig, num_classes: int, name: str, dtype: Any = None):
        super().__init__(config=config, num_classes=num_classes, name=name, dtype=dtype)
        output = config.postprocess.mask_output
        self.capabilities = Capabilities(mask_size=CROP, keypoints=True, mask_output=output)
        self.gain = self.add_weight(name="gain", shape=(), initializer="ones", dtype="float32", autocast=False)
        start = keras.initializers.Constant(0.05)
        self.bias = self.add_weight(
            name="bias", shape=(num_classes,), initializer=start, dtype="float32", autocast=False
        )
        self.built = True

    def call(self, images: tf.Tensor, training: bool = False, seed: tf.Tensor | None = None) -> Outputs:
        gain = tf.stop_gradient(tf.convert_to_tensor(self.gain.value))
        maps = tf.cast(self.normalized(images), tf.float32) * gain
        return Outputs(maps, tf.convert_to_tensor(self.bias.value) + 0.0 * self.gain.value)

    def named_outputs(self, outputs: Outputs) -> dict[str, tf.Tensor]:
        return outputs._asdict()

    def count_positives(self, labels: Labels) -> tf.Tensor:
        return tf.reduce_sum(tf.cast(labels.valid, tf.float32))

    def losses(
        self, outputs: Outputs, labels: Labels, positives: tf.Tensor | None = None, training: bool = False
    ) -> dict[str, tf.Tensor]:
        count = self.count_positives(labels)
        normaliser = (sum_over_replicas(count) if positives is None else positives) + 1.0
        error = tf.reduce_sum(tf.square(outputs.bias))
        filled = 0.5 if labels.masks is None else tf.reduce_mean(tf.cast(labels.masks, tf.float32))
        seen = 0.5 if labels.keypoints is None else tf.reduce_mean(tf.cast(labels.keypoints[..., 2] > 0, tf.float32))
        return {
            "class_loss": error * count / normaliser,
            "mask_loss": error * count * filled / normaliser,
            "keypoint_loss": error * count * seen / normaliser,
        }

    def detect(self, outputs: Outputs, image_info: ImageInfo) -> Detections:
        inside = outputs.maps > 0.5
        (top, bottom), (left, right) = _ends(tf.reduce_any(inside, axis=2)), _ends(tf.reduce_any(inside, axis=1))
        boxes = tf.cast(tf.stack([top, left, bottom, right], axis=-1), tf.float32)
        areas = tf.cast((bottom - top) * (right - left), tf.float32)
        fractions = tf.math.divide_no_nan(tf.reduce_sum(tf.cast(inside, tf.float32), axis=[1, 2]), areas)
        count = min(3, self.num_classes)
        scores, classes = tf.math.top_k(fractions[:, :count], count)
        boxes = tf.gather(boxes, classes, batch_dims=1)
        maps = tf.gather(tf.transpose(tf.cast(inside, tf.float32), [0, 3, 1, 2]), classes, batch_dims=1)
        limit = 1.0 / tf.concat([image_info.scale * image_info.original_size] * 2, axis=1)[:, tf.newaxis]
        normalised = tf.clip_by_value(boxes * limit, 0.0, 1.0) * tf.cast(scores > 0, tf.float32)[..., tf.newaxis]
        spots = tf.linspace(0.0, 1.0, NUM_KEYPOINTS)
        low, high = normalised[..., tf.newaxis, :2], normalised[..., tf.newaxis, 2:]
        points = low + (high - low) * spots[:, tf.newaxis]
        certain = tf.broadcast_to(scores[..., tf.newaxis, tf.newaxis], [*tf.unstack(tf.shape(points)[:3]), 1])
        return Detections(
            boxes=self._padded(normalised),
            scores=self._padded(scores),
            classes=self._padded(classes),
            num=tf.reduce_sum(tf.cast(scores > 0, tf.int32), axis=1),
            masks=self._padded(_crops(maps, boxes)),
            keypoints=self._padded(tf.concat([points, certain], axis=-1)),
        )

    def _padded(self, values: tf.Tensor) -> tf.Tensor:
        """[B, K, ...] to [B, max_detections, ...]."""
        more = self.config.postprocess.max_detections - values.shape[1]
        return tf.pad(values, [[0, 0], [0, more], *[[0, 0]] * (values.shape.rank - 2)])

    @property
    def backbone_variables(self) -> list[Any]:
        return [self.gain]

    def output_classes(self, num_classes: int) -> dict[str, np.ndarray]:
        return {self.bias.path: np.arange(num_classes)}


def _ends(marked: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """First marked position, and the one after the last, int32 [B, C] of bool [B, n, C]; 0 if there is none."""
    numbers = tf.where(marked, tf.range(1, marked.shape[1] + 1)[:, tf.newaxis], 0)
    last = tf.reduce_max(numbers, axis=1)
    first = tf.reduce_min(tf.where(marked, numbers, marked.shape[1] + 1), axis=1) - 1
    return tf.where(last > 0, first, 0), last


def _crops(maps: tf.Tensor, boxes: tf.Tensor) -> tf.Tensor:
    """The pixels at the centres of each box's cells, [B, K, CROP, CROP]."""
    centres = (tf.range(CROP, dtype=tf.float32) + 0.5) / CROP
    sides = boxes[..., 2:] - boxes[..., :2]
    rows = tf.cast(boxes[..., 0:1] + sides[..., 0:1] * centres, tf.int32)
    columns = tf.cast(boxes[..., 1:2] + sides[..., 1:2] * centres, tf.int32)
    return tf.gather(tf.gather(maps, rows, batch_dims=2), columns, axis=3, batch_dims=2)


def register() -> None:
    """Makes `model.name=mask-keypoint` known in this process."""
    if "mask-keypoint" not in registry.detector_names():
        family = registry.Family({"mask-keypoint": MaskKeypointConfig()}, MaskKeypointDetector)
        vars(registry)["FAMILIES"] = (*registry.FAMILIES, family)
        vars(detectors)["DETECTORS"] = (*detectors.DETECTORS, "mask-keypoint")
