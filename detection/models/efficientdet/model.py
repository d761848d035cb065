"""EfficientDet: EfficientNet, BiFPN, and a class and a box head over all levels.

Tan, Pang and Le, "EfficientDet: Scalable and Efficient Object Detection", 2020.
"""

import tensorflow as tf

from detection.models.dense.detector import SharedHeadsDetector
from detection.models.efficientdet.config import EfficientDetConfig
from detection.models.necks.bifpn import BiFpn
from detection.models.necks.fpn_graphs import fpn_nodes
from detection.models.necks.resample import Resample
from schemas.errors import ConfigError


class EfficientDet(SharedHeadsDetector):
    """An EfficientDet; see `DenseDetector`."""

    config: EfficientDetConfig

    def make_neck(self) -> None:
        """Makes the levels above the backbone's, and the BiFPN."""
        config, neck, batch_norm = self.config, self.config.neck, self.config.batch_norm.arguments
        self.extra_levels = [
            Resample(
                filters=neck.filters,
                batch_norm=batch_norm if neck.resample_batch_norm else None,
                conv_after_pooling=neck.conv_after_pooling,
                name=f"resample_p{level}",
                dtype=self.dtype_policy,
            )
            for level in range(len(self.backbone.level_filters) + 1, config.max_level + 1)
        ]
        try:
            nodes = fpn_nodes(neck.graph, config.min_level, config.max_level)
        except ValueError as error:
            raise ConfigError(f"model.overrides.neck.graph: {error}.") from None
        self.fpn = BiFpn(
            nodes,
            neck,
            min_level=config.min_level,
            max_level=config.max_level,
            activation=config.activation,
            batch_norm=batch_norm,
            recompute=config.gradient_checkpointing,
            dtype=self.dtype_policy,
        )

    def build_neck(self, level_filters: list[int]) -> list[int]:
        """See `DenseDetector.build_neck`."""
        filters = list(level_filters)
        for layer in self.extra_levels:
            layer.build((None, None, None, filters[-1]))
            filters.append(self.config.neck.filters)
        self.fpn.build([(None, None, None, channels) for channels in filters[self.config.min_level - 1 :]])
        return [self.config.neck.filters] * len(self.config.levels)

    def call_neck(self, levels: list[tf.Tensor], sizes: list[tuple[int, int]], training: bool) -> list[tf.Tensor]:
        """See `DenseDetector.call_neck`."""
        levels = list(levels)
        for layer in self.extra_levels:
            levels.append(layer(levels[-1], size=sizes[len(levels) + 1], training=training))
        return list(self.fpn(levels[self.config.min_level - 1 :], training=training))
