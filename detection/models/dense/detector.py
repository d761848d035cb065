"""Dense detectors: a backbone, a neck, and a class and a box head that predict for every anchor of every level."""

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from detection.models.backbones.make import freeze_backbone, make_backbone
from detection.models.dense.config import DenseConfig, SharedHeadsConfig
from detection.models.detector import Capabilities, Detector
from detection.models.heads.dense import DenseHead
from detection.models.heads.dense_losses import DenseLosses
from detection.models.heads.postprocess import detect_boxes, normalize_boxes, rows_of_levels
from detection.ops.anchors import feature_sizes
from detection.ops.boxes import decode_yxyx
from detection.ops.losses import softmax_log_odds
from detection.types import AnchorOutputs, Detections, ImageInfo, Labels, RawDetections


class RawOutputs(NamedTuple):
    """Outputs per pyramid level, finest first.

    class_logits: float32 [B, h, w, K * C], K anchors per cell; anchor by anchor; C + 1 with a background.
    box_deltas: float32 [B, h, w, K * 4], (ty, tx, th, tw) of each anchor.
    """

    class_logits: list[tf.Tensor]
    box_deltas: list[tf.Tensor]


class DenseDetector(Detector):
    """A dense detector, built with its variables.  A family makes its neck and its heads.

    Args:
        config: configuration.
        num_classes: C.
        name: the model's name.
        dtype: Keras dtype policy; None: the global one.

    Raises:
        ConfigError: unknown backbone, or pyramid levels that do not fit it.
    """

    config: DenseConfig
    capabilities = Capabilities(crowds=True, weights=True)
    expanded_levels = False  # see `EfficientNet`

    def __init__(self, *, config: DenseConfig, num_classes: int, name: str, dtype: Any = None):
        super().__init__(config=config, num_classes=num_classes, name=name, dtype=dtype)
        self._columns = num_classes + config.loss.background_class  # class outputs of each anchor
        self.anchors = config.anchors_yxyx()
        self._dense_losses = DenseLosses(config.loss, config.matcher, anchors=self.anchors, num_classes=num_classes)
        self.backbone = make_backbone(
            config.backbone,
            activation=config.activation,
            batch_norm=config.batch_norm.arguments,
            levels=config.levels,
            recompute=config.gradient_checkpointing,
            expanded=self.expanded_levels,
            dtype=self.dtype_policy,
        )
        self.make_neck()
        prior = config.loss.prior_probability
        self.class_net = self.make_head("class", outputs=self._columns, output_bias=-math.log((1 - prior) / prior))
        self.box_net = self.make_head("box", outputs=4, output_bias=0.0)
        self._build_layers()

    def make_neck(self) -> None:
        """Makes the layers between backbone and heads, as attributes."""
        raise NotImplementedError

    def build_neck(self, level_filters: list[int]) -> list[int]:
        """Creates their variables, and returns the channels of the features of `call_neck`.

        Args:
            level_filters: channels of the backbone's levels, from level 1.
        """
        raise NotImplementedError

    def call_neck(self, levels: list[tf.Tensor], sizes: list[tuple[int, int]], training: bool) -> list[tf.Tensor]:
        """Returns the features [B, h, w, F] of the pyramid's levels, finest first.

        Args:
            levels: features of the backbone's levels, from level 1.
            sizes: (height, width) of all levels, from level 0, the image.
            training: use batch statistics.
        """
        raise NotImplementedError

    def make_head(self, prefix: str, *, outputs: int, output_bias: float) -> Any:
        """Returns a layer that maps features per level to predictions per level.

        It has the signature of `DenseHead`, and `output_variables`, whose last axis is the prediction's channels.

        Args:
            prefix: `class` or `box`.
            outputs: outputs per anchor.
            output_bias: initial bias of the predictions.
        """
        raise NotImplementedError

    def call_heads(self, features: list[tf.Tensor], training: bool, seed: tf.Tensor | None) -> list[list[tf.Tensor]]:
        """Returns the class head's predictions per level, and the box head's."""
        return [net(features, training=training, seed=seed) for net in (self.class_net, self.box_net)]

    def _build_layers(self) -> None:
        """Creates all variables; their paths start with the part's name, such as `fpn_cells/`."""
        self.backbone.build((None, None, None, 3))
        filters = self.build_neck(list(self.backbone.level_filters))
        pyramid = [(None, None, None, channels) for channels in filters]
        self.class_net.build(pyramid)
        self.box_net.build(pyramid)
        freeze_backbone(self.backbone, self.config.backbone)
        self.built = True

    def call(self, images: tf.Tensor, training: bool = False, seed: tf.Tensor | None = None) -> RawOutputs:
        """See `Detector.call`; [B, H, W, 3] to class logits and box deltas per level."""
        # From the images, not the config: `load_detector` calls the network with other image sizes.
        sizes = feature_sizes((images.shape[1], images.shape[2]), self.config.max_level)
        features = self.call_neck(self.backbone(self.normalized(images), training=training, seed=seed), sizes, training)
        outputs = self.call_heads(features, training, seed)
        return RawOutputs(*([tf.cast(level, tf.float32) for level in levels] for levels in outputs))

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
            self._by_anchor(outputs.class_logits, self._columns),
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
        detections = detect_boxes(
            self._logits_per_level(outputs),
            self._per_level(outputs.box_deltas, 4),
            tf.constant(self.anchors),
            image_info,
            self.config.postprocess,
            graph=self.nms_graph,
            with_anchors=self.names_anchors,
        )
        if detections.anchors is None:
            return detections
        filled = detections.scores[..., tf.newaxis] > 0.0
        scores = tf.sigmoid(rows_of_levels(self._columns_per_level(outputs), detections.anchors))
        return detections._replace(class_scores=tf.where(filled, scores, 0.0))

    def raw_detections(self, outputs: RawOutputs, image_info: ImageInfo) -> RawDetections:
        """See `Detector.raw_detections`."""
        deltas, logits = self.anchor_outputs(outputs)
        boxes = decode_yxyx(deltas, tf.constant(self.anchors))
        return RawDetections(normalize_boxes(boxes, image_info), tf.sigmoid(logits))

    def anchor_outputs(self, outputs: RawOutputs) -> AnchorOutputs:
        """See `Detector.anchor_outputs`."""
        return AnchorOutputs(
            deltas=self._by_anchor(outputs.box_deltas, 4), logits=tf.concat(self._logits_per_level(outputs), axis=1)
        )

    @property
    def backbone_variables(self) -> list[Any]:
        """The backbone's variables."""
        return list(self.backbone.variables)

    def output_classes(self, num_classes: int) -> dict[str, np.ndarray]:
        """See `Detector.output_classes`: the last layer of the class head, anchor by anchor."""
        columns = np.arange(-1 if self.config.loss.background_class else 0, num_classes)
        variables = self.class_net.output_variables
        return {one.path: np.tile(columns, one.shape[-1] // self._columns) for one in variables}

    def _logits_per_level(self, outputs: RawOutputs) -> list[tf.Tensor]:
        """Returns [B, A_l, C] per level, without the background, whose sigmoids are the scores."""
        levels = self._columns_per_level(outputs)
        return [level[..., 1:] for level in levels] if self.config.loss.background_class else levels

    def _columns_per_level(self, outputs: RawOutputs) -> list[tf.Tensor]:
        """Returns what `_logits_per_level` does, with the background."""
        levels = self._per_level(outputs.class_logits, self._columns)
        if self.config.loss.class_loss.endswith("softmax"):
            levels = [softmax_log_odds(level / self.config.loss.logit_scale) for level in levels]
        return levels

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


class SharedHeadsDetector(DenseDetector):
    """A dense detector with the same class and box head for all levels; see `DenseDetector`."""

    config: SharedHeadsConfig

    @property
    def biases_before_batch_norm(self) -> bool:
        """Whether the heads' inner convolutions have biases, although a batch norm follows."""
        return True

    def make_head(self, prefix: str, *, outputs: int, output_bias: float) -> DenseHead:
        """See `DenseDetector.make_head`."""
        config = self.config
        return DenseHead(
            config.head,
            prefix=prefix,
            filters=config.neck.filters,
            levels=config.levels,
            activation=config.activation,
            batch_norm=config.batch_norm.arguments,
            conv_bias=self.biases_before_batch_norm,
            outputs=config.anchors.per_cell * outputs,
            output_bias=output_bias,
            recompute=config.gradient_checkpointing,
            dtype=self.dtype_policy,
        )

    def call_heads(self, features: list[tf.Tensor], training: bool, seed: tf.Tensor | None) -> list[list[tf.Tensor]]:
        """See `DenseDetector.call_heads`."""
        if not self.config.head.share_tower:
            return super().call_heads(features, training, seed)
        features = self.class_net.tower(features, training=training, seed=seed)
        return [[net.predict(feature) for feature in features] for net in (self.class_net, self.box_net)]
