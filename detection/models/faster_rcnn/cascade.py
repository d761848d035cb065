"""Cascade of box heads: each head refines the boxes of the previous one, with a higher IoU for positives.

Cai and Vasconcelos, "Cascade R-CNN: Delving into High Quality Object Detection", 2018.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from detection.models.faster_rcnn.roi_heads import BoxHeadOutputs
from detection.models.faster_rcnn.rpn import Proposals
from detection.ops.boxes import ScaleFactors, clip_yxyx, decode_yxyx


class BoxRefinement(NamedTuple):
    """Turns the boxes of a stage into the RoIs of the next one.

    limits: float32 [B, 2] or [1, 2], (height, width) that boxes are clipped to, in pixels of the network input.
    pixel_offset: 1 if box corners are pixel indices, 0 if they are edges.
    max_log_size: upper limit of the size deltas.
    """

    limits: tf.Tensor
    pixel_offset: float
    max_log_size: float

    def __call__(self, rois: tf.Tensor, deltas: tf.Tensor, factors: ScaleFactors) -> tf.Tensor:
        """Decodes the class-agnostic deltas [B, R, 1, 4] of RoIs [B, R, 4]; without a gradient, float32 [B, R, 4]."""
        boxes = decode_yxyx(
            tf.stop_gradient(deltas[:, :, 0]),
            rois,
            scale_factors=factors,
            pixel_offset=self.pixel_offset,
            max_log_size=self.max_log_size,
        )
        limits = self.limits - self.pixel_offset
        return clip_yxyx(boxes, limits[:, :1], limits[:, 1:])


def stage_factors(factors: ScaleFactors, stage: int) -> ScaleFactors:
    """Scales the factors of the box deltas for a stage, counted from 0: errors become smaller in each stage.

    (10, 10, 5, 5), (20, 20, 10, 10), (30, 30, 15, 15) in the paper's code.
    """
    y, x, height, width = (factor * (stage + 1) for factor in factors)
    return y, x, height, width


def run_cascade(
    heads: Sequence[Callable[[tf.Tensor], BoxHeadOutputs]],
    pool: Callable[[tf.Tensor], tf.Tensor],
    proposals: Proposals,
    refine: BoxRefinement,
    factors: ScaleFactors,
) -> tuple[BoxHeadOutputs, Proposals]:
    """Runs all stages on proposals, for detection.

    All heads classify the RoIs of the last stage; their probabilities are averaged, as in the paper.

    Args:
        heads: the box heads; map features to float32 outputs.
        pool: maps RoIs [B, R, 4] to features.
        proposals: RoIs of the first stage.
        refine: decodes and clips boxes.
        factors: factors of the first stage's deltas.

    Returns:
        Logits of the mean probabilities and deltas of the last stage, and its RoIs.
    """
    boxes = proposals.boxes
    for stage, head in enumerate(heads[:-1]):
        boxes = refine(boxes, head(pool(boxes)).box_deltas, stage_factors(factors, stage))
    features = pool(boxes)
    outputs = [head(features) for head in heads]
    if len(heads) == 1:
        return outputs[0], proposals
    mean = tf.add_n([tf.nn.softmax(output.class_logits) for output in outputs]) / len(heads)
    # The softmax of these logits is `mean`; the lower bound avoids log(0).
    logits = tf.math.log(tf.maximum(mean, tf.float32.min))
    return BoxHeadOutputs(logits, outputs[-1].box_deltas), proposals._replace(boxes=boxes)
