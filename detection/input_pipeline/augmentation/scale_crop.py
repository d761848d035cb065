"""Scale jitter: the image at a random scale, and a random window of it."""

import tensorflow as tf

from detection.input_pipeline.fit import resize
from detection.input_pipeline.input_sample import InputSample, in_window
from detection.input_pipeline.sample import Sample


def random_scale_crop(
    sample: Sample,
    *,
    image_size: tuple[int, int],
    scale_min: float,
    scale_max: float,
    mask_size: int = 0,
    seed: tf.Tensor,
) -> InputSample:
    """Resizes to a random multiple of the fitting scale and crops a random window of the input's size.

    Source: google/automl EfficientDet's scale jitter.  For objects see `in_window`.

    Args:
        sample: image and objects.
        image_size: (height, width) of the input in pixels.
        scale_min: smallest multiple; 1 fits the image into the input.
        scale_max: largest multiple, >= scale_min.
        mask_size: side of the mask crops, pixels.
        seed: int32 [2].

    Returns:
        The window, h <= height and w <= width, pixel values 0 to 255.
    """
    target = tf.constant(image_size, tf.float32)
    factors = tf.random.stateless_uniform([3], seed)
    jitter = scale_min + factors[0] * (scale_max - scale_min)
    fitting = tf.reduce_min(target / tf.cast(tf.shape(sample.image)[:2], tf.float32))
    image = resize(sample.image, fitting * jitter)
    size = tf.cast(tf.shape(image)[:2], tf.float32)
    offset = tf.floor(factors[1:] * (tf.maximum(size - target, 0.0) + 1.0 - 1e-4))
    corner = tf.cast(offset, tf.int32)
    pixels = image[corner[0] : corner[0] + image_size[0], corner[1] : corner[1] + image_size[1]]
    window = tf.cast(tf.shape(pixels)[:2], tf.float32)
    return in_window(sample, pixels, size=size, offset=offset, window=window, mask_size=mask_size)
