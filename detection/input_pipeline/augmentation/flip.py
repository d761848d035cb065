"""Mirroring."""

from collections.abc import Sequence

import tensorflow as tf

from detection.input_pipeline.sample import Sample


def random_horizontal_flip(
    sample: Sample, *, keypoint_flips: Sequence[Sequence[int]] | None = None, seed: tf.Tensor
) -> Sample:
    """Mirrors image and objects left to right, with probability one half.

    Args:
        sample: image and objects.
        keypoint_flips: int [C, K], for each class the keypoint that each becomes: what
            was a left eye looks like a right one; None: they keep their numbers.
        seed: int32 [2].

    Returns:
        The sample, mirrored or not.
    """
    flip = tf.random.stateless_uniform([], seed) < 0.5
    ymin, xmin, ymax, xmax = tf.unstack(sample.boxes_yxyx, axis=-1)
    mirrored = tf.stack([ymin, 1.0 - xmax, ymax, 1.0 - xmin], axis=-1)
    sample = sample._replace(
        image=tf.cond(flip, lambda: tf.image.flip_left_right(sample.image), lambda: sample.image),
        boxes_yxyx=tf.where(flip, mirrored, sample.boxes_yxyx),
    )
    if sample.masks is not None:
        masks = sample.masks
        sample = sample._replace(masks=tf.cond(flip, lambda: tf.reverse(masks, [2]), lambda: masks))
    if sample.keypoints is not None:
        points = _mirrored_keypoints(sample.keypoints, sample.classes, keypoint_flips)
        sample = sample._replace(keypoints=tf.where(flip, points, sample.keypoints))
    return sample


def _mirrored_keypoints(
    keypoints: tf.Tensor, classes: tf.Tensor, keypoint_flips: Sequence[Sequence[int]] | None
) -> tf.Tensor:
    y, x, visibility = tf.unstack(keypoints, axis=-1)
    mirrored = tf.stack([y, tf.where(visibility > 0.0, 1.0 - x, x), visibility], axis=-1)
    if keypoint_flips is None:
        return mirrored
    sources = tf.gather(tf.constant(keypoint_flips, tf.int32), classes)
    return tf.gather(mirrored, sources, batch_dims=1)
