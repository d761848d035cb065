"""A detector of two convolutions, for runs where the network does not matter; `register` makes it `model.name=tiny`."""

from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from detection.models import registry
from detection.models.backbones.make import BackboneOptions
from detection.models.config import BatchNormOptions, DetectorConfig
from detection.models.detector import Capabilities, Detector
from detection.models.heads.dense_losses import PositivesNormalizer
from detection.models.heads.postprocess import BoxPostprocess
from detection.models.layers.batch_norm import BatchNormalization
from detection.models.layers.drop_connect import drop_connect
from detection.models.layers.initializers import glorot_uniform
from detection.ops.losses import focal_loss, huber_loss
from detection.ops.replicas import sum_over_replicas
from detection.types import Detections, ImageInfo, Labels
from schemas import detectors


class TinyConfig(DetectorConfig):
    """Size, drop-connect and loss normaliser of the detector."""

    FUNCTION_FIELDS: ClassVar[tuple[str, ...]] = ()

    image_size: tuple[int, int] = (32, 32)
    min_level: int = 1
    max_level: int = 2
    backbone: BackboneOptions = BackboneOptions(name="tiny")  # it has none
    batch_norm: BatchNormOptions = BatchNormOptions(momentum=0.99)
    filters: int = 8
    survival: float = 0.5
    positives_momentum: float = 0.0
    postprocess: BoxPostprocess = BoxPostprocess()


class TinyDetector(Detector):
    """Learns which classes an image holds and where its objects lie on average, weighted by object."""

    capabilities = Capabilities(weights=True, count_shape=(1,))

    def __init__(self, *, config: TinyConfig, num_classes: int, name: str, dtype: Any = None):
        super().__init__(config=config, num_classes=num_classes, name=name, dtype=dtype)
        self._survival = config.survival
        self._normalizer = PositivesNormalizer(kind="positives_plus_one", momentum=config.positives_momentum)
        self.stem = keras.layers.Conv2D(
            config.filters, 3, strides=4, kernel_initializer=glorot_uniform(), name="stem", dtype=dtype
        )
        self.stem_norm = BatchNormalization(name="stem_norm", dtype=dtype)
        self.block = keras.layers.Conv2D(
            config.filters, 3, padding="same", kernel_initializer=glorot_uniform(), name="block", dtype=dtype
        )
        self.block_norm = BatchNormalization(name="block_norm", dtype=dtype)
        self.head = keras.layers.Dense(num_classes + 4, kernel_initializer=glorot_uniform(), name="head", dtype=dtype)
        self(tf.zeros([1, *config.image_size, 3]))

    def call(self, images: tf.Tensor, training: bool = False, seed: tf.Tensor | None = None) -> tf.Tensor:
        features = tf.nn.relu(self.stem_norm(self.stem(images), training=training))
        branch = tf.nn.relu(self.block_norm(self.block(features), training=training))
        if training and seed is not None:
            branch = drop_connect(branch, survival=self._survival, seed=seed, index=0)
        return tf.cast(self.head(tf.reduce_mean(features + branch, [1, 2])), tf.float32)

    def count_positives(self, labels: Labels) -> tf.Tensor:
        return tf.reduce_sum(tf.cast(labels.valid, tf.float32))[tf.newaxis]

    def losses(
        self, outputs: tf.Tensor, labels: Labels, positives: tf.Tensor | None = None, training: bool = False
    ) -> dict[str, tf.Tensor]:
        valid = tf.cast(labels.valid, tf.float32)
        positives = sum_over_replicas(self.count_positives(labels)) if positives is None else positives
        normaliser = self._normalizer(positives[0], training=training)
        there = tf.reduce_max(tf.one_hot(labels.classes, self.num_classes) * valid[..., None], axis=1) > 0.0
        counts = tf.maximum(tf.reduce_sum(valid, axis=1, keepdims=True), 1.0)
        boxes = tf.reduce_sum(labels.boxes * valid[..., None], axis=1) / counts / float(self.image_size[0])
        class_losses = focal_loss(outputs[:, 4:], there)
        box_losses = huber_loss(outputs[:, :4] - boxes, delta=0.5)
        if labels.weights is not None:
            weights = tf.reduce_sum(labels.weights * valid, axis=1, keepdims=True) / counts
            class_losses, box_losses = class_losses * weights, box_losses * weights
        return {
            "class_loss": tf.reduce_sum(class_losses) / normaliser,
            "box_loss": tf.reduce_sum(box_losses) / normaliser,
        }

    @property
    def loss_statistics(self) -> list[Any]:
        return [] if self._normalizer.average is None else [self._normalizer.average]

    def detect(self, outputs: tf.Tensor, image_info: ImageInfo) -> Detections:
        scores, classes = tf.math.top_k(tf.sigmoid(outputs[:, 4:]), 1)
        corners = tf.reshape(tf.clip_by_value(outputs[:, :4], 0.0, 1.0), [-1, 1, 2, 2])
        boxes = tf.concat([tf.reduce_min(corners, axis=2), tf.reduce_max(corners, axis=2)], axis=-1)
        return Detections(boxes, scores, classes, tf.ones_like(classes[:, 0]))

    @property
    def backbone_variables(self) -> list[Any]:
        return list(self.stem.variables)

    def output_classes(self, num_classes: int) -> dict[str, np.ndarray]:
        classes = np.array([-1] * 4 + list(range(num_classes)))
        return {variable.path: classes for variable in self.head.variables}


def register() -> None:
    """Makes `model.name=tiny` known in this process."""
    if "tiny" not in registry.detector_names():
        families = (*registry.FAMILIES, registry.Family({"tiny": TinyConfig()}, TinyDetector))
        vars(registry)["FAMILIES"] = families
        vars(detectors)["DETECTORS"] = (*detectors.DETECTORS, "tiny")
