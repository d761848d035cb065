"""Training targets of the two-stage family: the sampled anchors, and the sampled RoIs of each stage."""

import numpy as np
import tensorflow as tf

from detection.models.faster_rcnn.cascade import BoxRefinement, stage_factors
from detection.models.faster_rcnn.config import FasterRcnnConfig
from detection.models.faster_rcnn.roi_heads import BoxHeadOutputs
from detection.models.faster_rcnn.roi_targets import (
    CROWD_FRACTION,
    AnchorTargets,
    RoiTargets,
    all_anchors,
    relabel_rois,
    sample_anchors,
    sample_rois,
)
from detection.models.faster_rcnn.rpn import Proposals
from detection.ops.anchors import Assignment
from detection.ops.sampling import max_positives
from detection.types import Labels


def anchor_assignment(config: FasterRcnnConfig, anchors: np.ndarray, labels: Labels) -> Assignment:
    """Assigns the anchors to objects, for the RPN's losses.

    Args:
        config: configuration of the detector.
        anchors: float32 [A, 4], (ymin, xmin, ymax, xmax) in pixels of the network input.
        labels: labels of the batch.
    """
    ignored = config.ignored_anchors
    # Anchors outside of the input overlap no object.
    compared = np.where(ignored[:, np.newaxis], anchors - 2.0 * max(config.image_size), anchors).astype(np.float32)
    assignment = config.rpn.matcher(compared, labels, crowd_fraction=CROWD_FRACTION)
    return assignment.ignore(ignored) if ignored.any() else assignment


def anchor_targets(
    config: FasterRcnnConfig, anchors: np.ndarray, labels: Labels, assignment: Assignment, *, seed: tf.Tensor
) -> AnchorTargets:
    """Samples the anchors of the RPN's losses.

    Args:
        config: configuration of the detector.
        anchors: float32 [A, 4], (ymin, xmin, ymax, xmax) in pixels of the network input.
        labels: labels of the batch.
        assignment: the anchors' objects.
        seed: int32 [2], seed of the step.
    """
    return sample_anchors(tf.constant(anchors), labels, assignment, config.rpn.sampling, seed=seed)


def level_targets(
    config: FasterRcnnConfig, anchors: np.ndarray, labels: Labels, assignment: Assignment
) -> list[AnchorTargets]:
    """Returns the targets of all positive anchors of each level; arguments as in `anchor_targets`."""
    sizes = config.anchors_per_level
    positives, indices = (tf.split(values, sizes, axis=1) for values in (assignment.positive, assignment.index))
    return [
        all_anchors(own, labels, Assignment(positive, None, index))
        for own, positive, index in zip(np.split(anchors, np.cumsum(sizes)[:-1]), positives, indices, strict=True)
    ]


def count_box_anchors(config: FasterRcnnConfig, positive: tf.Tensor) -> tf.Tensor:
    """Counts the anchors of the RPN's box loss.

    Args:
        config: configuration of the detector.
        positive: bool [B, A], True for anchors that are assigned to an object.

    Returns:
        float32 [K]: number of positives per level in the dialect `tpu`; otherwise the
        number of sampled positives, K = 1.
    """
    if config.rules.level_means:
        levels = tf.split(positive, config.anchors_per_level, axis=1)
        return tf.stack([tf.reduce_sum(tf.cast(level, tf.float32)) for level in levels])
    counts = tf.reduce_sum(tf.cast(positive, tf.float32), axis=1)
    limit = max_positives(config.rpn.sampling.count, config.rpn.sampling.positive_fraction)
    return tf.reduce_sum(tf.minimum(counts, float(limit)), keepdims=True)


def roi_targets(config: FasterRcnnConfig, proposals: Proposals, labels: Labels, *, seed: tf.Tensor) -> RoiTargets:
    """Samples the RoIs of the first box head from proposals and objects; arguments as in `anchor_targets`."""
    return sample_rois(
        proposals.boxes,
        proposals.valid,
        labels,
        config.roi,
        seed=seed,
        positive_iou=next(iter(config.box_head.cascade_ious), None),
        scale_factors=config.box_head.code_factors,
        pixel_offset=config.rules.pixel_offset,
    )


def next_roi_targets(
    config: FasterRcnnConfig, rois: RoiTargets, head: BoxHeadOutputs, labels: Labels, *, stage: int
) -> RoiTargets:
    """Returns the RoIs of the stage after `stage` of a cascade, with their targets.

    Args:
        config: configuration of the detector.
        rois: RoIs of the stage.
        head: float32 outputs of the stage's box head.
        labels: labels of the batch.
        stage: index of the stage, from 0.
    """
    refine = refinement(config, tf.constant([config.image_size], tf.float32))
    return relabel_rois(
        refine(rois.boxes, head.box_deltas, stage_factors(config.box_head.code_factors, stage)),
        rois.valid,
        labels,
        positive_threshold=config.box_head.cascade_ious[stage + 1],
        scale_factors=stage_factors(config.box_head.code_factors, stage + 1),
        pixel_offset=config.rules.pixel_offset,
    )


def refinement(config: FasterRcnnConfig, limits: tf.Tensor) -> BoxRefinement:
    """Returns the `BoxRefinement` of the configuration, which turns boxes of a stage into RoIs of the next."""
    return BoxRefinement(limits, config.rules.pixel_offset, config.rules.max_log_size)
