"""Hard example mining: the losses count only the anchors with the largest loss.

Shrivastava et al., "Training Region-based Object Detectors with Online Hard Example Mining", 2016; Liu et al., "SSD",
2016, section 2.2.
"""

from typing import Literal

import tensorflow as tf
from pydantic import Field, NonNegativeInt, PositiveInt

from detection.ops.nms import hard_nms
from schemas.config.section import Section


class HardExampleMiner(Section):
    """Selection of the anchors whose losses count; keys as in the TF Object Detection API."""

    num_hard_examples: PositiveInt | None = Field(64, description="max anchors per image; none: all")
    iou_threshold: float = Field(
        0.7, ge=0.0, le=1.0, description="an anchor with a smaller loss is dropped above this IoU of the detected boxes"
    )
    loss_type: Literal["both", "classification", "localization"] = Field(
        "both", description="loss by which anchors are ordered; both: their weighted sum"
    )
    max_negatives_per_positive: float = Field(
        0.0, ge=0.0, description="max ratio of background to positive anchors among the selected; 0: no limit"
    )
    min_negatives_per_image: NonNegativeInt = Field(0, description="background anchors that are kept at any ratio")


def keep_hard_examples(
    class_losses: tf.Tensor,
    box_losses: tf.Tensor,
    boxes: tf.Tensor,
    *,
    positive: tf.Tensor,
    ignored: tf.Tensor | None,
    options: HardExampleMiner,
) -> tf.Tensor:
    """Marks the anchors whose losses count: bool [B, A].

    Non-maximum suppression by the losses selects anchors; with a limit of negatives, all selected positive anchors
    and the background anchors with the largest losses remain.

    Source: `HardExampleMiner` of the TF Object Detection API.

    Args:
        class_losses: float32 [B, A], weighted, >= 0.
        box_losses: float32 [B, A], weighted, >= 0.
        boxes: float32 [B, A, 4], detected boxes, (ymin, xmin, ymax, xmax).
        positive: bool [B, A], anchors with an object.
        ignored: bool [B, A], anchors that are neither positive nor background; None: none is.
        options: which loss, how many.
    """
    count = boxes.shape[1]
    losses = {"both": class_losses + box_losses, "classification": class_losses, "localization": box_losses}[
        options.loss_type
    ]
    sorted_losses, order = tf.math.top_k(tf.stop_gradient(losses), count)
    picked = hard_nms(
        tf.gather(tf.stop_gradient(boxes), order, batch_dims=1),
        sorted_losses,
        None,
        iou_threshold=options.iou_threshold,
        score_threshold=-0.5,  # losses of 0 count, padding has -1
        max_outputs=min(options.num_hard_examples or count, count),
    )
    anchors = tf.gather(order, picked.indices, batch_dims=1)
    kept = tf.range(picked.indices.shape[1]) < picked.num[:, tf.newaxis]
    if options.max_negatives_per_positive:
        is_positive = tf.gather(positive, anchors, batch_dims=1) & kept
        negative = ~positive if ignored is None else ~(positive | ignored)
        is_negative = tf.gather(negative, anchors, batch_dims=1) & kept
        positives = tf.reduce_sum(tf.cast(is_positive, tf.float32), axis=1, keepdims=True)
        limit = tf.cast(options.max_negatives_per_positive * positives, tf.int32)
        limit = tf.maximum(limit, options.min_negatives_per_image)
        kept = is_positive | (is_negative & (tf.cumsum(tf.cast(is_negative, tf.int32), axis=1) <= limit))
    rows = tf.broadcast_to(tf.range(tf.shape(anchors)[0])[:, tf.newaxis], tf.shape(anchors))
    marks = tf.scatter_nd(tf.stack([rows, anchors], axis=-1), tf.cast(kept, tf.int32), tf.shape(positive))
    return marks > 0
