"""Boxes as (ymin, xmin, ymax, xmax): areas, overlaps, clipping, and encoding as deltas from anchors.

The encoding is that of Faster R-CNN.  With the centre (y, x) and size (h, w) of a box, and the
centre (ya, xa) and size (ha, wa) of its anchor:
ty = (y - ya) / ha, tx = (x - xa) / wa, th = log(h / ha), tw = log(w / wa)
(Ren et al., "Faster R-CNN", 2015, eq. 2), times four scale factors, by default 1.  Corners
are edges, or optionally indices of the first and last pixel.
"""

import tensorflow as tf

ScaleFactors = tuple[float, float, float, float]  # factors of (ty, tx, th, tw)


def area_yxyx(boxes: tf.Tensor) -> tf.Tensor:
    """Returns areas [...] of boxes [..., 4]; 0 for inverted boxes."""
    height = tf.maximum(boxes[..., 2] - boxes[..., 0], 0.0)
    width = tf.maximum(boxes[..., 3] - boxes[..., 1], 0.0)
    return height * width


def intersection_yxyx(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Returns intersection areas [...] of boxes whose shapes [..., 4] broadcast."""
    height = tf.minimum(first[..., 2], second[..., 2]) - tf.maximum(first[..., 0], second[..., 0])
    width = tf.minimum(first[..., 3], second[..., 3]) - tf.maximum(first[..., 1], second[..., 1])
    return tf.maximum(height, 0.0) * tf.maximum(width, 0.0)


def iou_yxyx(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Returns intersection over union [...] of boxes whose shapes [..., 4] broadcast; 0 for an empty union."""
    overlap = intersection_yxyx(first, second)
    return tf.math.divide_no_nan(overlap, area_yxyx(first) + area_yxyx(second) - overlap)


def pairwise_iou_yxyx(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Returns intersection over union [..., N, M] of boxes [..., N, 4] and [..., M, 4]."""
    return iou_yxyx(first[..., :, tf.newaxis, :], second[..., tf.newaxis, :, :])


def clip_yxyx(boxes: tf.Tensor, height: tf.Tensor | float, width: tf.Tensor | float) -> tf.Tensor:
    """Clips boxes [..., 4] to 0 <= y <= height, 0 <= x <= width.

    Args:
        boxes: float [..., 4].
        height: scalar, or a tensor that broadcasts to [...].
        width: scalar, or a tensor that broadcasts to [...].
    """
    limits = tf.stack([height, width, height, width], axis=-1)
    return tf.clip_by_value(boxes, 0.0, tf.cast(limits, boxes.dtype))


def enclosing_yxyx(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Returns the smallest boxes [..., 4] that enclose both of two boxes whose shapes [..., 4] broadcast."""
    low = tf.minimum(first[..., :2], second[..., :2])
    return tf.concat([low, tf.maximum(first[..., 2:], second[..., 2:])], axis=-1)


_EPSILON = 1e-8  # added to sizes before the logarithm
_MAX_LOG_SIZE = 10.0  # e^10 times the anchor: keeps the boxes of an untrained network finite


def encode_yxyx(
    boxes: tf.Tensor, anchors: tf.Tensor, *, scale_factors: ScaleFactors | None = None, pixel_offset: float = 0.0
) -> tf.Tensor:
    """Encodes boxes as deltas (ty, tx, th, tw) from anchors.

    Args:
        boxes: float [..., 4], (ymin, xmin, ymax, xmax), any unit.
        anchors: float, same layout and unit; broadcasts to `boxes`.
        scale_factors: factors of the deltas, > 0; None: 1.  Faster R-CNN's second stage uses
            (10, 10, 5, 5).
        pixel_offset: added to (ymax, xmax) of boxes and anchors.  1 for corners as pixel indices,
            size = max - min + 1, as in TPU Mask R-CNN.

    Returns:
        float [..., 4].
    """
    box_centre, box_size = centre_and_size(_with_edges(boxes, pixel_offset))
    anchor_centre, anchor_size = centre_and_size(_with_edges(anchors, pixel_offset))
    offset = (box_centre - anchor_centre) / (anchor_size + _EPSILON)
    log_size = tf.math.log((box_size + _EPSILON) / (anchor_size + _EPSILON))
    deltas = tf.concat([offset, log_size], axis=-1)
    return deltas if scale_factors is None else deltas * tf.constant(scale_factors, deltas.dtype)


def decode_yxyx(
    deltas: tf.Tensor,
    anchors: tf.Tensor,
    *,
    scale_factors: ScaleFactors | None = None,
    pixel_offset: float = 0.0,
    max_log_size: float = _MAX_LOG_SIZE,
) -> tf.Tensor:
    """Decodes deltas to boxes: the inverse of `encode_yxyx`.

    Args:
        deltas: float [..., 4], (ty, tx, th, tw).
        anchors: float, (ymin, xmin, ymax, xmax), any unit; broadcasts to `deltas`.
        scale_factors: factors by which the deltas were multiplied, > 0; None: 1.
        pixel_offset: 1 if corners are pixel indices, 0 if they are edges.
        max_log_size: upper limit of (th, tw) after division by the scale factors.

    Returns:
        float [..., 4], (ymin, xmin, ymax, xmax) in the anchors' unit.
    """
    if scale_factors is not None:
        deltas = deltas / tf.constant(scale_factors, deltas.dtype)
    anchor_centre, anchor_size = centre_and_size(_with_edges(anchors, pixel_offset))
    centre = deltas[..., :2] * anchor_size + anchor_centre
    size = tf.exp(tf.minimum(deltas[..., 2:], max_log_size)) * anchor_size
    return _with_edges(tf.concat([centre - size / 2.0, centre + size / 2.0], axis=-1), -pixel_offset)


def _with_edges(boxes: tf.Tensor, pixel_offset: float) -> tf.Tensor:
    """Adds an offset to (ymax, xmax) of boxes [..., 4]."""
    return boxes if pixel_offset == 0.0 else boxes + tf.constant([0.0, 0.0, pixel_offset, pixel_offset], boxes.dtype)


def centre_and_size(boxes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns centres (y, x) and sizes (height, width), each [..., 2], of boxes [..., 4]."""
    size = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + size / 2.0, size
