"""CenterNet: a backbone, a neck up to a fine level, and heads for the centers of objects and values at them.

Zhou et al., "Objects as Points", 2019.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from detection.models.backbones.make import freeze_backbone, make_backbone
from detection.models.centernet.cell_values import CellHead
from detection.models.centernet.centers import (
    Centers,
    center_heatmap,
    centers_of,
    count_objects,
    inside_image,
    l1_at,
    penalty_reduced_focal,
)
from detection.models.centernet.config import CenterNetConfig
from detection.models.centernet.keypoint_candidates import picked_keypoints, rescored
from detection.models.centernet.keypoint_options import HEATMAP
from detection.models.centernet.keypoint_targets import KeypointTargets
from detection.models.centernet.keypoints import Keypoints
from detection.models.centernet.peaks import best_peaks
from detection.models.detector import Capabilities, Detector
from detection.models.heads.postprocess import clipped_to_image, picked_above, picked_detections
from detection.models.necks.upsampling import DeconvNeck, UpsamplingNeck
from detection.ops.anchors import feature_sizes
from detection.ops.boxes import area_yxyx, clip_yxyx
from detection.ops.replicas import sum_over_replicas
from detection.types import Detections, ImageInfo, Labels
from schemas.errors import ConfigError

_HEATMAPS = ("center", HEATMAP)
_HEATMAP_BIAS = -2.19  # probability of 0.1 before training

# By head, float32 [B, h, w, channels] for each of the network's features, of which the last are decoded.
# `center`: logits of the classes; `size`: (height, width) in cells; `offset`: (y, x) in the cell.  With P keypoints of
# all classes, `keypoint_heatmap`: P logits; `keypoint_offset`: P times (y, x) from the cell to a keypoint near it;
# `keypoint_regression`: P times (y, x) from a center's cell to its keypoints.
RawOutputs = dict[str, list[tf.Tensor]]


class CenterNet(Detector):
    """A CenterNet, built with its variables.

    Args:
        config: configuration.
        num_classes: C.
        keypoints: names of each class's keypoints.
        name: the model's name.
        dtype: Keras dtype policy; None: the global one.

    Raises:
        ConfigError: unknown backbone, or levels that do not fit it.
    """

    config: CenterNetConfig

    def __init__(
        self,
        *,
        config: CenterNetConfig,
        num_classes: int,
        name: str,
        keypoints: Sequence[Sequence[str]] = (),
        dtype: Any = None,
    ):
        super().__init__(config=config, num_classes=num_classes, name=name, dtype=dtype)
        self._size = feature_sizes(config.image_size, config.min_level)[-1]
        self.capabilities = Capabilities(
            weights=True,
            keypoints=bool(config.keypoints),
            count_shape=(4 if config.keypoints else 1,),
            suppresses=False,
        )
        self.keypoints: Keypoints | None = None
        if config.keypoints:
            names = tuple(tuple(own) for own in keypoints)
            self.keypoints = Keypoints(names, stride=config.stride, size=self._size, options=config.keypoints)
        self.backbone = make_backbone(
            config.backbone,
            activation=None,
            batch_norm=config.batch_norm.arguments,
            levels=config.levels if config.neck.filters else None,
            recompute=config.gradient_checkpointing,
            dtype=self.dtype_policy,
        )
        self.neck: UpsamplingNeck | DeconvNeck | None = None
        maps = self.backbone.level_filters
        if config.neck.filters:
            if config.max_level != len(maps):
                raise ConfigError(
                    f"model.overrides.max_level = {config.max_level}: {config.backbone.name} has {len(maps)} levels."
                )
            neck = DeconvNeck if config.neck.kind == "deconv" else UpsamplingNeck
            self.neck = neck(config.neck, momentum=config.batch_norm.arguments["momentum"], dtype=self.dtype_policy)
        self.heads = [
            CellHead(
                config.head,
                task=task,
                place=place,
                outputs=outputs,
                output_bias=_HEATMAP_BIAS if task in _HEATMAPS else 0.0,
                dtype=self.dtype_policy,
            )
            for place in range(1 if self.neck else len(maps))
            for task, outputs in self._tasks().items()
        ]
        self._build_layers()

    def _tasks(self) -> dict[str, int]:
        """Returns the output channels of each head."""
        tasks = {"center": self.num_classes, "size": 2, "offset": 2}
        return tasks if self.keypoints is None else tasks | self.keypoints.outputs

    def _build_layers(self) -> None:
        """Creates all variables; their paths start with the part's name, such as `neck/`."""
        self.backbone.build((None, None, None, 3))
        channels = self.backbone.level_filters[-1]
        if self.neck is not None:
            levels = self.backbone.level_filters[self.config.min_level - 1 :]
            self.neck.build([(None, None, None, filters) for filters in levels])
            channels = self.config.neck.filters[-1]
        for head in self.heads:
            head.build((None, None, None, channels))
        freeze_backbone(self.backbone, self.config.backbone)
        self.built = True

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
        """See `Detector.named_outputs`: those of the last features."""
        return {task: values[-1] for task, values in outputs.items()}

    def count_positives(self, labels: Labels) -> tf.Tensor:
        """See `Detector.count_positives`: the number of objects; then `KeypointTargets.counts`, if there are any."""
        return _counts(labels, self._keypoint_targets(labels, self._centers(labels)))

    def losses(
        self, outputs: RawOutputs, labels: Labels, positives: tf.Tensor | None = None, training: bool = False
    ) -> dict[str, tf.Tensor]:
        """See `Detector.losses`: `center_loss`, `size_loss` and `offset_loss`, divided by the number of objects.

        With keypoints also `keypoint_heatmap_loss`, `keypoint_offset_loss` and `keypoint_regression_loss`, divided by
        `KeypointTargets.counts`.
        """
        config, loss, size = self.config, self.config.loss, self._size
        centers = self._centers(labels)
        heatmap = center_heatmap(centers, size=size, num_classes=self.num_classes, min_iou=loss.min_box_overlap_iou)
        inside = 1.0 if labels.sizes is None else inside_image(labels.sizes, stride=config.stride, size=size)

        def focal(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor | float) -> tf.Tensor:
            losses = penalty_reduced_focal(logits, targets, alpha=loss.focal_alpha, beta=loss.focal_beta)
            return tf.reduce_sum(losses * inside * weights)

        def at_centers(task: str, targets: tf.Tensor) -> tf.Tensor:
            return tf.add_n([l1_at(centers.cells, each, targets, centers.weights) for each in outputs[task]])

        targets = self._keypoint_targets(labels, centers)
        if positives is None:
            positives = sum_over_replicas(_counts(labels, targets))
        divisors = [*tf.unstack(tf.maximum(positives, 1.0) * len(outputs["center"]))]
        totals = {
            "center": tf.add_n([focal(logits, heatmap, 1.0) for logits in outputs["center"]]),
            "size": at_centers("size", centers.sizes),
            "offset": at_centers("offset", centers.offsets),
        }
        divisors[:1] *= len(totals)
        if self.keypoints is not None:
            assert targets is not None
            totals |= self.keypoints.losses(outputs, targets, focal)
        return {
            f"{task}_loss": config.loss_weights[task] * total / divisor
            for (task, total), divisor in zip(totals.items(), divisors, strict=True)
        }

    def _centers(self, labels: Labels) -> Centers:
        return centers_of(labels, stride=self.config.stride, size=self._size)

    def _keypoint_targets(self, labels: Labels, centers: Centers) -> KeypointTargets | None:
        return None if self.keypoints is None else self.keypoints.targets(labels, centers)

    def detect(self, outputs: RawOutputs, image_info: ImageInfo) -> Detections:
        """See `Detector.detect`: the best peaks of the heat-maps, of 3x3 cells, with the sizes and offsets there."""
        options = self.config.postprocess
        sizes, offsets = (self._by_cell(outputs[task][-1]) for task in ("size", "offset"))
        windowed = self.nms_graph == "windows" and not self.portable
        count = min(options.max_detections, sizes.shape[1] * self.num_classes)
        stride = float(self.config.stride)
        by_row = tf.stack(tf.meshgrid(*map(tf.range, self._size), indexing="ij"), axis=-1)
        points = tf.cast(tf.reshape(by_row, [-1, 2]), tf.float32) + offsets
        halves = tf.maximum(sizes, 0.0) / 2.0
        all_boxes = tf.concat([points - halves, points + halves], axis=-1)
        in_image = area_yxyx(clipped_to_image(all_boxes * stride, image_info)) > 0.0
        scores, cells, classes = best_peaks(
            outputs["center"][-1], count, counts=in_image, floor=options.score_threshold, windowed=windowed
        )
        boxes = tf.gather(all_boxes, cells, batch_dims=1)
        places = tf.stack([cells // self._size[1], cells % self._size[1]], axis=-1)
        keypoints = None
        if self.keypoints is not None:
            boxes = clip_yxyx(boxes, *map(float, self._size))
            keypoints = self.keypoints.detect(self.named_outputs(outputs), places, boxes, classes, options.keypoints)
            if options.keypoints.rescore_instances:
                scores = rescored(scores, keypoints[..., 2], options.keypoints.rescoring_threshold)
                scores, order = tf.math.top_k(scores, count)
                boxes, classes, keypoints = (
                    tf.gather(part, order, batch_dims=1) for part in (boxes, classes, keypoints)
                )
        picked = picked_above(scores, options.score_threshold, options.max_detections)
        detections = picked_detections(picked, clipped_to_image(boxes * stride, image_info), classes)
        if keypoints is None:
            return detections
        clips = options.keypoints.clip_out_of_frame_keypoints
        in_pixels = keypoints * [stride, stride, 1.0]
        return detections._replace(keypoints=picked_keypoints(in_pixels, picked, image_info, clips=clips))

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


def _counts(labels: Labels, targets: KeypointTargets | None) -> tf.Tensor:
    objects = count_objects(labels)[tf.newaxis]
    return objects if targets is None else tf.concat([objects, targets.counts], axis=0)
