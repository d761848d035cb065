"""Mixup: two images laid over each other."""

import tensorflow as tf

from detection.input_pipeline.sample import Sample, join


def mixup(first: Sample, second: Sample, *, alpha: float = 1.5, seed: tf.Tensor) -> Sample:
    """Adds up two images, weighted r and 1 - r; the objects of both count.

    r follows the beta distribution (alpha, alpha).  The images keep their size and lie
    at the upper left corner; where there is only one, black stands for the other.

    Source: Zhang et al., "Bag of Freebies for Training Object Detection Neural
    Networks", 2019, which found alpha 1.5 best.

    Args:
        first: image and objects.
        second: likewise.
        alpha: above 0; the larger, the more often r is near one half.
        seed: int32 [2].
    """
    gammas = tf.random.stateless_gamma([2], seed, alpha)
    ratio = tf.math.divide_no_nan(gammas[0], gammas[0] + gammas[1])
    height, width = tf.unstack(tf.maximum(tf.shape(first.image), tf.shape(second.image))[:2])
    first, second = _on_canvas(first, height, width), _on_canvas(second, height, width)
    mixed = ratio * tf.cast(first.image, tf.float32) + (1.0 - ratio) * tf.cast(second.image, tf.float32)
    return join(tf.cast(tf.round(mixed), tf.uint8), [first, second])


def _on_canvas(sample: Sample, height: tf.Tensor, width: tf.Tensor) -> Sample:
    """The sample at the upper left of a black image of that size."""
    size = tf.cast(tf.shape(sample.image)[:2], tf.float32)
    shares = size / tf.cast(tf.stack([height, width]), tf.float32)
    wider = sample._replace(
        image=tf.image.pad_to_bounding_box(sample.image, 0, 0, height, width),
        boxes_yxyx=sample.boxes_yxyx * tf.tile(shares, [2]),
    )
    if sample.masks is not None:
        masks = tf.image.pad_to_bounding_box(sample.masks[..., tf.newaxis], 0, 0, height, width)
        wider = wider._replace(masks=masks[..., 0])
    if sample.keypoints is not None:
        wider = wider._replace(keypoints=sample.keypoints * tf.concat([shares, [1.0]], axis=0))
    return wider
