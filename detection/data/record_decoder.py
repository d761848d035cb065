"""A serialised record (`tf.train.Example`) to pixels and boxes."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from detection.data.decode_image import decode_rgb
from schemas import features

_SPEC = {
    features.ENCODED: tf.io.FixedLenFeature([], tf.string),
    features.BBOX_YMIN: tf.io.VarLenFeature(tf.float32),
    features.BBOX_XMIN: tf.io.VarLenFeature(tf.float32),
    features.BBOX_YMAX: tf.io.VarLenFeature(tf.float32),
    features.BBOX_XMAX: tf.io.VarLenFeature(tf.float32),
    features.CLASS_LABEL: tf.io.VarLenFeature(tf.int64),
    features.IS_CROWD: tf.io.VarLenFeature(tf.int64),
}
_CORNERS = (features.BBOX_YMIN, features.BBOX_XMIN, features.BBOX_YMAX, features.BBOX_XMAX)


class Sample(NamedTuple):
    """One image with its objects.

    image: uint8 [H, W, 3].
    boxes_yxyx: float32 [N, 4], normalised to the image: 0 <= min <= max <= 1.
    classes: int32 [N], contiguous class index.
    masks: uint8 [N, H, W], 1 inside the object; None where the detector takes none.
    keypoints: float32 [N, K, 3], (y, x, visibility): normalised to the image, COCO's
        0, 1 or 2; None where the detector takes none.
    """

    image: tf.Tensor
    boxes_yxyx: tf.Tensor
    classes: tf.Tensor
    masks: tf.Tensor | None = None
    keypoints: tf.Tensor | None = None


def decode_record(serialized: tf.Tensor, *, category_ids: Sequence[int]) -> Sample:
    """Decodes one record for training; crowds are left out, they are no single objects.

    Args:
        serialized: string scalar, a `tf.train.Example` with the keys of `schemas.features`.
        category_ids: the data set's category ids in the order of the network's classes.

    Returns:
        The sample; objects keep the record's order.
    """
    parsed = tf.io.parse_single_example(serialized, _SPEC)
    dense = {key: tf.sparse.to_dense(value) for key, value in parsed.items() if key != features.ENCODED}
    boxes = tf.stack([dense[key] for key in _CORNERS], axis=-1)
    ids = tf.constant(category_ids, tf.int64)
    classes = tf.argmax(dense[features.CLASS_LABEL][:, tf.newaxis] == ids, axis=-1, output_type=tf.int32)
    crowd = dense[features.IS_CROWD]
    # Foreign records may lack the crowd list altogether.
    crowd = tf.concat([crowd, tf.zeros([tf.size(classes) - tf.size(crowd)], tf.int64)], axis=0)
    single = crowd == 0
    return Sample(
        decode_rgb(parsed[features.ENCODED]), tf.boolean_mask(boxes, single), tf.boolean_mask(classes, single)
    )
