"""Faster R-CNN and Mask R-CNN: backbone, FPN, region proposals, and heads on the proposed regions.

Ren et al., "Faster R-CNN", 2015; Lin et al., "Feature Pyramid Networks for Object Detection",
2017; He et al., "Mask R-CNN", 2017.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from detection.models.backbones.efficientnet import EfficientNet
from detection.models.backbones.efficientnet_spec import BACKBONES
from detection.models.backbones.resnet import RESNETS, ResNet
from detection.models.detector import Detector
from detection.models.faster_rcnn.config import FasterRcnnConfig
from detection.models.heads.roi_detections import detect_in_rois
from detection.models.heads.roi_heads import BoxHead, BoxHeadOutputs, MaskHead
from detection.models.heads.roi_losses import (
    AnchorTargets,
    RoiTargets,
    mask_loss,
    roi_box_loss,
    roi_class_loss,
    rpn_box_loss,
    rpn_score_loss,
    sample_anchors,
    sample_rois,
)
from detection.models.heads.rpn import ProposalOptions, Proposals, RpnHead, RpnOutputs, propose
from detection.models.layers.batch_norm import BatchNormalization
from detection.models.necks.fpn import Fpn
from detection.ops.anchors import pyramid_anchors_yxyx
from detection.ops.masks import crop_masks
from detection.ops.replicas import sum_over_replicas
from detection.ops.roi_align import on_accelerator, roi_align
from detection.ops.sampling import max_positives
from detection.types import Detections, ImageInfo, Labels
from schemas.errors import ConfigError


class RawOutputs(NamedTuple):
    """Outputs of the first stage; the second one depends on labels in training, and on proposals in detection.

    features: [B, h, w, F] per pyramid level, finest first, in the compute dtype.
    rpn: float32, see `RpnOutputs`.
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
        ConfigError: a backbone that does not exist, levels or frozen stages that it does not
            have, or an option of masks without masks.
    """

    takes_crowds = True
    takes_weights = True

    def __init__(self, *, config: FasterRcnnConfig, num_classes: int, name: str, dtype: Any = None):
        super().__init__(
            image_size=config.image_size,
            num_classes=num_classes,
            pixel_mean=config.pixel_mean,
            pixel_std=config.pixel_std,
            name=name,
            dtype=dtype,
        )
        _require_masks(config)
        self.config = config
        self.mask_size = config.object_mask_size if config.include_mask else 0
        self.mask_output = config.postprocess.mask_output
        self.anchors = pyramid_anchors_yxyx(
            config.image_size,
            min_level=config.min_level,
            max_level=config.max_level,
            num_scales=config.num_scales,
            aspect_ratios=config.aspect_ratios,
            anchor_scale=config.anchor_scale,
        )
        self._pixel_offset = 1.0 if config.tpu_coordinates else 0.0
        self.backbone = _make_backbone(config, dtype=self.dtype_policy)
        self.fpn = Fpn(
            min_level=config.min_level,
            backbone_level=len(self.backbone.level_filters),
            max_level=config.max_level,
            filters=config.fpn_filters,
            dtype=self.dtype_policy,
        )
        self.rpn = RpnHead(
            filters=config.fpn_filters,
            anchors_per_cell=config.num_scales * len(config.aspect_ratios),
            dtype=self.dtype_policy,
        )
        self.box_head = BoxHead(
            num_classes=num_classes, units=config.fc_units, layers=config.fc_layers, dtype=self.dtype_policy
        )
        self.mask_head: MaskHead | None = None
        if config.include_mask:
            self.mask_head = MaskHead(
                num_classes=num_classes, filters=config.mask_filters, layers=config.mask_layers, dtype=self.dtype_policy
            )
        self._build_layers()

    def _build_layers(self) -> None:
        """Creates all variables; their paths start with the part's name, such as `fpn/`."""
        config = self.config
        self.backbone.build((None, None, None, 3))
        self.fpn.build([(None, None, None, filters) for filters in self.backbone.level_filters[config.min_level - 1 :]])
        self.rpn.build([(None, None, None, config.fpn_filters)])
        self.box_head.build((None, None, config.box_roi_size, config.box_roi_size, config.fpn_filters))
        if self.mask_head is not None:
            self.mask_head.build((None, None, config.mask_roi_size, config.mask_roi_size, config.fpn_filters))
        _freeze_backbone(self.backbone, config)
        self.built = True

    def call(self, images: tf.Tensor, training: bool = False, seed: tf.Tensor | None = None) -> RawOutputs:
        """See `Detector.call`; [B, H, W, 3] to the pyramid and the RPN's outputs."""
        levels = self.backbone(images, training=training, seed=seed)
        features = self.fpn(levels[self.config.min_level - 1 :])
        rpn = self.rpn(features)
        return RawOutputs(
            features=features,
            rpn=RpnOutputs(*([tf.cast(level, tf.float32) for level in levels] for levels in rpn)),
            seed=tf.zeros([2], tf.int32) if seed is None else seed,
        )

    def named_outputs(self, outputs: RawOutputs) -> dict[str, tf.Tensor]:
        """See `Detector.named_outputs`: `rpn_score_p2` to `rpn_score_p6`, `rpn_box_p2` to `rpn_box_p6`."""
        levels = range(self.config.min_level, self.config.max_level + 1)
        logits = {f"rpn_score_p{level}": values for level, values in zip(levels, outputs.rpn.logits, strict=True)}
        deltas = {f"rpn_box_p{level}": values for level, values in zip(levels, outputs.rpn.deltas, strict=True)}
        return logits | deltas

    def count_positives(self, labels: Labels) -> tf.Tensor:
        """See `Detector.count_positives`: the number of images."""
        return tf.cast(tf.shape(labels.boxes)[0], tf.float32)

    def losses(
        self, outputs: RawOutputs, labels: Labels, positives: tf.Tensor | None = None, training: bool = False
    ) -> dict[str, tf.Tensor]:
        """See `Detector.losses`: of sampled anchors, and of sampled proposals and objects' own boxes.

        Terms are means over what was sampled in all replicas' images; `rpn_score_loss` is
        divided by the number of slots.  Under gradient accumulation each micro-batch counts by
        its number of images.

        Returns:
            `rpn_score_loss`, `rpn_box_loss`, `class_loss`, `box_loss`, and with masks `mask_loss`.
        """
        config = self.config
        anchors, rois = self._sample_anchors(outputs, labels), self._sample_rois(outputs, labels)
        counts = [tf.reduce_sum(tf.cast(x, tf.float32)) for x in (anchors.positive, rois.valid, rois.positive)]
        totals = sum_over_replicas(tf.stack([self.count_positives(labels), *counts]))
        share = 1.0 if positives is None else totals[0] / positives
        images, positive_anchors, all_rois, positive_rois = tf.unstack(tf.maximum(totals, 1.0) / share)
        logits, deltas = (
            tf.concat([tf.reshape(level, [tf.shape(level)[0], -1, *width]) for level in levels], axis=1)
            for levels, width in ((outputs.rpn.logits, []), (outputs.rpn.deltas, [4]))
        )
        head = self._box_outputs(outputs, rois.boxes)
        terms = {
            "rpn_score_loss": config.rpn_score_loss_weight
            * rpn_score_loss(logits, anchors, normalizer=images * config.rpn_samples),
            "rpn_box_loss": config.rpn_box_loss_weight
            * rpn_box_loss(deltas, anchors, normalizer=positive_anchors, delta=config.rpn_huber_delta),
            "class_loss": config.class_loss_weight * roi_class_loss(head.class_logits, rois, normalizer=all_rois),
            "box_loss": config.box_loss_weight
            * roi_box_loss(head.box_deltas, rois, normalizer=positive_rois, delta=config.box_huber_delta),
        }
        if self.mask_head is not None:
            terms["mask_loss"] = config.mask_loss_weight * self._mask_loss(outputs, labels, rois, positive_rois)
        return terms

    def _sample_anchors(self, outputs: RawOutputs, labels: Labels) -> AnchorTargets:
        config = self.config
        return sample_anchors(
            tf.constant(self.anchors),
            labels,
            seed=outputs.seed,
            count=config.rpn_samples,
            positive_fraction=config.rpn_positive_fraction,
            match_threshold=config.rpn_positive_iou,
            unmatched_threshold=config.rpn_negative_iou,
        )

    def _sample_rois(self, outputs: RawOutputs, labels: Labels) -> RoiTargets:
        config = self.config
        # Labels do not tell how much of the input an image fills.
        proposals = self._propose(outputs, tf.constant(config.image_size, tf.float32), training=True)
        return sample_rois(
            proposals.boxes,
            proposals.valid,
            labels,
            seed=outputs.seed,
            count=config.roi_samples,
            positive_fraction=config.roi_positive_fraction,
            positive_threshold=config.roi_positive_iou,
            background_thresholds=config.roi_background_iou,
            scale_factors=config.box_code_factors,
            pixel_offset=self._pixel_offset,
        )

    def _mask_loss(self, outputs: RawOutputs, labels: Labels, rois: RoiTargets, normalizer: tf.Tensor) -> tf.Tensor:
        """Returns the loss of the positive RoIs' masks; only the first slots can be positive."""
        config = self.config
        if labels.masks is None:
            raise ValueError(f"{self.name}: the labels have no masks, which its losses need; see `mask_size`")
        slots = self._mask_slots(rois.positive, max_positives(config.roi_samples, config.roi_positive_fraction))
        boxes, columns, objects, positive = (
            values[:, :slots] for values in (rois.boxes, rois.classes, rois.objects, rois.positive)
        )
        logits = self._mask_logits(outputs, boxes, columns)
        targets = crop_masks(labels.masks, labels.boxes, boxes, objects, size=2 * config.mask_roi_size)
        weights = None if rois.weights is None else rois.weights[:, :slots]
        return mask_loss(logits, targets, positive, normalizer=normalizer, weights=weights)

    def detect(self, outputs: RawOutputs, image_info: ImageInfo) -> Detections:
        """See `Detector.detect`: proposals, their classes and boxes, NMS, and the masks of what is left."""
        config = self.config
        proposals = self._propose(outputs, image_info.original_size * image_info.scale, training=False)
        head = self._box_outputs(outputs, proposals.boxes)
        detections, boxes = detect_in_rois(
            head,
            proposals,
            image_info,
            config.postprocess,
            scale_factors=config.box_code_factors,
            pixel_offset=self._pixel_offset,
            max_log_size=config.max_log_size,
        )
        if self.mask_head is None:
            return detections
        counts = tf.range(config.postprocess.max_detections) < detections.num[:, tf.newaxis]
        slots = self._mask_slots(counts, config.postprocess.max_detections)
        masks = tf.sigmoid(self._mask_logits(outputs, boxes[:, :slots], detections.classes[:, :slots] + 1))
        masks = tf.pad(masks, [[0, 0], [0, config.postprocess.max_detections - slots], [0, 0], [0, 0]])
        masks = tf.ensure_shape(masks, [None, config.postprocess.max_detections, *[2 * config.mask_roi_size] * 2])
        return detections._replace(masks=tf.where(counts[..., tf.newaxis, tf.newaxis], masks, 0.0))

    def _mask_slots(self, used: tf.Tensor, most: int) -> tf.Tensor | int:
        """Returns how many slots the mask head runs on: all, or on CPUs as many as an image of the batch uses.

        The head is the largest part of a step.  Accelerators need shapes that do not depend on values.

        Args:
            used: bool [B, S], the used slots come first.
            most: all slots that can be used.
        """
        if self.portable or on_accelerator():
            return most
        return tf.reduce_max(tf.reduce_sum(tf.cast(used, tf.int32), axis=1))

    def _propose(self, outputs: RawOutputs, image_sizes: tf.Tensor, *, training: bool) -> Proposals:
        config = self.config
        options = (
            ProposalOptions(config.train_pre_nms_top_k, config.train_post_nms_top_k, config.train_proposal_iou, 0.0)
            if training
            else ProposalOptions(config.test_pre_nms_top_k, config.test_post_nms_top_k, config.test_proposal_iou, 0.0)
        )
        return propose(
            outputs.rpn,
            tf.constant(self.anchors),
            image_sizes,
            options._replace(min_size=config.proposal_min_size),
            pixel_offset=self._pixel_offset,
            max_log_size=config.max_log_size,
        )

    def _box_outputs(self, outputs: RawOutputs, boxes: tf.Tensor) -> BoxHeadOutputs:
        """Runs the box head on RoIs [B, R, 4]; float32."""
        head = self.box_head(self._roi_features(outputs, boxes, self.config.box_roi_size))
        return BoxHeadOutputs(*(tf.cast(values, tf.float32) for values in head))

    def _mask_logits(self, outputs: RawOutputs, boxes: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
        """Runs the mask head on RoIs [B, R, 4]; float32 [B, R, m, m]."""
        assert self.mask_head is not None
        features = self._roi_features(outputs, boxes, self.config.mask_roi_size)
        return tf.cast(self.mask_head(features, columns), tf.float32)

    def _roi_features(self, outputs: RawOutputs, boxes: tf.Tensor, size: int) -> tf.Tensor:
        return roi_align(
            outputs.features,
            boxes,
            image_size=self.config.image_size,
            min_level=self.config.min_level,
            output_size=size,
            samples=self.config.roi_align_samples,
            cell_centre=0.0 if self.config.tpu_coordinates else 0.5,
            portable=self.portable,
        )

    @property
    def backbone_variables(self) -> list[Any]:
        """The backbone's variables."""
        return list(self.backbone.variables)

    def output_classes(self, num_classes: int) -> dict[str, np.ndarray]:
        """See `Detector.output_classes`: the last layers of the heads, whose first output is the background."""
        columns = np.arange(-1, num_classes)
        head = self.box_head
        classes = {variable.path: columns for variable in head.classes.variables}
        classes |= {variable.path: np.repeat(columns, 4) for variable in head.boxes.variables}
        if self.mask_head is not None:
            classes |= {variable.path: columns for variable in self.mask_head.masks.variables}
        return classes


def _require_masks(config: FasterRcnnConfig) -> None:
    if not config.include_mask and config.postprocess.mask_output != "crops":
        raise ConfigError(
            f"model.postprocess.mask_output = {config.postprocess.mask_output} does nothing without masks. Remove it, "
            "or set model.overrides.include_mask to true."
        )


def _make_backbone(config: FasterRcnnConfig, *, dtype: Any) -> EfficientNet | ResNet:
    common = {
        "momentum": config.batch_norm_momentum,
        "epsilon": config.batch_norm_epsilon,
        "recompute": config.gradient_checkpointing,
        "name": config.backbone,
        "dtype": dtype,
    }
    backbone: EfficientNet | ResNet
    if config.backbone in RESNETS:
        backbone = ResNet(spec=RESNETS[config.backbone], layout=config.resnet_layout, **common)
    elif config.backbone in BACKBONES:
        backbone = EfficientNet(spec=BACKBONES[config.backbone], **common)
    else:
        raise ConfigError(
            f"model.overrides.backbone = {config.backbone!r}: no such backbone. Choose from "
            f"{', '.join((*RESNETS, *BACKBONES))}."
        )
    deepest = len(backbone.level_filters)
    if not config.min_level <= deepest <= config.max_level:
        raise ConfigError(
            f"model.overrides: levels {config.min_level} to {config.max_level} do not fit {config.backbone}: its "
            f"deepest level, {deepest}, must be one of them."
        )
    if config.frozen_stages > deepest:
        raise ConfigError(
            f"model.overrides.frozen_stages = {config.frozen_stages}: {config.backbone} has {deepest} stages."
        )
    return backbone


def _freeze_backbone(backbone: EfficientNet | ResNet, config: FasterRcnnConfig) -> None:
    """Freezes the first stages, and the statistics of batch norm."""
    for stage in backbone.stages[: config.frozen_stages]:
        for layer in stage:
            layer.trainable = False
    if not config.train_batch_norm:
        # Keras has no public list of the layers inside layers.
        for layer in backbone._flatten_layers():
            if isinstance(layer, BatchNormalization):
                layer.fixed_statistics = True
