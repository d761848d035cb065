"""Post-processing that anchor-based detectors share: options, best candidates, non-maximum suppression."""

from typing import NamedTuple

import tensorflow as tf
from pydantic import Field, PositiveInt

from detection.models.detector import MaskOutput
from detection.ops.boxes import clip_yxyx
from detection.ops.nms import hard_nms
from detection.types import Detections, ImageInfo
from schemas.config.section import Section


class BoxPostprocess(Section):
    """Options from raw outputs to boxes: the keys below `model.postprocess` of a detector of boxes."""

    score_threshold: float = Field(0.001, ge=0.0, le=1.0, description="detections have a score above this")
    iou_threshold: float = Field(0.5, ge=0.0, le=1.0, description="of hard NMS, within a class")
    max_detections: PositiveInt = Field(100, le=100_000, description="max detections per image")
    pre_nms_top_k: PositiveInt = Field(1000, description="best (anchor, class) pairs that enter NMS")


class MaskPostprocess(BoxPostprocess):
    """The options of a detector with masks."""

    mask_output: MaskOutput = Field(
        "crops",
        description="masks of the exported model: `crops`, probabilities within each box (detection_masks float32 "
        "[B, N, 28, 28]); or `pasted`, 0 and 1 for every pixel of the image (uint8 [B, N, H, W], padded to the "
        "largest image of the batch)",
    )


class Candidates(NamedTuple):
    """The best (anchor, class) pairs, best first.

    logits: float32 [B, K].
    anchors: int32 [B, K].
    classes: int32 [B, K].
    """

    logits: tf.Tensor
    anchors: tf.Tensor
    classes: tf.Tensor


def top_candidates(logits: tf.Tensor, count: int) -> Candidates:
    """Returns the `count` best pairs of each image.

    Only anchors whose best class is among the `count` best can hold such a pair, so most
    anchors are dropped before pairs are compared.

    Args:
        logits: float32 [B, A, C].
        count: K; fewer if there are fewer pairs.
    """
    anchors, classes = logits.shape[1:]
    _, best_anchors = tf.math.top_k(tf.reduce_max(logits, axis=2), min(count, anchors))
    pairs = tf.gather(logits, best_anchors, batch_dims=1)
    pairs = tf.reshape(pairs, [-1, min(count, anchors) * classes])
    values, places = tf.math.top_k(pairs, min(count, pairs.shape[1]))
    return Candidates(values, tf.gather(best_anchors, places // classes, batch_dims=1), places % classes)


def suppress(
    boxes: tf.Tensor, scores: tf.Tensor, classes: tf.Tensor, image_info: ImageInfo, options: BoxPostprocess
) -> Detections:
    """Applies hard NMS within each class, and normalises boxes to the original image.

    Args:
        boxes: float32 [B, K, 4], (ymin, xmin, ymax, xmax), pixels of the network input.
        scores: float32 [B, K].
        classes: int32 [B, K].
        image_info: sizes and scales of the images.
        options: options of post-processing.
    """
    picked, num = hard_nms(
        boxes,
        scores,
        classes,
        iou_threshold=options.iou_threshold,
        score_threshold=options.score_threshold,
        max_outputs=options.max_detections,
    )
    counts = tf.range(options.max_detections) < num[:, tf.newaxis]
    normalised = normalize_boxes(tf.gather(boxes, picked, batch_dims=1), image_info)
    return Detections(
        boxes=tf.where(counts[..., tf.newaxis], clip_yxyx(normalised, 1.0, 1.0), 0.0),
        scores=tf.where(counts, tf.gather(scores, picked, batch_dims=1), 0.0),
        classes=tf.where(counts, tf.gather(classes, picked, batch_dims=1), 0),
        num=num,
    )


def normalize_boxes(boxes: tf.Tensor, image_info: ImageInfo) -> tf.Tensor:
    """Converts [B, K, 4], (ymin, xmin, ymax, xmax), from pixels of the input to fractions of the original image."""
    factor = 1.0 / (image_info.scale * image_info.original_size)
    return boxes * tf.concat([factor, factor], axis=1)[:, tf.newaxis]
