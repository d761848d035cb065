"""Cutout: a mid-grey rectangle at a random place of an image.

Source: DeVries and Taylor (arXiv 1708.04552), with AutoAugment's sizes.  The ground
truth stays as it is.
"""

import tensorflow as tf

from detection.input_pipeline.augmentation.affine import FILL
from detection.input_pipeline.augmentation.box_content import paste, pixel_box


def cutout(image: tf.Tensor, half_side: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Greys a square about a random pixel, cut at the image's border.

    Args:
        image: uint8 [H, W, 3].
        half_side: half the square's side in pixels, rounded down; scalar.
        seed: int32 [2].

    Returns:
        uint8 [H, W, 3].
    """
    size = tf.shape(image)[:2]
    whole = tf.concat([[0, 0], size], axis=0)
    half = tf.cast(half_side, tf.int32)
    return _gray_around(image, whole, tf.stack([half, half]), seed)


def box_cutout(image: tf.Tensor, boxes_yxyx: tf.Tensor, fraction: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Greys a rectangle about a random pixel of one box, drawn from all; nothing where there is none.

    Args:
        image: uint8 [H, W, 3].
        boxes_yxyx: float32 [N, 4], normalised.
        fraction: the rectangle's sides as parts of the box's; scalar.
        seed: int32 [2].

    Returns:
        uint8 [H, W, 3].
    """
    box_seed, place_seed = tf.unstack(tf.random.split(seed, 2))
    count = tf.shape(boxes_yxyx)[0]

    def cut() -> tf.Tensor:
        number = tf.random.stateless_uniform([], box_seed, maxval=count, dtype=tf.int32)
        box = pixel_box(boxes_yxyx[number], image)
        half_sides = tf.cast(fraction * tf.cast(box[2:] - box[:2], tf.float32) / 2.0, tf.int32)
        return _gray_around(image, box, half_sides, place_seed)

    return tf.cond(count > 0, cut, lambda: image)


def _gray_around(image: tf.Tensor, box: tf.Tensor, half_sides: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    # box: int32 [4], first row, first column, one past the last row and column: where the centre may be.
    extent = tf.cast(box[2:] - box[:2], tf.float32)
    centre = box[:2] + tf.cast(tf.floor(tf.random.stateless_uniform([2], seed) * extent), tf.int32)
    size = tf.shape(image)[:2]
    first = tf.clip_by_value(centre - half_sides, 0, size)
    end = tf.clip_by_value(centre + half_sides, 0, size)
    gray = tf.fill(tf.concat([end - first, [3]], axis=0), tf.constant(FILL, image.dtype))
    return paste(image, gray, tf.concat([first, end], axis=0))
