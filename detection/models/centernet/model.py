"""CenterNet: a backbone, a neck up to a fine level, and heads for the centers of objects and values at them.

Zhou et al., "Objects as Points", 2019.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from detection.models.backbones.hourglass import HOURGLASSES, Hourglass
from detection.models.backbones.make import Backbone, make_backbone
from detection.models.centernet.config import CenterNetConfig
from detection.models.centernet.layers import Head, UpsamplingNeck
from detection.models.centernet.targets import (
    center_heatmap,
    centers_of,
    count_objects,
    inside_image,
    l1_at,
    penalty_reduced_focal,
)
from detection.models.detector import Capabilities, Detector
from detection.models.heads.postprocess import best_pairs, picked_detections
from detection.ops.anchors import feature_sizes
from detection.ops.nms import Picked
from detection.ops.replicas import sum_over_replicas
from detection.types import Detections, ImageInfo, Labels
from schemas.errors import ConfigError

_HEATMAP_BIAS = -2.19  # probability of 0.1 before training
_PEAK_TOLERANCE = 1e-6

# By head, float32 [B, h, w, channels] for each of the network's features, of which the last are decoded.
# `center`: logits of the classes; `size`: (height, width) in cells; `offset`: (y, x) in the cell.
RawOutputs = dict[str, list[tf.Tensor]]


class CenterNet(Detector):
    """A CenterNet, built with its variables.

    Args:
        config: configuration.
        num_classes: C.
        name: the model's name.
        dtype: Keras dtype policy; None: the global one.

    Raises:
        ConfigError: unknown backbone, or levels that do not fit it.
    """

    config: CenterNetConfig
    capabilities = Capabilities(weights=True)

    def __init__(self, *, config: CenterNetConfig, num_classes: int, name: str, dtype: Any = None):
        super().__init__(
            image_size=config.image_size,
            num_classes=num_classes,
            pixel_mean=config.pixel_mean,
            pixel_std=config.pixel_std,
            padding=config.padding,
            name=name,
            dtype=dtype,
        )
        self.config = config
        self._size = feature_sizes(config.image_size, config.min_level)[-1]
        self.backbone: Backbone | Hourglass
        self.neck: UpsamplingNeck | None = None
        spec = HOURGLASSES.get(config.backbone)
        if spec is None:
            self.backbone = self._pyramid_backbone()
            self.neck = UpsamplingNeck(filters=config.neck_filters, momentum=config.momentum, dtype=self.dtype_policy)
        else:
            batch_norm = {"momentum": config.momentum, "epsilon": config.batch_norm_epsilon}
            self.backbone = Hourglass(spec=spec, name=config.backbone, dtype=self.dtype_policy, **batch_norm)
        self.heads = [
            Head(
                task=task,
                place=place,
                filters=config.head_filters,
                outputs=outputs,
                output_bias=_HEATMAP_BIAS if task == "center" else 0.0,
                dtype=self.dtype_policy,
            )
            for place in range(1 if spec is None else spec.stacks)
            for task, outputs in {"center": num_classes, "size": 2, "offset": 2}.items()
        ]
        self._build_layers()

    def _build_layers(self) -> None:
        """Creates all variables; their paths start with the part's name, such as `neck/`."""
        self.backbone.build((None, None, None, 3))
        if isinstance(self.backbone, Hourglass):
            channels = self.backbone.filters
        else:
            assert self.neck is not None
            levels = self.backbone.level_filters[self.config.min_level - 1 :]
            self.neck.build([(None, None, None, filters) for filters in levels])
            channels = self.config.neck_filters[-1]
        for head in self.heads:
            head.build((None, None, None, channels))
        self.built = True

    def _pyramid_backbone(self) -> Backbone:
        config = self.config
        backbone = make_backbone(
            config.backbone, config.backbone_options, levels=config.levels, dtype=self.dtype_policy
        )
        deepest = len(backbone.level_filters)
        if config.max_level != deepest:
            raise ConfigError(
                f"model.overrides.max_level = {config.max_level}: {config.backbone} has {deepest} levels."
            )
        return backbone

    def call(self, images: tf.Tensor, training: bool = False, seed: tf.Tensor | None = None) -> RawOutputs:
        """See `Detector.call`; [B, H, W, 3] to the outputs of the heads."""
        features = self.backbone(self.normalized(images), training=training, seed=seed)
        if self.neck is not None:
            features = [self.neck(features[self.config.min_level - 1 :], training=training)]
        outputs: RawOutputs = {}
        for head in self.heads:
            outputs.setdefault(head.task, []).append(tf.cast(head(features[head.place]), tf.float32))
        return outputs

    def named_outputs(self, outputs: RawOutputs) -> dict[str, tf.Tensor]:
        """See `Detector.named_outputs`: `center`, `size` and `offset`."""
        return {task: values[-1] for task, values in outputs.items()}

    def count_positives(self, labels: Labels) -> tf.Tensor:
        """See `Detector.count_positives`: the number of objects."""
        return count_objects(labels)

    def losses(
        self, outputs: RawOutputs, labels: Labels, positives: tf.Tensor | None = None, training: bool = False
    ) -> dict[str, tf.Tensor]:
        """See `Detector.losses`: `center_loss`, `size_loss` and `offset_loss`, divided by the number of objects."""
        config, size = self.config, self._size
        centers = centers_of(labels, stride=config.stride, size=size)
        heatmap = center_heatmap(centers, size=size, num_classes=self.num_classes, min_iou=config.min_box_overlap_iou)
        inside = 1.0 if labels.sizes is None else inside_image(labels.sizes, stride=config.stride, size=size)

        def center_loss(logits: tf.Tensor) -> tf.Tensor:
            losses = penalty_reduced_focal(logits, heatmap, alpha=config.focal_alpha, beta=config.focal_beta)
            return tf.reduce_sum(losses * inside)

        if positives is None:
            positives = sum_over_replicas(count_objects(labels))
        divisor = tf.maximum(positives, 1.0) * len(outputs["center"])
        totals = {
            "center": tf.add_n([center_loss(logits) for logits in outputs["center"]]),
            "size": tf.add_n([l1_at(centers.cells, each, centers.sizes, centers.weights) for each in outputs["size"]]),
            "offset": tf.add_n(
                [l1_at(centers.cells, each, centers.offsets, centers.weights) for each in outputs["offset"]]
            ),
        }
        return {
            f"{task}_loss": getattr(config, f"{task}_loss_weight") * total / divisor for task, total in totals.items()
        }

    def detect(self, outputs: RawOutputs, image_info: ImageInfo) -> Detections:
        """See `Detector.detect`: the best peaks of the heat-maps, of 3x3 cells, with the sizes and offsets there."""
        options = self.config.postprocess
        sizes, offsets = (self._by_cell(outputs[task][-1]) for task in ("size", "offset"))
        peaks = self._by_cell(_peaks(tf.sigmoid(outputs["center"][-1])))
        count = min(options.max_detections, peaks.shape[1] * peaks.shape[2])
        scores, cells, classes = best_pairs([peaks], tf.reduce_max(peaks, axis=2), count)
        corners = tf.stack([cells // self._size[1], cells % self._size[1]], axis=-1)
        points = tf.cast(corners, tf.float32) + tf.gather(offsets, cells, batch_dims=1)
        halves = tf.maximum(tf.gather(sizes, cells, batch_dims=1), 0.0) / 2.0
        boxes = tf.concat([points - halves, points + halves], axis=-1) * float(self.config.stride)
        return picked_detections(
            _above(scores, options.score_threshold, options.max_detections), boxes, classes, image_info
        )

    def _by_cell(self, values: tf.Tensor) -> tf.Tensor:
        """Reshapes [B, h, w, D] to [B, h * w, D]."""
        return tf.reshape(values, [-1, self._size[0] * self._size[1], values.shape[3]])

    @property
    def backbone_variables(self) -> list[Any]:
        """The backbone's variables."""
        return list(self.backbone.variables)

    def output_classes(self, num_classes: int) -> dict[str, np.ndarray]:
        """See `Detector.output_classes`: the last layer of each `center` head."""
        heads = [head for head in self.heads if head.task == "center"]
        return {variable.path: np.arange(num_classes) for head in heads for variable in head.predict.variables}


def _peaks(scores: tf.Tensor) -> tf.Tensor:
    """Returns scores [B, h, w, C] with zeros where a neighbour has a larger one."""
    largest = tf.nn.max_pool2d(scores, 3, 1, padding="SAME")
    return tf.where(largest - scores < _PEAK_TOLERANCE, scores, 0.0)


def _above(scores: tf.Tensor, threshold: float, slots: int) -> Picked:
    """Picks the scores [B, K], best first, above a threshold, in `slots` >= K slots."""
    scores = tf.pad(scores, [[0, 0], [0, slots - scores.shape[1]]])
    picked = scores > threshold
    indices = tf.where(picked, tf.range(slots), 0)
    return Picked(indices, tf.where(picked, scores, 0.0), tf.reduce_sum(tf.cast(picked, tf.int32), axis=1))
