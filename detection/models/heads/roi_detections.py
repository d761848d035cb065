"""Post-processing of the box head's outputs: the best (RoI, class) pairs, decoded boxes, NMS."""

import tensorflow as tf

from detection.models.detector import NmsGraph
from detection.models.heads.postprocess import BoxPostprocess, best_classes, best_pairs, picked_detections, suppress
from detection.models.heads.roi_heads import BoxHeadOutputs
from detection.models.heads.rpn import Proposals
from detection.ops.boxes import ScaleFactors, area_yxyx, clip_yxyx, decode_yxyx
from detection.ops.nms import Picked
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

    Each class has its own box in each RoI; boxes are clipped to the image.

    Args:
        outputs: float32 outputs of the box head.
        proposals: the RoIs, R per image.
        image_info: sizes and scales of the images.
        options: options of post-processing; RoIs take the role of anchors.
        scale_factors: factors of the deltas (ty, tx, th, tw).
        pixel_offset: 1 if box corners are pixel indices, 0 if they are edges.
        max_log_size: upper limit of the size deltas.
        clip_after_nms: clip boxes after NMS, and drop those without an area then; False: clip them before.
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
    # With corners as pixel indices, the max of a box smaller than a pixel is below its min.
    clipped = tf.concat([clipped[..., :2], tf.maximum(clipped[..., :2], clipped[..., 2:])], axis=-1)
    compared = boxes if clip_after_nms else clipped
    picked = suppress(
        compared, candidates.logits, candidates.classes, image_info, options, num_classes=num_classes, graph=graph
    )
    boxes = clipped
    if clip_after_nms:
        picked = _with_area(picked, tf.gather(boxes, picked.indices, batch_dims=1))
    detections = picked_detections(picked, boxes, candidates.classes, image_info)
    counts = tf.range(options.max_detections) < picked.num[:, tf.newaxis]
    return detections, tf.where(counts[..., tf.newaxis], tf.gather(boxes, picked.indices, batch_dims=1), 0.0)


def _with_area(picked: Picked, boxes: tf.Tensor) -> Picked:
    """Drops picked boxes without an area; `boxes` are the picked ones, [B, M, 4]."""
    slots = tf.range(boxes.shape[1])
    kept = (slots < picked.num[:, tf.newaxis]) & (area_yxyx(boxes) > 0.0)
    num = tf.reduce_sum(tf.cast(kept, tf.int32), axis=1)
    # Keeps the order, with the dropped ones last.
    _, order = tf.math.top_k(tf.where(kept, boxes.shape[1] - slots, 0), boxes.shape[1])
    indices, scores = (tf.gather(values, order, batch_dims=1) for values in (picked.indices, picked.scores))
    valid = slots < num[:, tf.newaxis]
    return Picked(tf.where(valid, indices, 0), tf.where(valid, scores, 0.0), num)


def _deltas_of_class(deltas: tf.Tensor, rois: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
    """Gathers the deltas [B, K, 4] of RoIs and classes [B, K] from all deltas, [B, R, C + 1 or 1, 4]."""
    count, columns = deltas.shape[1:3]
    rows = rois if columns == 1 else rois * columns + classes + 1
    return tf.gather(tf.reshape(deltas, [-1, count * columns, 4]), rows, batch_dims=1)
