"""Augmentations that combine images: mosaic of four, mixup of two."""

import tensorflow as tf

from detection.input_pipeline.augmentation.resizing import pad, resize_sample
from detection.input_pipeline.sample import Sample, join


def mosaic(
    *samples: Sample, image_size: tuple[int, int] = (680, 680), min_share: float = 0.25, seed: tf.Tensor
) -> Sample:
    """Puts four images into the quarters around a random point, each resized to fill its quarter.

    Source: google/automl EfficientDet's `aug/mosaic.py`, with its constants; its code is unused, and
    confuses rows and columns.

    Args:
        *samples: four samples: upper left, upper right, lower left, lower right.
        image_size: (height, width) of the result in pixels.
        min_share: min fraction of height and width per image, 0 < min_share <= 0.5.
        seed: int32 [2].
    """
    size = tf.constant(image_size, tf.float32)
    draws = tf.random.stateless_uniform([2], seed, minval=min_share, maxval=1.0 - min_share)
    cut = tf.clip_by_value(tf.round(draws * size), 1.0, size - 1.0)
    quarters = []
    for number, sample in enumerate(samples):
        lower = tf.constant([number // 2, number % 2], tf.float32)
        quarters.append(_place(sample, lower * cut, tf.where(lower > 0.0, size - cut, cut), image_size))
    upper = tf.concat([quarters[0].image, quarters[1].image], axis=1)
    lower = tf.concat([quarters[2].image, quarters[3].image], axis=1)
    image = tf.ensure_shape(tf.concat([upper, lower], axis=0), [*image_size, 3])
    return join(image, quarters)


def _place(sample: Sample, corner: tf.Tensor, size: tf.Tensor, image_size: tuple[int, int]) -> Sample:
    """Resizes only the image to `size`; its objects move to their positions in an image of `image_size` pixels."""
    resized = resize_sample(sample, tf.cast(size, tf.int32))
    return pad(resized, tf.cast(corner, tf.int32), tf.constant(image_size))._replace(image=resized.image)


def mixup(first: Sample, second: Sample, *, alpha: float = 1.5, seed: tf.Tensor) -> Sample:
    """Blends two images with the weights r and 1 - r; keeps the objects of both.

    r follows the beta distribution (alpha, alpha).  The images keep their size and are aligned at
    the upper left corner; the smaller one is padded with black.

    Source: Zhang et al., "Bag of Freebies for Training Object Detection Neural
    Networks", 2019, which found alpha 1.5 best.

    Args:
        first: image and objects.
        second: image and objects.
        alpha: > 0; the larger, the closer r is to one half.
        seed: int32 [2].
    """
    gammas = tf.random.stateless_gamma([2], seed, alpha)
    ratio = tf.math.divide_no_nan(gammas[0], gammas[0] + gammas[1])
    size = tf.maximum(tf.shape(first.image), tf.shape(second.image))[:2]
    first, second = (pad(sample, tf.zeros([2], tf.int32), size) for sample in (first, second))
    mixed = ratio * tf.cast(first.image, tf.float32) + (1.0 - ratio) * tf.cast(second.image, tf.float32)
    return join(tf.cast(tf.round(mixed), tf.uint8), [first, second])
