"""Training targets of the two-stage family: the sampled anchors, and the sampled RoIs of each stage."""

import numpy as np
import tensorflow as tf

from detection.models.faster_rcnn.config import FasterRcnnConfig
from detection.models.heads.cascade import BoxRefinement, stage_factors
from detection.models.heads.roi_heads import BoxHeadOutputs
from detection.models.heads.roi_targets import AnchorTargets, RoiTargets, relabel_rois, sample_anchors, sample_rois
from detection.models.heads.rpn import Proposals
from detection.types import Labels


def anchor_targets(config: FasterRcnnConfig, anchors: np.ndarray, labels: Labels, *, seed: tf.Tensor) -> AnchorTargets:
    """Samples the anchors of the RPN's losses.

    Args:
        config: configuration of the detector.
        anchors: float32 [A, 4], (ymin, xmin, ymax, xmax) in pixels of the network input.
        labels: labels of the batch.
        seed: int32 [2], seed of the step.
    """
    return sample_anchors(
        tf.constant(anchors),
        labels,
        seed=seed,
        count=config.rpn_samples,
        positive_fraction=config.rpn_positive_fraction,
        match_threshold=config.rpn_positive_iou,
        unmatched_threshold=config.rpn_negative_iou,
    )


def roi_targets(config: FasterRcnnConfig, proposals: Proposals, labels: Labels, *, seed: tf.Tensor) -> RoiTargets:
    """Samples the RoIs of the first box head from proposals and objects; arguments as those of `anchor_targets`."""
    return sample_rois(
        proposals.boxes,
        proposals.valid,
        labels,
        seed=seed,
        count=config.roi_samples,
        positive_fraction=config.roi_positive_fraction,
        positive_threshold=config.cascade_ious[0] if config.cascade_ious else config.roi_positive_iou,
        background_thresholds=config.roi_background_iou,
        scale_factors=config.box_code_factors,
        pixel_offset=config.pixel_offset,
    )


def next_roi_targets(
    config: FasterRcnnConfig, rois: RoiTargets, head: BoxHeadOutputs, labels: Labels, *, stage: int
) -> RoiTargets:
    """Returns the RoIs of the stage after `stage` of a cascade, with their targets.

    Args:
        config: configuration of the detector.
        rois: RoIs of the stage.
        head: float32 outputs of its box head.
        labels: labels of the batch.
        stage: counted from 0.
    """
    refine = refinement(config, tf.constant([config.image_size], tf.float32))
    return relabel_rois(
        refine(rois.boxes, head.box_deltas, stage_factors(config.box_code_factors, stage)),
        rois.valid,
        labels,
        positive_threshold=config.cascade_ious[stage + 1],
        scale_factors=stage_factors(config.box_code_factors, stage + 1),
        pixel_offset=config.pixel_offset,
    )


def refinement(config: FasterRcnnConfig, limits: tf.Tensor) -> BoxRefinement:
    """Returns what turns boxes of a stage into RoIs of the next; `limits` as those of `BoxRefinement`."""
    return BoxRefinement(limits, config.pixel_offset, config.max_log_size)
