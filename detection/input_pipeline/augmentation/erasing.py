"""Augmentations that erase or disturb pixels: cutout, GridMask, patches, noise.  Objects do not change.

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


def random_black_patches(
    sample: Sample,
    *,
    max_black_patches: int = 10,
    probability: float = 0.5,
    size_to_image_ratio: float = 0.1,
    seed: tf.Tensor,
) -> Sample:
    """Blackens squares inside the image (TF Object Detection API).

    Args:
        sample: only its image changes.
        max_black_patches: number of squares to draw.
        probability: probability of each of them.
        size_to_image_ratio: side of the squares, as a fraction of the image's short side.
        seed: int32 [2].
    """
    draws = tf.random.stateless_uniform([3, max_black_patches, 1, 1], seed)
    height, width = tf.unstack(tf.shape(sample.image)[:2])
    side = tf.cast(size_to_image_ratio * tf.cast(tf.minimum(height, width), tf.float32), tf.int32)
    top, left = (
        tf.cast(draw * tf.cast(length - side + 1, tf.float32), tf.int32)
        for draw, length in ((draws[0], height), (draws[1], width))
    )
    patches = _inside_square(sample.image, top, left, side)
    black = tf.reduce_any(patches & (draws[2] < probability), axis=0)
    return sample._replace(image=tf.where(black[..., tf.newaxis], tf.constant(0, tf.uint8), sample.image))


def random_patch_gaussian(
    sample: Sample,
    *,
    min_patch_size: int = 1,
    max_patch_size: int = 250,
    min_gaussian_stddev: float = 0.0,
    max_gaussian_stddev: float = 1.0,
    seed: tf.Tensor,
) -> Sample:
    """Adds normal noise to a square around a random pixel, clipped to the image.

    Source: Lopes et al., "Improving Robustness Without Sacrificing Accuracy with Patch Gaussian
    Augmentation", 2019, as in the TF Object Detection API.

    Args:
        sample: only its image changes.
        min_patch_size: min side of the square in pixels.
        max_patch_size: max side.
        min_gaussian_stddev: min standard deviation, as a fraction of 255.
        max_gaussian_stddev: max standard deviation.
        seed: int32 [2].
    """
    size_seed, place_seed, noise_seed = tf.unstack(tf.random.split(seed, 3))
    shape = tf.shape(sample.image)
    side = tf.random.stateless_uniform([], size_seed, min_patch_size, max_patch_size + 1, tf.int32)
    draws = tf.random.stateless_uniform([3], place_seed)
    first = tf.cast(draws[:2] * tf.cast(shape[:2], tf.float32), tf.int32) - side // 2
    stddev = 255.0 * (min_gaussian_stddev + draws[2] * (max_gaussian_stddev - min_gaussian_stddev))
    patch = _inside_square(sample.image, first[0], first[1], side)
    noisy = tf.cast(sample.image, tf.float32) + stddev * tf.random.stateless_normal(shape, noise_seed)
    noisy = tf.cast(tf.round(tf.clip_by_value(noisy, 0.0, 255.0)), tf.uint8)
    return sample._replace(image=tf.where(patch[..., tf.newaxis], noisy, sample.image))


def _inside_square(image: tf.Tensor, top: tf.Tensor, left: tf.Tensor, side: tf.Tensor) -> tf.Tensor:
    """Marks the pixels of an image [H, W, 3] inside squares, bool [..., H, W]; `top`, `left`: int32 [..., 1, 1]."""
    rows, columns = tf.range(tf.shape(image)[0])[:, tf.newaxis], tf.range(tf.shape(image)[1])
    return (rows >= top) & (rows < top + side) & (columns >= left) & (columns < left + side)
