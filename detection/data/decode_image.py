"""Encoded image bytes to RGB pixels: the one way for training, evaluation and serving."""

import tensorflow as tf


def decode_rgb(encoded: tf.Tensor) -> tf.Tensor:
    """Decodes a JPEG, PNG, GIF (first frame) or BMP.

    JPEGs use the accurate integer DCT, which equals Pillow bit for bit; the
    default one is off by up to 22 levels.  EXIF orientation is not applied:
    COCO's sizes and boxes belong to the stored pixels.

    Args:
        encoded: string scalar, the image file's bytes.

    Returns:
        uint8 [H, W, 3], RGB.
    """
    image = tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_ACCURATE"),
        lambda: tf.io.decode_image(encoded, channels=3, expand_animations=False),
    )
    image.set_shape([None, None, 3])
    return image
