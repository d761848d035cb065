"""Decodes encoded images to RGB pixels, in the same way for training, evaluation and serving."""

import numpy as np
import tensorflow as tf


def decode_rgb(encoded: tf.Tensor) -> tf.Tensor:
    """Decodes a JPEG, PNG, GIF (first frame) or BMP.

    JPEGs use the accurate integer DCT, which equals Pillow bit for bit; the default DCT is off by up
    to 22 levels.  EXIF orientation is not applied: COCO's sizes and boxes refer to the stored
    pixels.

    Args:
        encoded: string scalar, the image file's bytes.

    Returns:
        uint8 [H, W, 3], RGB.
    """
    image = tf.cond(tf.io.is_jpeg(encoded), lambda: _decode_jpeg(encoded), lambda: _decode_other(encoded))
    image.set_shape([None, None, 3])
    return image


def decode_rgb_or_blank(encoded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Decodes an image as `decode_rgb` does, but without an error for an invalid image.

    TensorFlow's decoders raise errors, and in a graph only a data set that drops the element can
    catch them.  No Python is needed, so it works in a SavedModel.

    Args:
        encoded: string scalar, the image file's bytes.

    Returns:
        The image, uint8 [H, W, 3], one black pixel if it cannot be decoded; and whether it was
        decoded, bool scalar.
    """
    decoded = tf.data.Dataset.from_tensors(encoded).map(lambda contents: (decode_rgb(contents), True)).ignore_errors()
    blank = tf.data.Dataset.from_tensors((tf.zeros([1, 1, 3], tf.uint8), False))
    image, valid = decoded.concatenate(blank).take(1).get_single_element()
    return image, valid


def decode_rgb_eagerly(encoded: bytes, *, jpeg: bool) -> np.ndarray:
    """Decodes one image of a known format as `decode_rgb` does, without the overhead of a graph's branches.

    Returns:
        uint8 [H, W, 3], RGB; read-only, in the tensor's memory.

    Raises:
        tf.errors.InvalidArgumentError: the image cannot be decoded.
    """
    contents = tf.constant(encoded)
    return np.asarray(memoryview(_decode_jpeg(contents) if jpeg else _decode_other(contents)))


def _decode_jpeg(encoded: tf.Tensor) -> tf.Tensor:
    return tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_ACCURATE")


def _decode_other(encoded: tf.Tensor) -> tf.Tensor:
    return tf.io.decode_image(encoded, channels=3, expand_animations=False)
