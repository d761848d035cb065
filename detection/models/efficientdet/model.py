"""EfficientDet: EfficientNet, BiFPN, and a class and a box head over all levels.

Tan, Pang and Le, "EfficientDet: Scalable and Efficient Object Detection", 2020.
"""

import tensorflow as tf

from detection.models.backbones.make import freeze_backbone
from detection.models.dense.shared_heads import SharedHeadsDetector
from detection.models.efficientdet.config import EfficientDetConfig
from detection.models.necks.bifpn import BiFpn, NodeOptions
from detection.models.necks.fpn_graphs import Node, fpn_nodes
from detection.models.necks.resample import Resample
from schemas.errors import ConfigError


class EfficientDet(SharedHeadsDetector):
    """An EfficientDet; see `DenseDetector`."""

    config: EfficientDetConfig

    def make_neck(self) -> None:
        """Makes the levels above the backbone's, and the BiFPN."""
        config = self.config
        self.extra_levels = [
            Resample(
                filters=config.fpn_filters,
                batch_norm=config.batch_norm if config.resample_batch_norm else None,
                conv_after_pooling=config.conv_after_pooling,
                name=f"resample_p{level}",
                dtype=self.dtype_policy,
            )
            for level in range(len(self.backbone.level_filters) + 1, config.max_level + 1)
        ]
        self.fpn = BiFpn(
            _nodes(config),
            min_level=config.min_level,
            max_level=config.max_level,
            num_cells=config.fpn_cells,
            options=NodeOptions(
                filters=config.fpn_filters,
                fusion=config.fpn_fusion,
                activation=config.activation,
                batch_norm=config.batch_norm,
                separable_conv=config.separable_conv,
                conv_bn_act=config.conv_bn_act,
                resample_batch_norm=config.resample_batch_norm,
                conv_after_pooling=config.conv_after_pooling,
                dtype=self.dtype_policy,
            ),
            recompute=config.gradient_checkpointing,
        )

    def _build_layers(self) -> None:
        super()._build_layers()
        freeze_backbone(self.backbone, stages=self.config.frozen_stages or 0, fix_statistics=False)

    def build_neck(self, level_filters: list[int]) -> list[int]:
        """See `DenseDetector.build_neck`."""
        filters = list(level_filters)
        for layer in self.extra_levels:
            layer.build((None, None, None, filters[-1]))
            filters.append(self.config.fpn_filters)
        self.fpn.build([(None, None, None, channels) for channels in filters[self.config.min_level - 1 :]])
        return [self.config.fpn_filters] * len(self.config.levels)

    def call_neck(self, levels: list[tf.Tensor], sizes: list[tuple[int, int]], training: bool) -> list[tf.Tensor]:
        """See `DenseDetector.call_neck`."""
        levels = list(levels)
        for layer in self.extra_levels:
            levels.append(layer(levels[-1], size=sizes[len(levels) + 1], training=training))
        return list(self.fpn(levels[self.config.min_level - 1 :], training=training))


def _nodes(config: EfficientDetConfig) -> list[Node]:
    try:
        return fpn_nodes(config.fpn_graph, config.min_level, config.max_level)
    except ValueError as error:
        raise ConfigError(f"model.overrides.fpn_graph: {error}.") from None
