"""Faster R-CNN and Mask R-CNN: backbone, FPN, region proposals, and heads on the proposed regions.

Ren et al., "Faster R-CNN", 2015; Lin et al., "Feature Pyramid Networks for Object Detection",
2017; He et al., "Mask R-CNN", 2017.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from detection.models.backbones.make import freeze_backbone, make_backbone
from detection.models.backbones.resnet import ResNet
from detection.models.detector import Capabilities, Detector
from detection.models.faster_rcnn.cascade import run_cascade, stage_factors
from detection.models.faster_rcnn.config import FasterRcnnConfig
from detection.models.faster_rcnn.roi_detections import detect_in_rois
from detection.models.faster_rcnn.roi_heads import BoxHead, BoxHeadOutputs, MaskHead, used_slots
from detection.models.faster_rcnn.roi_losses import (
    mask_loss,
    per_image_normalizers,
    roi_box_loss,
    roi_class_loss,
    rois_with_masks,
    rpn_box_loss,
    rpn_score_loss,
)
from detection.models.faster_rcnn.roi_targets import RoiTargets
from detection.models.faster_rcnn.rpn import Proposals, RpnHead, RpnOutputs, propose
from detection.models.faster_rcnn.targets import (
    anchor_assignment,
    anchor_targets,
    count_box_anchors,
    level_targets,
    next_roi_targets,
    refinement,
    roi_targets,
)
from detection.models.necks.fpn import Fpn
from detection.ops.anchors import Assignment
from detection.ops.masks import crop_masks
from detection.ops.replicas import sum_over_replicas
from detection.ops.roi_align import crop_max_pool, roi_align
from detection.ops.sampling import max_positives
from detection.types import Detections, ImageInfo, Labels


class RawOutputs(NamedTuple):
    """Outputs of the first stage; the second one depends on labels in training, and on proposals in detection.

    features: [B, h, w, F] per pyramid level, finest first, in the compute dtype.
    rpn: float32 scores and box deltas per level.
    seed: int32 [2], seed of this training step; 0 without one.
    """

    features: list[tf.Tensor]
    rpn: RpnOutputs
    seed: tf.Tensor


class FasterRcnn(Detector):
    """A Faster R-CNN, or with `include_mask` a Mask R-CNN, built with its variables.

    Args:
        config: configuration.
        num_classes: C.
        name: the model's name.
        dtype: Keras dtype policy; None: the global one.

    Raises:
        ConfigError: unknown backbone, or pyramid levels or frozen stages that do not fit it.
    """

    config: FasterRcnnConfig

    def __init__(self, *, config: FasterRcnnConfig, num_classes: int, name: str, dtype: Any = None):
        super().__init__(config=config, num_classes=num_classes, name=name, dtype=dtype)
        self.capabilities = Capabilities(
            mask_size=config.mask_head.object_size if config.include_mask else 0,
            mask_output=config.postprocess.mask_output,
            crowds=True,
            weights=True,
            count_shape=(1 + (len(config.levels) if config.rules.level_means else 1),),
            detects_by_device=True,
        )
        self.anchors = config.anchors_yxyx()
        self.backbone = make_backbone(
            config.backbone,
            activation=config.activation if config.backbone.name.startswith("resnet-") else None,
            batch_norm=config.batch_norm.arguments,
            levels=config.levels,
            recompute=config.gradient_checkpointing,
            tail=config.architecture == "c4",
            dtype=self.dtype_policy,
        )
        self.fpn: Fpn | None = None
        if config.architecture == "fpn":
            self.fpn = Fpn(
                config.neck,
                min_level=config.min_level,
                backbone_level=len(self.backbone.level_filters),
                max_level=config.max_level,
                layout=config.rules.layers,
                activation=config.activation,
                dtype=self.dtype_policy,
            )
        self.rpn = RpnHead(
            filters=config.rpn.filters or self._channels,
            anchors_per_cell=config.anchors.per_cell,
            levels=config.levels,
            layout=config.rules.layers,
            dtype=self.dtype_policy,
        )
        self.box_head, *self.later_box_heads = [
            BoxHead(
                config.box_head,
                num_classes=num_classes,
                pools=self.fpn is None,
                name=f"box_head_{stage + 1}" if stage else "box_head",
                dtype=self.dtype_policy,
            )
            for stage in range(len(config.box_head.cascade_ious) or 1)
        ]
        self.mask_head: MaskHead | None = None
        if config.include_mask:
            self.mask_head = MaskHead(config.mask_head, num_classes=num_classes, dtype=self.dtype_policy)
        self._build_layers()

    def _build_layers(self) -> None:
        """Creates all variables; their paths start with the part's name, such as `fpn/`."""
        config = self.config
        self.backbone.build((None, None, None, 3))
        if self.fpn is not None:
            levels = self.backbone.level_filters[config.min_level - 1 :]
            self.fpn.build([(None, None, None, filters) for filters in levels])
        self.rpn.build([(None, None, None, self._channels)])
        channels = self._channels if self._tail is None else self._tail.out_filters
        for head in self.box_heads:
            head.build((None, None, *[config.box_head.roi_size] * 2, channels))
        if self.mask_head is not None:
            self.mask_head.build((None, None, *[config.mask_head.roi_size] * 2, config.neck.filters))
        freeze_backbone(self.backbone, config.backbone)
        self.built = True

    def call(self, images: tf.Tensor, training: bool = False, seed: tf.Tensor | None = None) -> RawOutputs:
        """See `Detector.call`; [B, H, W, 3] to the pyramid and the RPN's outputs."""
        levels = self.backbone(self.normalized(images), training=training, seed=seed)[self.config.min_level - 1 :]
        features = levels if self.fpn is None else self.fpn(levels)
        rpn = self.rpn(features)
        return RawOutputs(
            features=features,
            rpn=RpnOutputs(*([tf.cast(level, tf.float32) for level in levels] for levels in rpn)),
            seed=tf.zeros([2], tf.int32) if seed is None else seed,
        )

    @property
    def _channels(self) -> int:
        """Channels of the features."""
        return self.backbone.level_filters[-1] if self.fpn is None else self.config.neck.filters

    @property
    def _tail(self) -> ResNet | None:
        """The backbone, if its last stage runs on RoIs."""
        return self.backbone if self.fpn is None and isinstance(self.backbone, ResNet) else None

    @property
    def box_heads(self) -> list[BoxHead]:
        """The box heads, one per stage of a cascade."""
        return [self.box_head, *self.later_box_heads]

    def named_outputs(self, outputs: RawOutputs) -> dict[str, tf.Tensor]:
        """See `Detector.named_outputs`: `rpn_score_p2` to `rpn_score_p6`, `rpn_box_p2` to `rpn_box_p6`."""
        levels = self.config.levels
        logits = {f"rpn_score_p{level}": values for level, values in zip(levels, outputs.rpn.logits, strict=True)}
        deltas = {f"rpn_box_p{level}": values for level, values in zip(levels, outputs.rpn.deltas, strict=True)}
        return logits | deltas

    def count_positives(self, labels: Labels) -> tf.Tensor:
        """See `Detector.count_positives`: the number of images, then the anchors of the RPN's box loss."""
        return self._counts(labels, anchor_assignment(self.config, self.anchors, labels))

    def num_positives(self, labels: Labels) -> tf.Tensor:
        """See `Detector.num_positives`: those of the RPN's box loss."""
        return self.count_positives(labels)[1]

    def _counts(self, labels: Labels, assignment: Assignment) -> tf.Tensor:
        images = tf.cast(tf.shape(labels.boxes)[:1], tf.float32)
        return tf.concat([images, count_box_anchors(self.config, assignment.positive)], axis=0)

    def losses(
        self, outputs: RawOutputs, labels: Labels, positives: tf.Tensor | None = None, training: bool = False
    ) -> dict[str, tf.Tensor]:
        """See `Detector.losses`: losses of sampled anchors, and of sampled proposals and ground-truth boxes.

        Terms are means over the samples of all replicas; `rpn_score_loss` is divided by the number
        of slots.  Under gradient accumulation, the RPN's terms are normalized over the complete
        batch of the update; the other terms weight each micro-batch by its number of images,
        because the number of RoIs depends on the outputs.

        Returns:
            `rpn_score_loss`, `rpn_box_loss`, `class_loss`, `box_loss`, `mask_loss` if there are masks,
            and `class_loss_2`, `box_loss_2` etc. for the later stages of a cascade.
        """
        config = self.config
        # Labels do not contain the size of the image within the input.
        proposals = self._propose(outputs, tf.constant(config.image_size, tf.float32), training=True)
        rois = roi_targets(config, proposals, labels, seed=outputs.seed)
        terms = self._rpn_losses(outputs, labels, positives)
        for stage in range(len(self.box_heads)):
            head = self._box_outputs(self._box_features(outputs, rois.boxes, training=training), stage)
            each = tf.ones_like(rois.valid[:, 0])
            masked = rois.positive if labels.masks is None else rois_with_masks(labels.masks, rois)
            images, all_rois, positive_rois, masked_rois = self._totals(
                labels, positives, each, rois.valid, rois.positive, masked
            )
            class_rois, box_rois = all_rois, positive_rois
            if config.rules.image_losses:
                class_rois, box_rois = per_image_normalizers(images, rois.valid)
            name, weight = f"_{stage + 1}" if stage else "", 0.5**stage
            class_loss = roi_class_loss(head.class_logits, rois, normalizer=class_rois)
            terms[f"class_loss{name}"] = weight * config.box_head.class_loss_weight * class_loss
            box_loss = roi_box_loss(head.box_deltas, rois, normalizer=box_rois, delta=config.box_head.huber_delta)
            terms[f"box_loss{name}"] = weight * config.box_head.box_loss_weight * box_loss
            if self.mask_head is not None and stage == 0:
                terms["mask_loss"] = config.mask_head.loss_weight * self._mask_loss(outputs, labels, rois, masked_rois)
            if stage + 1 < len(self.box_heads):
                rois = next_roi_targets(config, rois, head, labels, stage=stage)
        return terms

    def _rpn_losses(self, outputs: RawOutputs, labels: Labels, positives: tf.Tensor | None) -> dict[str, tf.Tensor]:
        """Returns the loss terms of the first stage; arguments as in `losses`."""
        config = self.config
        assignment = anchor_assignment(config, self.anchors, labels)
        sampled = anchor_targets(config, self.anchors, labels, assignment, seed=outputs.seed)
        if positives is None:
            positives = sum_over_replicas(self._counts(labels, assignment))
        images, *counts = tf.unstack(tf.maximum(positives, 1.0))
        logits = tf.concat([tf.reshape(level, [tf.shape(level)[0], -1]) for level in outputs.rpn.logits], axis=1)
        deltas = [tf.reshape(level, [tf.shape(level)[0], -1, 4]) for level in outputs.rpn.deltas]
        if config.rules.level_means:
            targets = level_targets(config, self.anchors, labels, assignment)
        else:
            deltas = [tf.gather(tf.concat(deltas, axis=1), sampled.indices, batch_dims=1)]
            targets = [sampled]
        scored, score_count = sampled, images * config.rpn.sampling.count
        if config.rules.image_losses:
            scored = sampled._replace(weights=None)
            score_count, *counts = per_image_normalizers(images, sampled.valid)
        score_loss = rpn_score_loss(logits, scored, normalizer=score_count)
        factors = config.rules.rpn_code_factors
        means = [
            rpn_box_loss(own, matched, normalizer=count, delta=config.rules.rpn_huber_delta, factors=factors)
            for own, matched, count in zip(deltas, targets, counts, strict=True)
        ]
        return {
            "rpn_score_loss": config.rpn.score_loss_weight * score_loss,
            "rpn_box_loss": config.rpn.box_loss_weight * tf.add_n(means),
        }

    def _totals(self, labels: Labels, positives: tf.Tensor | None, *samples: tf.Tensor) -> list[tf.Tensor]:
        """Returns the normalizers of the heads' loss terms over all replicas, float32 scalars >= 1.

        Under gradient accumulation, they are normalizers of the update's complete batch, estimated
        from this micro-batch by its share of the images.

        Args:
            labels: labels of the micro-batch.
            positives: sum of `count_positives` over the update's batch; None: no accumulation.
            samples: bool tensors of this replica; the number of True in each is a normalizer.
        """
        images = tf.cast(tf.shape(labels.boxes)[0], tf.float32)
        counts = [images, *(tf.reduce_sum(tf.cast(sample, tf.float32)) for sample in samples)]
        totals = sum_over_replicas(tf.stack(counts))
        share = 1.0 if positives is None else totals[0] / positives[0]
        return tf.unstack(tf.maximum(totals[1:], 1.0) / share)

    def _mask_loss(self, outputs: RawOutputs, labels: Labels, rois: RoiTargets, normalizer: tf.Tensor) -> tf.Tensor:
        """Returns the loss of the masks of positive RoIs; only the first slots can be positive."""
        config = self.config
        if labels.masks is None:
            raise ValueError(f"{self.name}: the labels have no masks. Its losses need masks with side `mask_size`.")
        slots = max_positives(config.roi.sampling.count, config.roi.sampling.positive_fraction)
        slots = used_slots(rois.positive, slots, portable=self.portable)
        boxes, columns, objects, masked = (
            values[:, :slots]
            for values in (rois.boxes, rois.classes, rois.objects, rois_with_masks(labels.masks, rois))
        )
        logits = self._mask_logits(outputs, boxes, columns)
        targets = crop_masks(labels.masks, labels.boxes, boxes, objects, size=2 * config.mask_head.roi_size)
        weights = None if rois.weights is None else rois.weights[:, :slots]
        return mask_loss(logits, targets, masked, normalizer=normalizer, weights=weights)

    def detect(self, outputs: RawOutputs, image_info: ImageInfo) -> Detections:
        """See `Detector.detect`: proposals, their classes and boxes, NMS, and the masks of the remaining boxes."""
        config = self.config
        image_sizes = image_info.original_size * image_info.scale  # in pixels of the network input
        proposals = self._propose(outputs, image_sizes, training=False)
        factors, stages = config.box_head.code_factors, len(self.box_heads)
        head, proposals = run_cascade(
            [partial(self._box_outputs, stage=stage) for stage in range(stages)],
            partial(self._box_features, outputs),
            proposals,
            refinement(config, image_sizes),
            factors,
        )
        detections, boxes = detect_in_rois(
            head,
            proposals,
            image_info,
            config.postprocess,
            scale_factors=stage_factors(factors, stages - 1),
            pixel_offset=config.rules.pixel_offset,
            max_log_size=config.rules.max_log_size,
            clip_after_nms=config.rules.clip_after_nms,
            graph=self.nms_graph,
        )
        if self.mask_head is None:
            return detections
        return detections._replace(masks=self._masks(outputs, boxes, detections))

    def _masks(self, outputs: RawOutputs, boxes: tf.Tensor, detections: Detections) -> tf.Tensor:
        """Returns the masks within the detections' boxes, float32 [B, N, m, m] in 0..1; 0 for padding.

        Args:
            outputs: raw outputs.
            boxes: float32 [B, N, 4], boxes of the detections in pixels of the network input.
            detections: N detections per image.
        """
        slots, side = self.config.postprocess.max_detections, 2 * self.config.mask_head.roi_size
        valid = tf.range(slots) < detections.num[:, tf.newaxis]
        used = used_slots(valid, slots, portable=self.portable)
        masks = tf.sigmoid(self._mask_logits(outputs, boxes[:, :used], detections.classes[:, :used] + 1))
        masks = tf.ensure_shape(tf.pad(masks, [[0, 0], [0, slots - used], [0, 0], [0, 0]]), [None, slots, side, side])
        return tf.where(valid[..., tf.newaxis, tf.newaxis], masks, 0.0)

    def _propose(self, outputs: RawOutputs, image_sizes: tf.Tensor, *, training: bool) -> Proposals:
        """Runs `propose` with the options of training or of detection."""
        config = self.config
        return propose(
            outputs.rpn,
            tf.constant(self.anchors),
            image_sizes,
            config.rpn.train if training else config.rpn.test,
            min_size=config.rpn.min_size,
            by_level=config.rules.nms_by_level,
            clip_after_nms=config.rules.clip_after_nms,
            pixel_offset=config.rules.pixel_offset,
            max_log_size=config.rules.max_log_size,
            graph=self.nms_graph,
        )

    def _box_features(self, outputs: RawOutputs, boxes: tf.Tensor, *, training: bool = False) -> tf.Tensor:
        """Returns the box head's features of RoIs [B, R, 4], after conv5_x if it is for RoIs: [B, R, s, s, F]."""
        features = self._roi_features(outputs, boxes, self.config.box_head.roi_size)
        if self._tail is None:
            return features
        after = self._tail.run_tail(tf.reshape(features, [-1, *features.shape[2:]]), training=training)
        return tf.reshape(after, tf.concat([tf.shape(boxes)[:2], list(after.shape[1:])], axis=0))

    def _box_outputs(self, features: tf.Tensor, stage: int) -> BoxHeadOutputs:
        """Runs the box head of a stage, counted from 0, on RoI features; float32."""
        head = self.box_heads[stage](features)
        return BoxHeadOutputs(*(tf.cast(values, tf.float32) for values in head))

    def _mask_logits(self, outputs: RawOutputs, boxes: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
        """Runs the mask head on RoIs [B, R, 4]; float32 [B, R, m, m]."""
        assert self.mask_head is not None
        features = self._roi_features(outputs, boxes, self.config.mask_head.roi_size)
        return tf.cast(self.mask_head(features, columns), tf.float32)

    def _roi_features(self, outputs: RawOutputs, boxes: tf.Tensor, size: int) -> tf.Tensor:
        config = self.config
        options: dict[str, Any] = {
            "image_size": config.image_size,
            "min_level": config.min_level,
            "output_size": size,
            "canonical_level": config.roi.canonical_level,
            "portable": self.portable,
        }
        if config.rules.pooling == "crop-max-pool":
            return crop_max_pool(outputs.features, boxes, **options)
        samples, centre = config.roi.align_samples, config.rules.cell_centre
        return roi_align(outputs.features, boxes, samples=samples, cell_centre=centre, **options)

    @property
    def backbone_variables(self) -> list[Any]:
        """The backbone's variables."""
        return list(self.backbone.variables)

    def output_classes(self, num_classes: int) -> dict[str, np.ndarray]:
        """See `Detector.output_classes`: the heads' last layers, with the background as their first output."""
        columns = np.arange(-1, num_classes)
        classes = {variable.path: columns for head in self.box_heads for variable in head.classes.variables}
        if not (self.config.box_head.cascade_ious or self.config.box_head.class_agnostic):
            classes |= {variable.path: np.repeat(columns, 4) for variable in self.box_head.boxes.variables}
        if self.mask_head is not None:
            classes |= {variable.path: columns for variable in self.mask_head.masks.variables}
        return classes
