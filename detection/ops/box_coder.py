"""Boxes as offsets from anchors: the Faster R-CNN code without scale factors.

With centres (y, x) and sizes (h, w) of a box, and those of its anchor with index a:
ty = (y - ya) / ha, tx = (x - xa) / wa, th = log(h / ha), tw = log(w / wa)
(Ren et al., "Faster R-CNN", 2015, eq. 2; corners are edges, not pixel indices).
"""

import tensorflow as tf

_EPSILON = 1e-8  # added to sizes before the logarithm
_MAX_LOG_SIZE = 10.0  # e^10 times the anchor: keeps an untrained network's boxes finite


def encode_yxyx(boxes: tf.Tensor, anchors: tf.Tensor) -> tf.Tensor:
    """Codes (ty, tx, th, tw) of boxes against anchors.

    Args:
        boxes: float [..., 4], (ymin, xmin, ymax, xmax), any unit.
        anchors: float, same layout and unit; broadcasts to `boxes`.
    """
    box_centre, box_size = _centre_and_size(boxes)
    anchor_centre, anchor_size = _centre_and_size(anchors)
    offset = (box_centre - anchor_centre) / (anchor_size + _EPSILON)
    log_size = tf.math.log((box_size + _EPSILON) / (anchor_size + _EPSILON))
    return tf.concat([offset, log_size], axis=-1)


def decode_yxyx(codes: tf.Tensor, anchors: tf.Tensor) -> tf.Tensor:
    """Boxes (ymin, xmin, ymax, xmax) [..., 4] in the anchors' unit: the inverse of `encode_yxyx`."""
    anchor_centre, anchor_size = _centre_and_size(anchors)
    centre = codes[..., :2] * anchor_size + anchor_centre
    size = tf.exp(tf.minimum(codes[..., 2:], _MAX_LOG_SIZE)) * anchor_size
    return tf.concat([centre - size / 2.0, centre + size / 2.0], axis=-1)


def _centre_and_size(boxes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    size = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + size / 2.0, size
