"""Keypoints of a CenterNet: heads for heat-maps, offsets and regressions, their losses, and what detections get.

As in the TF Object Detection API; it has one set of heads per class with keypoints, here all classes share one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.models.centernet.centers import Centers, l1_at
from detection.models.centernet.keypoint_candidates import keypoint_candidates, refined_keypoints
from detection.models.centernet.keypoint_options import (
    HEATMAP,
    OFFSET,
    REGRESSION,
    KeypointOptions,
    KeypointPostprocess,
)
from detection.models.centernet.keypoint_targets import KeypointTargets, PointTargets, keypoint_targets
from detection.types import Labels

# Sum of a heat-map's losses, given logits, targets and weights [B, h, w, P].
HeatmapLoss = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


@dataclass(frozen=True, eq=False)
class Keypoints:
    """The keypoints of all classes: a channel for each, class after class.

    names: names of each class's keypoints; P in total, at most K in a class.
    stride: side of the outputs' cells in pixels.
    size: (height, width) of the outputs in cells.
    options: options of the targets.
    """

    names: tuple[tuple[str, ...], ...]
    stride: int
    size: tuple[int, int]
    options: KeypointOptions

    @property
    def classes(self) -> npt.NDArray[np.int32]:
        """Class of each channel, [P]."""
        return np.repeat(np.arange(len(self.names), dtype=np.int32), [len(own) for own in self.names])

    @property
    def places(self) -> npt.NDArray[np.int32]:
        """Number of each channel's keypoint within its class, [P]."""
        return np.array([place for own in self.names for place in range(len(own))], np.int32)

    @property
    def spreads(self) -> npt.NDArray[np.float32]:
        """Standard deviation of each channel, [P]."""
        return np.array([self.options.spread.get(name, 1.0) for own in self.names for name in own], np.float32)

    @property
    def outputs(self) -> dict[str, int]:
        """Output channels of each head."""
        count = len(self.places)
        return {HEATMAP: count, OFFSET: 2 * count if self.options.per_keypoint_offset else 2, REGRESSION: 2 * count}

    def targets(self, labels: Labels, centers: Centers) -> KeypointTargets:
        """Returns the targets of labels with keypoints; `centers` are those of the labels."""
        assert labels.keypoints is not None
        found = tf.gather(labels.keypoints, self.places, axis=2)
        has_keypoint = (labels.classes[..., tf.newaxis] == self.classes) & (found[..., 2] > 0.0)
        return keypoint_targets(
            found[..., :2] / float(self.stride),
            tf.where(has_keypoint, centers.weights[..., tf.newaxis], 0.0),
            labels.boxes / float(self.stride),
            labels.valid,
            centers,
            size=self.size,
            spreads=self.spreads,
            radius=self.options.radius,
            per_keypoint_offset=self.options.per_keypoint_offset,
        )

    def losses(
        self, outputs: Mapping[str, Sequence[tf.Tensor]], targets: KeypointTargets, heatmap_loss: HeatmapLoss
    ) -> dict[str, tf.Tensor]:
        """Returns the sums of the losses of each head, over all of its outputs; see `KeypointTargets.counts`."""

        def at_points(task: str, points: PointTargets) -> tf.Tensor:
            pairs = [tf.reshape(each, [-1, *self.size, each.shape[3] // 2, 2]) for each in outputs[task]]
            return tf.add_n([l1_at(points.cells, each, points.values, points.weights) for each in pairs])

        return {
            HEATMAP: tf.add_n([heatmap_loss(each, targets.heatmap, targets.region) for each in outputs[HEATMAP]]),
            OFFSET: at_points(OFFSET, targets.offsets),
            REGRESSION: at_points(REGRESSION, targets.regressions),
        }

    def detect(
        self,
        outputs: Mapping[str, tf.Tensor],
        cells: tf.Tensor,
        boxes: tf.Tensor,
        classes: tf.Tensor,
        options: KeypointPostprocess,
    ) -> tf.Tensor:
        """Returns the keypoints of detections, float32 [B, N, K, 3], (y, x, score) in cells; 0 beyond a class's number.

        Args:
            outputs: of each head.
            cells: int32 [B, N, 2], (y, x) of the detections' centers.
            boxes: float32 [B, N, 4], (ymin, xmin, ymax, xmax) in cells.
            classes: int32 [B, N].
            options: options of post-processing.
        """
        regressions = tf.gather_nd(outputs[REGRESSION], cells, batch_dims=1)
        steps = tf.reshape(regressions, [-1, cells.shape[1], len(self.places), 2])
        points, scores = refined_keypoints(
            tf.cast(cells, tf.float32)[:, :, tf.newaxis] + steps,
            keypoint_candidates(tf.sigmoid(outputs[HEATMAP]), outputs[OFFSET], options),
            boxes,
            options,
            spreads=self.spreads,
        )
        found = tf.concat([points, scores[..., tf.newaxis]], axis=-1)
        channels = np.full((len(self.names), max(map(len, self.names))), -1, np.int32)
        channels[self.classes, self.places] = np.arange(len(self.places))
        own = tf.gather(channels, classes)
        return tf.where(own[..., tf.newaxis] >= 0, tf.gather(found, tf.maximum(own, 0), batch_dims=2), 0.0)
