"""Fitting an image of any size into the network's fixed input."""

from collections.abc import Sequence

import tensorflow as tf

from detection.types import ImageInfo


def normalize(image: tf.Tensor, *, mean: Sequence[float], std: Sequence[float]) -> tf.Tensor:
    """(image - mean) / std per RGB channel.

    Args:
        image: float32 or uint8 [..., W, 3], 0 to 255.
        mean: three values on the same scale.
        std: three values on the same scale.

    Returns:
        float32, same shape.
    """
    # Channel by channel, TensorFlow is several times slower on CPUs than row by row.
    shape = tf.shape(image)
    rows = tf.reshape(tf.cast(image, tf.float32), tf.concat([shape[:-2], [3 * shape[-2]]], axis=0))
    means, stds = (tf.tile(tf.constant(values, tf.float32), [shape[-2]]) for values in (mean, std))
    return tf.reshape((rows - means) / stds, shape)


def fit_to_input(
    image: tf.Tensor, *, image_size: tuple[int, int], mean: Sequence[float], std: Sequence[float]
) -> tuple[tf.Tensor, ImageInfo]:
    """Scales an image to fit, keeping its aspect, normalises it and pads below and to the right with 0.

    Source: google/automl EfficientDet's input rule (scale = the smaller ratio, sizes
    rounded down).  The scale returned is the ratio after rounding, per axis, so that
    boxes map back exactly.

    Args:
        image: uint8 [H, W, 3].
        image_size: (height, width) of the input in pixels.
        mean: of the pixel values, RGB.
        std: of the pixel values, RGB.

    Returns:
        float32 [height, width, 3] and its `ImageInfo` without batch axis.
    """
    size = tf.cast(tf.shape(image)[:2], tf.float32)
    target = tf.constant(image_size, tf.float32)
    resized = resize(image, tf.reduce_min(target / size))
    scale = tf.cast(tf.shape(resized)[:2], tf.float32) / size
    padded = pad_to(normalize(resized, mean=mean, std=std), image_size)
    return padded, ImageInfo(original_size=size, scale=scale)


def resize(image: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """Bilinear resize by one factor; sizes are rounded down and at least one pixel.

    Args:
        image: [H, W, 3], any number type.
        scale: float32 scalar.

    Returns:
        float32 [h, w, 3].
    """
    size = tf.cast(tf.shape(image)[:2], tf.float32)
    # 640 * (512 / 640) is a hair below 512 in float32; a truncated 511 would be wrong.
    new_size = tf.maximum(tf.cast(tf.floor(size * scale + 1e-3), tf.int32), 1)
    return tf.image.resize(image, new_size)


def pad_to(image: tf.Tensor, image_size: tuple[int, int]) -> tf.Tensor:
    """Pads [h, w, 3] with zeros below and to the right to the static [height, width, 3]."""
    height, width = image_size
    below = height - tf.shape(image)[0]
    right = width - tf.shape(image)[1]
    padded = tf.pad(image, [[0, below], [0, right], [0, 0]])
    return tf.ensure_shape(padded, [height, width, 3])
