"""Targets of two-stage detectors: sampled anchors, and sampled or refined RoIs, with their objects.

Class 0 of the heads is background; class c of the labels is c + 1 here.
"""

from typing import NamedTuple

import tensorflow as tf
from pydantic import Field, PositiveInt

from detection.ops.anchors import Assignment, anchors_inside
from detection.ops.boxes import ScaleFactors, encode_yxyx, pairwise_iou_yxyx
from detection.ops.roi_align import CANONICAL_LEVEL
from detection.ops.sampling import max_positives, sample_balanced
from detection.types import Labels
from schemas.config.section import Section

CROWD_FRACTION = 0.5  # boxes with this fraction inside a crowd are ignored: COCO's lowest IoU threshold
_ANCHOR_DRAW, _ROI_DRAW = 2**20, 2**20 + 1  # indices for `own_random_bits`, above those of the network's layers


class SamplingOptions(Section):
    """Samples of each image that the losses take."""

    count: PositiveInt = Field(512, description="samples per image in the losses")
    positive_fraction: float = Field(0.25, gt=0.0, le=1.0, description="max fraction of positives in `count`")

    def _check_keys(self) -> None:
        if not max_positives(self.count, self.positive_fraction):
            raise ValueError(
                f"count = {self.count} and positive_fraction = {self.positive_fraction} allow no positive sample"
            )


class RoiOptions(Section):
    """The regions of interest that the heads learn from, and the features that they get."""

    sampling: SamplingOptions = SamplingOptions()
    positive_iou: float = Field(0.5, gt=0.0, le=1.0, description="RoIs above this IoU with an object are positive")
    background_iou: tuple[float, float] = Field(
        (0.0, 0.5), description="(low, high): RoIs with low <= IoU < high are background; others are ignored"
    )
    canonical_level: PositiveInt = Field(CANONICAL_LEVEL, description="level of RoIs of 224 x 224 pixels")
    align_samples: PositiveInt = Field(1, description="bilinear samples per side of a RoIAlign bin")

    def _check_keys(self) -> None:
        low, high = self.background_iou
        if not 0.0 <= low < high <= 1.0:
            raise ValueError(f"background_iou = [{low}, {high}] must be 0 <= low < high <= 1")


class AnchorTargets(NamedTuple):
    """Targets of S anchors per image: all anchors, or samples with positives first and unused slots last.

    indices: int32 [B, S], indices of the anchors; 0 for unused slots.
    positive: bool [B, S], the anchor is assigned to an object.
    valid: bool [B, S], the slot is used.
    deltas: float32 [B, S, 4], encoded box of the object; 0 if not positive.
    weights: float32 [B, S], weight of the object, 1 if not positive; None: all are 1.
    """

    indices: tf.Tensor
    positive: tf.Tensor
    valid: tf.Tensor
    deltas: tf.Tensor
    weights: tf.Tensor | None


class RoiTargets(NamedTuple):
    """S sampled RoIs per image with their targets; positives come first, unused slots last.

    boxes: float32 [B, S, 4], (ymin, xmin, ymax, xmax); 0 for unused slots.
    positive: bool [B, S], the RoI is assigned to an object.
    valid: bool [B, S], the slot is used.
    classes: int32 [B, S], class of the object plus 1; 0 (background) if not positive.
    deltas: float32 [B, S, 4], encoded box of the object; 0 if not positive.
    objects: int32 [B, S], index of the object; 0 if not positive.
    weights: float32 [B, S], weight of the object, 1 if not positive; None: all are 1.
    """

    boxes: tf.Tensor
    positive: tf.Tensor
    valid: tf.Tensor
    classes: tf.Tensor
    deltas: tf.Tensor
    objects: tf.Tensor
    weights: tf.Tensor | None


def sample_anchors(
    anchors: tf.Tensor, labels: Labels, assignment: Assignment, options: SamplingOptions, *, seed: tf.Tensor
) -> AnchorTargets:
    """Samples positive and negative anchors; ignored anchors and those of objects of weight 0 are neither.

    Args:
        anchors: float32 [A, 4], (ymin, xmin, ymax, xmax) in pixels of the network input.
        labels: ground truth.
        assignment: the anchors' objects.
        options: number of samples S, and their max fraction of positives.
        seed: int32 [2], seed of this training step.
    """
    negative = ~assignment.positive
    if assignment.ignored is not None:
        negative &= ~assignment.ignored
    positive = _counting(labels, assignment.index, assignment.positive)
    slots = sample_balanced(
        positive,
        negative,
        count=options.count,
        positive_fraction=options.positive_fraction,
        seed=seed,
        index=_ANCHOR_DRAW,
    )
    sampled = Assignment(slots.positive, None, tf.gather(assignment.index, slots.indices, batch_dims=1))
    targets = all_anchors(tf.gather(anchors, slots.indices), labels, sampled)
    return targets._replace(indices=slots.indices, valid=slots.valid)


def all_anchors(anchors: tf.Tensor, labels: Labels, assignment: Assignment) -> AnchorTargets:
    """Returns the targets of all positive anchors, whatever their number.

    Args:
        anchors: float32 [A, 4], or [B, A, 4] if they differ by image, (ymin, xmin, ymax, xmax) in pixels of the
            network input.
        labels: ground truth.
        assignment: the anchors' objects.
    """
    positive = assignment.positive
    objects = tf.where(positive, assignment.index, 0)
    # Corners are edges even in the dialect `tpu`: TPU Mask R-CNN encodes its first-stage targets like this.
    deltas = encode_yxyx(tf.gather(labels.boxes, objects, batch_dims=1), anchors)
    return AnchorTargets(
        indices=tf.broadcast_to(tf.range(tf.shape(positive)[1]), tf.shape(positive)),
        positive=positive,
        valid=positive,
        deltas=tf.where(positive[..., tf.newaxis], deltas, 0.0),
        weights=_object_weights(labels, objects, positive),
    )


def sample_rois(
    proposals: tf.Tensor,
    valid: tf.Tensor,
    labels: Labels,
    options: RoiOptions,
    *,
    seed: tf.Tensor,
    positive_iou: float | None = None,
    scale_factors: ScaleFactors | None,
    pixel_offset: float = 0.0,
) -> RoiTargets:
    """Assigns proposals and the objects' own boxes to objects, and samples positives and background.

    A box is positive if its best IoU is above `positive_iou`, and background if its best
    IoU is in [low, high) of `background_iou`, except inside crowds.  Without objects, the
    best IoU is 0.  Boxes of objects of weight 0 are not sampled.

    Args:
        proposals: float32 [B, P, 4], (ymin, xmin, ymax, xmax) in pixels of the network input.
        valid: bool [B, P], False for padding.
        labels: ground truth.
        options: number of samples S, and thresholds.
        seed: int32 [2], seed of this training step.
        positive_iou: replaces that of the options, as in a cascade; None: theirs.
        scale_factors: factors of the deltas (ty, tx, th, tw); None: 1.
        pixel_offset: 1 if box corners are pixel indices, 0 if they are edges.
    """
    boxes = tf.stop_gradient(tf.concat([proposals, labels.boxes], axis=1))
    candidate = tf.concat([valid, labels.valid], axis=1)
    threshold = options.positive_iou if positive_iou is None else positive_iou
    matches = _match(boxes, candidate, labels, threshold, options.background_iou)
    slots = sample_balanced(
        _counting(labels, matches.objects, matches.positive),
        matches.background,
        count=options.sampling.count,
        positive_fraction=options.sampling.positive_fraction,
        seed=seed,
        index=_ROI_DRAW,
    )
    objects = tf.gather(matches.objects, slots.indices, batch_dims=1)
    sampled = tf.where(slots.valid[..., tf.newaxis], tf.gather(boxes, slots.indices, batch_dims=1), 0.0)
    return _roi_targets(
        sampled, slots.positive, slots.valid, objects, labels, scale_factors=scale_factors, pixel_offset=pixel_offset
    )


def relabel_rois(
    boxes: tf.Tensor,
    valid: tf.Tensor,
    labels: Labels,
    *,
    positive_threshold: float,
    scale_factors: ScaleFactors | None,
    pixel_offset: float = 0.0,
) -> RoiTargets:
    """Assigns the boxes of a cascade stage to objects, for the next stage, without new sampling.

    A box is positive if its best IoU is above `positive_threshold`, and otherwise background,
    except inside crowds.  The boxes keep their order.

    Args:
        boxes: float32 [B, S, 4], (ymin, xmin, ymax, xmax) in pixels of the network input.
        valid: bool [B, S], False for unused slots.
        labels: ground truth.
        positive_threshold: 0 <= threshold < 1.
        scale_factors: factors of the deltas (ty, tx, th, tw); None: 1.
        pixel_offset: 1 if box corners are pixel indices, 0 if they are edges.
    """
    boxes = tf.stop_gradient(boxes)
    matches = _match(boxes, valid, labels, positive_threshold, (0.0, 1.0))
    used = matches.positive | matches.background
    boxes = tf.where(used[..., tf.newaxis], boxes, 0.0)
    return _roi_targets(
        boxes, matches.positive, used, matches.objects, labels, scale_factors=scale_factors, pixel_offset=pixel_offset
    )


class _Matches(NamedTuple):
    """positive, background: bool [B, P]; objects: int32 [B, P], index of the object with the best IoU."""

    positive: tf.Tensor
    background: tf.Tensor
    objects: tf.Tensor


def _match(
    boxes: tf.Tensor, candidate: tf.Tensor, labels: Labels, threshold: float, background_thresholds: tuple[float, float]
) -> _Matches:
    """Assigns boxes [B, P, 4] to objects; boxes with `candidate` False, bool [B, P], are neither."""
    ious = tf.where(labels.valid[:, tf.newaxis], pairwise_iou_yxyx(boxes, labels.boxes), -1.0)
    best = tf.maximum(tf.reduce_max(ious, axis=2), 0.0)
    low, high = background_thresholds
    positive = candidate & (best > threshold)
    background = candidate & (best >= low) & (best < high) & ~positive
    if labels.crowds is not None:
        # `anchors_inside` takes anchors of all images [A, 4]; boxes [B, 1, P, 4] broadcast per image.
        background &= ~anchors_inside(boxes[:, tf.newaxis], labels.boxes, labels.crowds, min_fraction=CROWD_FRACTION)
    return _Matches(positive, background, tf.argmax(ious, axis=2, output_type=tf.int32))


def _roi_targets(
    boxes: tf.Tensor,
    positive: tf.Tensor,
    valid: tf.Tensor,
    objects: tf.Tensor,
    labels: Labels,
    *,
    scale_factors: ScaleFactors | None,
    pixel_offset: float,
) -> RoiTargets:
    """Returns the targets of RoIs [B, S, 4] and their objects [B, S]."""
    objects = tf.where(positive, objects, 0)
    deltas = encode_yxyx(
        tf.gather(labels.boxes, objects, batch_dims=1), boxes, scale_factors=scale_factors, pixel_offset=pixel_offset
    )
    return RoiTargets(
        boxes=boxes,
        positive=positive,
        valid=valid,
        classes=tf.where(positive, tf.gather(labels.classes, objects, batch_dims=1) + 1, 0),
        deltas=tf.where(positive[..., tf.newaxis], deltas, 0.0),
        objects=objects,
        weights=_object_weights(labels, objects, positive),
    )


def _counting(labels: Labels, objects: tf.Tensor, positive: tf.Tensor) -> tf.Tensor:
    """Returns `positive` without those of objects of weight 0, bool [B, S]."""
    weights = _object_weights(labels, tf.where(positive, objects, 0), positive)
    return positive if weights is None else positive & (weights > 0.0)


def _object_weights(labels: Labels, objects: tf.Tensor, positive: tf.Tensor) -> tf.Tensor | None:
    if labels.weights is None:
        return None
    return tf.where(positive, tf.gather(labels.weights, objects, batch_dims=1), 1.0)
