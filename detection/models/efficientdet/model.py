"""EfficientDet: EfficientNet, BiFPN, and a class and a box head over all levels.

Tan, Pang and Le, "EfficientDet: Scalable and Efficient Object Detection", 2020.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from detection.models.backbones.efficientnet import EfficientNet
from detection.models.backbones.efficientnet_spec import backbone_spec
from detection.models.detector import Detector
from detection.models.efficientdet.config import EfficientDetConfig
from detection.models.heads.dense import DenseHead, HeadOptions
from detection.models.heads.dense_losses import DenseLosses, DenseLossOptions
from detection.models.heads.postprocess import detect_boxes, normalize_boxes
from detection.models.necks.bifpn import BiFpn, NodeOptions
from detection.models.necks.fpn_graphs import Node, fpn_nodes
from detection.models.necks.resample import Resample
from detection.ops.anchors import feature_sizes
from detection.ops.boxes import decode_yxyx
from detection.types import AnchorOutputs, Detections, ImageInfo, Labels, RawDetections
from schemas.errors import ConfigError

_PRIOR = 0.01  # probability of every class before training
_FIRST_BRANCHES = {"class": 1000, "box": 2000}  # indices of the heads' drop-connect branches, above the blocks' indices


class RawOutputs(NamedTuple):
    """Outputs per pyramid level, finest first.

    class_logits: float32 [B, h, w, K * C], K anchors per cell; anchor by anchor.
    box_deltas: float32 [B, h, w, K * 4], (ty, tx, th, tw) of each anchor.
    """

    class_logits: list[tf.Tensor]
    box_deltas: list[tf.Tensor]


class EfficientDet(Detector):
    """An EfficientDet, built with its variables.

    Args:
        config: configuration.
        num_classes: C.
        name: the model's name.
        dtype: Keras dtype policy; None: the global one.

    Raises:
        ConfigError: unknown backbone, or pyramid levels that do not fit it.
    """

    takes_crowds = True
    takes_weights = True

    def __init__(self, *, config: EfficientDetConfig, num_classes: int, name: str, dtype: Any = None):
        super().__init__(
            image_size=config.image_size,
            num_classes=num_classes,
            pixel_mean=config.pixel_mean,
            pixel_std=config.pixel_std,
            name=name,
            dtype=dtype,
        )
        self.config = config
        self.anchors = config.anchors_yxyx()
        options = DenseLossOptions(**{name: getattr(config, name) for name in DenseLossOptions._fields})
        self._dense_losses = DenseLosses(options, anchors=self.anchors, num_classes=num_classes)
        batch_norm = {"momentum": config.momentum, "epsilon": config.batch_norm_epsilon}
        self._make_feature_layers(config, batch_norm)
        self._make_heads(config, batch_norm)
        self._build_layers()

    def _make_feature_layers(self, config: EfficientDetConfig, batch_norm: dict[str, float]) -> None:
        self.backbone = EfficientNet(
            spec=backbone_spec(config.backbone)._replace(activation=config.activation),
            layout=config.efficientnet_layout,
            survival=config.survival_probability,
            recompute=config.gradient_checkpointing,
            name=config.backbone,
            dtype=self.dtype_policy,
            **batch_norm,
        )
        deepest = len(self.backbone.level_filters)
        if not (config.min_level < config.max_level and config.min_level <= deepest <= config.max_level):
            raise ConfigError(
                f"model.overrides: levels {config.min_level} to {config.max_level} do not fit {config.backbone}: "
                f"specify at least two levels, including the deepest level of the backbone, {deepest}."
            )
        self.extra_levels = [
            Resample(
                filters=config.fpn_filters,
                batch_norm=batch_norm if config.resample_batch_norm else None,
                conv_after_pooling=config.conv_after_pooling,
                name=f"resample_p{level}",
                dtype=self.dtype_policy,
            )
            for level in range(deepest + 1, config.max_level + 1)
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
                batch_norm=batch_norm,
                separable_conv=config.separable_conv,
                conv_bn_act=config.conv_bn_act,
                resample_batch_norm=config.resample_batch_norm,
                conv_after_pooling=config.conv_after_pooling,
                dtype=self.dtype_policy,
            ),
            recompute=config.gradient_checkpointing,
        )

    def _make_heads(self, config: EfficientDetConfig, batch_norm: dict[str, float]) -> None:
        options = HeadOptions(
            filters=config.fpn_filters,
            num_layers=config.head_layers,
            levels=config.levels,
            activation=config.activation,
            batch_norm=batch_norm,
            separable_conv=config.separable_conv,
            survival=config.head_survival_probability,
            recompute=config.gradient_checkpointing,
            dtype=self.dtype_policy,
        )
        self.class_net = DenseHead(
            options,
            prefix="class",
            outputs=config.anchors_per_cell * self.num_classes,
            output_bias=-math.log((1 - _PRIOR) / _PRIOR),
            first_branch=_FIRST_BRANCHES["class"],
        )
        self.box_net = DenseHead(
            options,
            prefix="box",
            outputs=config.anchors_per_cell * 4,
            output_bias=0.0,
            first_branch=_FIRST_BRANCHES["box"],
        )

    def _build_layers(self) -> None:
        """Creates all variables; their paths start with the part's name, such as `fpn_cells/`."""
        self.backbone.build((None, None, None, 3))
        filters = list(self.backbone.level_filters)
        for layer in self.extra_levels:
            layer.build((None, None, None, filters[-1]))
            filters.append(self.config.fpn_filters)
        levels = filters[self.config.min_level - 1 : self.config.max_level]
        self.fpn.build([(None, None, None, channels) for channels in levels])
        pyramid = [(None, None, None, self.config.fpn_filters)] * len(levels)
        self.class_net.build(pyramid)
        self.box_net.build(pyramid)
        self.built = True

    def call(self, images: tf.Tensor, training: bool = False, seed: tf.Tensor | None = None) -> RawOutputs:
        """See `Detector.call`; [B, H, W, 3] to class logits and box deltas per level."""
        # From the images, not the config: `load_detector` calls the network with other image sizes.
        sizes = feature_sizes((images.shape[1], images.shape[2]), self.config.max_level)
        levels = self.backbone(images, training=training, seed=seed)
        for layer in self.extra_levels:
            levels.append(layer(levels[-1], size=sizes[len(levels) + 1], training=training))
        features = self.fpn(levels[self.config.min_level - 1 : self.config.max_level], training=training)
        return RawOutputs(
            class_logits=[tf.cast(x, tf.float32) for x in self.class_net(features, training=training, seed=seed)],
            box_deltas=[tf.cast(x, tf.float32) for x in self.box_net(features, training=training, seed=seed)],
        )

    def named_outputs(self, outputs: RawOutputs) -> dict[str, tf.Tensor]:
        """See `Detector.named_outputs`: `class_p3` to `class_p7`, `box_p3` to `box_p7`."""
        levels = self.config.levels
        logits = {f"class_p{level}": values for level, values in zip(levels, outputs.class_logits, strict=True)}
        deltas = {f"box_p{level}": values for level, values in zip(levels, outputs.box_deltas, strict=True)}
        return logits | deltas

    def count_positives(self, labels: Labels) -> tf.Tensor:
        """See `Detector.count_positives`: the number of positive anchors."""
        return self._dense_losses.count_positives(labels)

    def losses(
        self, outputs: RawOutputs, labels: Labels, positives: tf.Tensor | None = None, training: bool = False
    ) -> dict[str, tf.Tensor]:
        """See `Detector.losses` and `DenseLosses`."""
        return self._dense_losses(
            self._by_anchor(outputs.class_logits, self.num_classes),
            self._by_anchor(outputs.box_deltas, 4),
            labels,
            positives=positives,
            training=training,
        )

    @property
    def loss_statistics(self) -> list[Any]:
        """See `Detector.loss_statistics`."""
        return self._dense_losses.statistics

    def detect(self, outputs: RawOutputs, image_info: ImageInfo) -> Detections:
        """See `Detector.detect`: best candidates, then NMS by `model.postprocess`."""
        return detect_boxes(
            self._per_level(outputs.class_logits, self.num_classes),
            self._per_level(outputs.box_deltas, 4),
            tf.constant(self.anchors),
            image_info,
            self.config.postprocess,
            graph=self.nms_graph,
        )

    def raw_detections(self, outputs: RawOutputs, image_info: ImageInfo) -> RawDetections:
        """See `Detector.raw_detections`."""
        deltas, logits = self.anchor_outputs(outputs)
        boxes = decode_yxyx(deltas, tf.constant(self.anchors))
        return RawDetections(normalize_boxes(boxes, image_info), tf.sigmoid(logits))

    def anchor_outputs(self, outputs: RawOutputs) -> AnchorOutputs:
        """See `Detector.anchor_outputs`."""
        return AnchorOutputs(
            deltas=self._by_anchor(outputs.box_deltas, 4),
            logits=self._by_anchor(outputs.class_logits, self.num_classes),
        )

    @property
    def backbone_variables(self) -> list[Any]:
        """EfficientNet's variables."""
        return list(self.backbone.variables)

    def output_classes(self, num_classes: int) -> dict[str, np.ndarray]:
        """See `Detector.output_classes`: the last layer of the class head, anchor by anchor."""
        classes = np.tile(np.arange(num_classes), self.config.anchors_per_cell)
        return {variable.path: classes for variable in self.class_net.output_variables}

    def _by_anchor(self, levels: list[tf.Tensor], width: int) -> tf.Tensor:
        """Concatenates [B, h, w, K * width] per level to [B, A, width], in the order of the anchors."""
        return tf.concat(self._per_level(levels, width), axis=1)

    def _per_level(self, levels: list[tf.Tensor], width: int) -> list[tf.Tensor]:
        """Reshapes [B, h, w, K * width] per level to [B, A_l, width]."""
        batch = tf.shape(levels[0])[0]
        return [
            tf.reshape(level, [batch, level.shape[1] * level.shape[2] * level.shape[3] // width, width])
            for level in levels
        ]


def _nodes(config: EfficientDetConfig) -> list[Node]:
    try:
        return fpn_nodes(config.fpn_graph, config.min_level, config.max_level)
    except ValueError as error:
        raise ConfigError(f"model.overrides.fpn_graph: {error}.") from None
