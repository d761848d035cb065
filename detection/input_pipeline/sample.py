"""`Sample`: one decoded image with its objects, the input and output of augmentation."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf


class Sample(NamedTuple):
    """One image with its objects.

    image: uint8 [H, W, 3].
    boxes_yxyx: float32 [N, 4], normalised to the image: 0 <= min <= max <= 1.
    classes: int32 [N], contiguous class index.
    masks: uint8 [N, H, W], 1 inside the object; None if the detector has no masks.
    keypoints: float32 [N, K, 3], (y, x, visibility): normalised to the image, COCO's
        0, 1 or 2; None if the detector has no keypoints.
    crowds: bool [N], the row is a region of several objects that are not annotated one by
        one; None: crowds are dropped.
    weights: float32 [N], >= 0, factor of the loss of each object; None: all are 1.
    maskless: bool [N], the object was annotated without a mask, so that its empty mask says nothing; None if the
        detector has no masks.
    """

    image: tf.Tensor
    boxes_yxyx: tf.Tensor
    classes: tf.Tensor
    masks: tf.Tensor | None = None
    keypoints: tf.Tensor | None = None
    crowds: tf.Tensor | None = None
    weights: tf.Tensor | None = None
    maskless: tf.Tensor | None = None


def select(sample: Sample, kept: tf.Tensor) -> Sample:
    """Keeps the objects with `kept`, bool [N], True, in order."""
    return _map_objects(lambda values: tf.boolean_mask(values[0], kept), [sample])


def join(image: tf.Tensor, samples: Sequence[Sample]) -> Sample:
    """Merges the objects of several samples, in order.

    Args:
        image: uint8 [H, W, 3], image of the result.
        samples: samples with the same fields; boxes, masks and keypoints refer to `image`.
    """
    return _map_objects(lambda values: tf.concat(values, axis=0), samples)._replace(image=image)


def keep_labelled(keypoints: tf.Tensor) -> tf.Tensor:
    """Zeroes the keypoints that are unlabelled (visibility 0) or outside 0 to 1.

    Args:
        keypoints: float32 [N, K, 3], (y, x, visibility).

    Returns:
        Same shape.
    """
    return tf.where(inside(keypoints)[..., tf.newaxis], keypoints, 0.0)


def inside(keypoints: tf.Tensor) -> tf.Tensor:
    """Marks the keypoints that are labelled and inside the image, 0 <= y, x <= 1: bool [N, K]."""
    within = tf.reduce_all((keypoints[..., :2] >= 0.0) & (keypoints[..., :2] <= 1.0), axis=-1)
    return within & (keypoints[..., 2] > 0.0)


def _map_objects(function: Callable[[Sequence[tf.Tensor]], tf.Tensor], samples: Sequence[Sample]) -> Sample:
    """Applies `function` to each per-object field that is not None."""
    first, columns = samples[0], list(zip(*samples, strict=True))
    objects = (None if first[number] is None else function(columns[number]) for number in range(1, len(first)))
    return Sample(first.image, *objects)
