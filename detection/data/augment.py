"""Training-time augmentation: stateless, so a step's images follow from (seed, position) alone."""

import tensorflow as tf

from detection.data.fit import resize
from detection.data.record_decoder import Sample


def random_horizontal_flip(sample: Sample, *, seed: tf.Tensor) -> Sample:
    """Mirrors image and boxes left to right, with probability one half.

    Args:
        sample: image and normalised boxes.
        seed: int32 [2].

    Returns:
        The sample, mirrored or not.
    """
    flip = tf.random.stateless_uniform([], seed) < 0.5
    ymin, xmin, ymax, xmax = tf.unstack(sample.boxes_yxyx, axis=-1)
    mirrored = tf.stack([ymin, 1.0 - xmax, ymax, 1.0 - xmin], axis=-1)
    return Sample(
        tf.cond(flip, lambda: tf.image.flip_left_right(sample.image), lambda: sample.image),
        tf.where(flip, mirrored, sample.boxes_yxyx),
        sample.classes,
    )


def random_scale_crop(
    sample: Sample, *, image_size: tuple[int, int], scale_min: float, scale_max: float, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Resizes to a random multiple of the fitting scale and crops a random window of the input's size.

    Source: google/automl EfficientDet's scale jitter.  Boxes are cut at the window's
    border; those with nothing left are dropped.

    Args:
        sample: image and normalised boxes.
        image_size: (height, width) of the input in pixels.
        scale_min: smallest multiple; 1 fits the image into the input.
        scale_max: largest multiple, >= scale_min.
        seed: int32 [2].

    Returns:
        image: float32 [h, w, 3] with h <= height and w <= width, pixel values 0 to 255.
        boxes_yxyx: float32 [M, 4], pixels of that image.
        classes: int32 [M].
    """
    target = tf.constant(image_size, tf.float32)
    factors = tf.random.stateless_uniform([3], seed)
    jitter = scale_min + factors[0] * (scale_max - scale_min)
    fitting = tf.reduce_min(target / tf.cast(tf.shape(sample.image)[:2], tf.float32))
    image = resize(sample.image, fitting * jitter)
    size = tf.cast(tf.shape(image)[:2], tf.float32)
    offset = tf.floor(factors[1:] * (tf.maximum(size - target, 0.0) + 1.0 - 1e-4))
    corner = tf.cast(offset, tf.int32)
    window = image[corner[0] : corner[0] + image_size[0], corner[1] : corner[1] + image_size[1]]
    window_size = tf.cast(tf.shape(window)[:2], tf.float32)
    boxes = sample.boxes_yxyx * tf.tile(size, [2]) - tf.tile(offset, [2])
    boxes = tf.clip_by_value(boxes, 0.0, tf.tile(window_size, [2]))
    left = tf.reduce_all(boxes[:, 2:] - boxes[:, :2] > 0.0, axis=-1)
    return window, tf.boolean_mask(boxes, left), tf.boolean_mask(sample.classes, left)
