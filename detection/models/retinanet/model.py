"""RetinaNet: a backbone, an FPN, and a class and a box head over all levels.

Lin et al., "Focal Loss for Dense Object Detection", 2017.
"""

import tensorflow as tf

from detection.models.dense.detector import SharedHeadsDetector
from detection.models.necks.fpn import Fpn
from detection.models.retinanet.config import RetinaNetConfig


class RetinaNet(SharedHeadsDetector):
    """A RetinaNet; see `DenseDetector`."""

    config: RetinaNetConfig

    def make_neck(self) -> None:
        """Makes the FPN."""
        config = self.config
        self.fpn = Fpn(
            config.neck,
            min_level=config.min_level,
            backbone_level=len(self.backbone.level_filters),
            max_level=config.max_level,
            layout=config.dialect,
            activation=config.activation,
            batch_norm=config.batch_norm.arguments,
            dtype=self.dtype_policy,
        )

    @property
    def biases_before_batch_norm(self) -> bool:
        """See `SharedHeadsDetector.biases_before_batch_norm`; the Object Detection API's have none."""
        return self.config.dialect == "standard"

    def build_neck(self, level_filters: list[int]) -> list[int]:
        """See `DenseDetector.build_neck`."""
        self.fpn.build([(None, None, None, filters) for filters in level_filters[self.config.min_level - 1 :]])
        return [self.config.neck.filters] * len(self.config.levels)

    def call_neck(self, levels: list[tf.Tensor], sizes: list[tuple[int, int]], training: bool) -> list[tf.Tensor]:
        """See `DenseDetector.call_neck`."""
        return list(self.fpn(levels[self.config.min_level - 1 :], training=training))
