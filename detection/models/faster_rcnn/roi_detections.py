"""Post-processing of the box head's outputs: the best (RoI, class) pairs, decoded boxes, NMS."""

import tensorflow as tf

from detection.models.detector import NmsGraph
from detection.models.faster_rcnn.roi_heads import BoxHeadOutputs
from detection.models.faster_rcnn.rpn import Proposals
from detection.models.heads.postprocess import (
    BoxPostprocess,
    best_classes,
    best_pairs,
    clipped_to_image,
    picked_detections,
    suppress,
)
from detection.ops.boxes import ScaleFactors, clip_yxyx, decode_yxyx
from detection.types import Detections, ImageInfo


def detect_in_rois(
    outputs: BoxHeadOutputs,
    proposals: Proposals,
    image_info: ImageInfo,
    options: BoxPostprocess,
    *,
    scale_factors: ScaleFactors,
    pixel_offset: float,
    max_log_size: float,
    clip_after_nms: bool = False,
    graph: NmsGraph = "windows",
) -> tuple[Detections, tf.Tensor]:
    """Turns the box head's outputs into detections without masks.

    Each class has its own box in each RoI; boxes are clipped to the image, and those without an area then are dropped.

    Args:
        outputs: float32 outputs of the box head.
        proposals: the RoIs, R per image.
        image_info: sizes and scales of the images.
        options: options of post-processing; RoIs take the role of anchors.
        scale_factors: factors of the deltas (ty, tx, th, tw).
        pixel_offset: 1 if box corners are pixel indices, 0 if they are edges.
        max_log_size: upper limit of the size deltas.
        clip_after_nms: clip boxes after NMS; False: before.
        graph: form of the NMS graph, as in `Detector.nms_graph`; all pairs are tried at once.

    Returns:
        The detections, and their boxes in pixels of the network input: float32 [B, N, 4], 0 for padding.
    """
    # Padding gets a score of 0, which is never above the threshold.
    valid = tf.cast(proposals.valid, tf.float32)[..., tf.newaxis]
    scores = tf.nn.softmax(outputs.class_logits)[..., 1:] * valid
    best = tf.reduce_max(scores, axis=2)
    rois, num_classes = scores.shape[1:]
    pairs = rois * (1 if options.one_class_per_anchor else num_classes)
    select = best_classes if options.one_class_per_anchor else best_pairs
    candidates = select([scores], best, min(options.pre_nms_top_k, pairs))
    boxes = decode_yxyx(
        _deltas_of_class(outputs.box_deltas, candidates.anchors, candidates.classes),
        tf.gather(proposals.boxes, candidates.anchors, batch_dims=1),
        scale_factors=scale_factors,
        pixel_offset=pixel_offset,
        max_log_size=max_log_size,
    )
    limits = image_info.original_size * image_info.scale - pixel_offset
    clipped = clip_yxyx(boxes, limits[:, :1], limits[:, 1:])
    normalised = clipped_to_image(clipped, image_info)
    picked = suppress(
        boxes if clip_after_nms else clipped,
        normalised,
        candidates.logits,
        candidates.classes,
        options,
        image_info=image_info,
        num_classes=num_classes,
        graph=graph,
    )
    detections = picked_detections(picked, normalised, candidates.classes)
    counts = tf.range(options.max_detections) < picked.num[:, tf.newaxis]
    return detections, tf.where(counts[..., tf.newaxis], tf.gather(clipped, picked.indices, batch_dims=1), 0.0)


def _deltas_of_class(deltas: tf.Tensor, rois: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
    """Gathers the deltas [B, K, 4] of RoIs and classes [B, K] from all deltas, [B, R, C + 1 or 1, 4]."""
    count, columns = deltas.shape[1:3]
    rows = rois if columns == 1 else rois * columns + classes + 1
    return tf.gather(tf.reshape(deltas, [-1, count * columns, 4]), rows, batch_dims=1)
