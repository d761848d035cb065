"""Decodes a serialized record (`tf.train.Example`) to pixels and objects."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from detection.images.decode import decode_rgb
from detection.input_pipeline.object_shapes import record_keypoints, record_masks, refuse_category
from detection.input_pipeline.sample import Sample, select
from schemas import features

_SPEC = {
    features.ENCODED: tf.io.FixedLenFeature([], tf.string),
    features.BBOX_YMIN: tf.io.VarLenFeature(tf.float32),
    features.BBOX_XMIN: tf.io.VarLenFeature(tf.float32),
    features.BBOX_YMAX: tf.io.VarLenFeature(tf.float32),
    features.BBOX_XMAX: tf.io.VarLenFeature(tf.float32),
    features.CLASS_LABEL: tf.io.VarLenFeature(tf.int64),
    features.IS_CROWD: tf.io.VarLenFeature(tf.int64),
    features.WEIGHT: tf.io.VarLenFeature(tf.float32),
}
_CORNERS = (features.BBOX_YMIN, features.BBOX_XMIN, features.BBOX_YMAX, features.BBOX_XMAX)


def num_keypoints(categories: Sequence[Mapping[str, Any]]) -> int:
    """Returns the max number of keypoints of a category; `keypoints` lists their names."""
    return max((len(category.get("keypoints") or ()) for category in categories), default=0)


def python_op(
    function: Callable[..., Any], inputs: Sequence[Any], dtype: tf.DType, shape: Sequence[int | None]
) -> tf.Tensor:
    """Calls a Python function and returns a tensor of a known shape.

    Args:
        function: takes NumPy arrays and, for scalar tensors, Python values; equal inputs must
            give equal results.
        inputs: its arguments.
        dtype: dtype of the result.
        shape: shape of the result, None for unknown sizes.

    Returns:
            The result.  An exception of the function becomes a `tf.errors.UnknownError` in the
            pipeline; `schemas.errors.find_user_error` finds the message in its text.
    """

    def call(*values: Any) -> Any:
        # In eager mode, scalars are arrays.
        return function(
            *(value.item() if isinstance(value, np.ndarray) and not value.ndim else value for value in values)
        )

    # Stateless: otherwise, op determinism would run the complete pipeline serially.
    return tf.ensure_shape(tf.numpy_function(call, inputs, dtype, stateful=False), shape)


def decode_record(
    serialized: tf.Tensor,
    *,
    category_ids: Sequence[int],
    with_masks: bool = False,
    num_keypoints: int = 0,
    with_crowds: bool = False,
    with_weights: bool = False,
) -> Sample:
    """Decodes one record for training.

    Args:
        serialized: string scalar, a `tf.train.Example` with the keys of `schemas.features`.
        category_ids: the data set's category ids in the order of the network's classes.
        with_masks: draw the objects' masks.
        num_keypoints: K, the max number per category; 0: no keypoints.
        with_crowds: keep crowds, marked; False: drop them.
        with_weights: read the objects' weights; missing ones are 1.

    Returns:
        The sample; objects are in the record's order.

    Raises:
        DataError: (through TensorFlow, when the graph runs) a category is not in
            `category_ids`, or a mask or keypoints cannot be read.
    """
    parsed = tf.io.parse_single_example(serialized, _SPEC)
    dense = {key: tf.sparse.to_dense(value) for key, value in parsed.items() if key != features.ENCODED}
    image = decode_rgb(parsed[features.ENCODED])
    classes = _classes(serialized, dense[features.CLASS_LABEL], category_ids)
    crowds = _filled(dense[features.IS_CROWD], classes, 0) != 0
    masks = _masks(serialized, image) if with_masks else None
    sample = Sample(
        image,
        tf.stack([dense[key] for key in _CORNERS], axis=-1),
        classes,
        masks=masks,
        keypoints=_keypoints(serialized, image, num_keypoints) if num_keypoints else None,
        weights=_filled(dense[features.WEIGHT], classes, 1) if with_weights else None,
        maskless=None if masks is None else ~tf.reduce_any(masks > 0, axis=[1, 2]),
    )
    return sample._replace(crowds=crowds) if with_crowds else select(sample, ~crowds)


def _filled(values: tf.Tensor, classes: tf.Tensor, value: int) -> tf.Tensor:
    # Records of other tools may have no list, or a shorter one.
    missing = tf.fill([tf.size(classes) - tf.size(values)], tf.cast(value, values.dtype))
    return tf.concat([values, missing], axis=0)


def _classes(serialized: tf.Tensor, labels: tf.Tensor, category_ids: Sequence[int]) -> tf.Tensor:
    """Returns the class of each label by binary search, which takes less memory than comparing all pairs."""
    order = np.argsort(category_ids).astype(np.int32)
    ids = np.asarray(category_ids, np.int64)[order]
    places = tf.minimum(tf.searchsorted(ids, labels), len(ids) - 1)
    return tf.cond(
        tf.reduce_all(tf.gather(ids, places) == labels),
        lambda: tf.gather(order, places),
        lambda: python_op(refuse_category, [serialized, tf.constant(category_ids, tf.int64)], tf.int32, [None]),
    )


def _masks(serialized: tf.Tensor, image: tf.Tensor) -> tf.Tensor:
    size = tf.shape(image)
    return python_op(record_masks, [serialized, size[0], size[1]], tf.uint8, [None, None, None])


def _keypoints(serialized: tf.Tensor, image: tf.Tensor, num_keypoints: int) -> tf.Tensor:
    size = tf.shape(image)
    inputs = [serialized, size[0], size[1], tf.constant(num_keypoints)]
    return python_op(record_keypoints, inputs, tf.float32, [None, num_keypoints, 3])
