"""Augmentations that erase pixels: cutout and GridMask.  The ground truth does not change.

Source of cutout: DeVries and Taylor (arXiv 1708.04552), with AutoAugment's sizes.
"""

import math

import tensorflow as tf

from detection.input_pipeline.augmentation.content import FILL, paste, pixel_box
from detection.input_pipeline.sample import Sample


def cutout(image: tf.Tensor, half_side: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Greys a square around a random pixel, clipped to the image.

    Args:
        image: uint8 [H, W, 3].
        half_side: scalar, half the square's side in pixels, rounded down.
        seed: int32 [2].

    Returns:
        uint8 [H, W, 3].
    """
    size = tf.shape(image)[:2]
    whole = tf.concat([[0, 0], size], axis=0)
    half = tf.cast(half_side, tf.int32)
    return _gray_around(image, whole, tf.stack([half, half]), seed)


def box_cutout(image: tf.Tensor, boxes_yxyx: tf.Tensor, fraction: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Greys a rectangle around a random pixel of a random box; does nothing without boxes.

    Args:
        image: uint8 [H, W, 3].
        boxes_yxyx: float32 [N, 4], normalised.
        fraction: scalar, sides of the rectangle as fractions of the box's.
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
    # box: int32 [4], first row, first column, one past the last row and column: the range of the centre.
    extent = tf.cast(box[2:] - box[:2], tf.float32)
    centre = box[:2] + tf.cast(tf.floor(tf.random.stateless_uniform([2], seed) * extent), tf.int32)
    size = tf.shape(image)[:2]
    first = tf.clip_by_value(centre - half_sides, 0, size)
    end = tf.clip_by_value(centre + half_sides, 0, size)
    gray = tf.fill(tf.concat([end - first, [3]], axis=0), tf.constant(FILL, image.dtype))
    return paste(image, gray, tf.concat([first, end], axis=0))


def random_grid_mask(sample: Sample, *, ratio: float = 0.6, rotation: float = 10.0, seed: tf.Tensor) -> Sample:
    """Blackens the squares of a randomly placed and rotated grid.

    Source: Chen et al., "GridMask Data Augmentation" (arXiv 2001.04086), with google/automl
    EfficientDet's sizes: the grid's period in pixels is drawn between 0.5 * height and 0.3 * width
    (in ascending order).  The rotation is drawn uniformly; google/automl multiplies 10 degrees by a
    normal draw with mean -1, and compares the probability 0.5 with a normal draw, which makes it 0.69.

    Args:
        sample: only its image changes; objects under a square stay in the ground truth.
        ratio: fraction of the period that is kept, per axis; (1 - ratio)^2 of the area
            becomes black.
        rotation: max rotation of the grid in degrees, in both directions.
        seed: int32 [2].

    Returns:
        The sample with a new image, uint8 [H, W, 3].
    """
    holes = _holes(tf.shape(sample.image), ratio=ratio, rotation=rotation, seed=seed)
    return sample._replace(image=tf.where(holes[:, :, tf.newaxis], tf.constant(0, tf.uint8), sample.image))


def _holes(shape: tf.Tensor, *, ratio: float, rotation: float, seed: tf.Tensor) -> tf.Tensor:
    # bool [H, W]: the squares of a grid rotated about the image's centre.
    height, width = tf.cast(shape[0], tf.float32), tf.cast(shape[1], tf.float32)
    draws = tf.random.stateless_uniform([4], seed)
    low, high = tf.minimum(0.5 * height, 0.3 * width), tf.maximum(0.5 * height, 0.3 * width)
    period = tf.maximum(tf.floor(low + draws[0] * (high - low)), 2.0)
    kept = tf.clip_by_value(tf.round(period * ratio), 1.0, period - 1.0)
    angle = (2.0 * draws[1] - 1.0) * rotation * math.pi / 180.0
    y = (tf.range(height) - (height - 1.0) / 2.0)[:, tf.newaxis]
    x = (tf.range(width) - (width - 1.0) / 2.0)[tf.newaxis]
    along = tf.cos(angle) * y + tf.sin(angle) * x + draws[2] * period
    across = tf.cos(angle) * x - tf.sin(angle) * y + draws[3] * period
    return (tf.math.floormod(along, period) >= kept) & (tf.math.floormod(across, period) >= kept)
