"""Augmentations of the objects alone: jittered boxes, dropped and changed classes.

Source: the TF Object Detection API's preprocessing steps of the same names.
"""

from collections.abc import Sequence

import tensorflow as tf

from detection.input_pipeline.sample import Sample, select


def random_jitter_boxes(
    sample: Sample, *, ratio: float = 0.05, jitter_mode: str = "DEFAULT", seed: tf.Tensor
) -> Sample:
    """Moves each side of each box by at most half of `ratio` times the box's height or width, within the image.

    Args:
        sample: only its boxes change.
        ratio: 0 to 1.
        jitter_mode: `DEFAULT`: in either direction; `EXPAND`: outwards; `SHRINK`: inwards; with
            `_SYMMETRIC`, opposite sides move equally, with `_SYMMETRIC_XY` all four sides do.
        seed: int32 [2].
    """
    boxes = sample.boxes_yxyx
    direction, _, symmetry = jitter_mode.partition("_")
    draws = tf.random.stateless_uniform([tf.shape(boxes)[0], 4], seed, -ratio / 2.0, ratio / 2.0)
    if direction != "DEFAULT":
        equal = {"": draws, "SYMMETRIC": tf.tile(draws[:, :2], [1, 2]), "SYMMETRIC_XY": tf.tile(draws[:, :1], [1, 4])}
        outwards = 1.0 if direction == "EXPAND" else -1.0
        draws = tf.abs(equal[symmetry]) * tf.constant([-1.0, -1.0, 1.0, 1.0]) * outwards
    moved = boxes + draws * tf.tile(boxes[:, 2:] - boxes[:, :2], [1, 2])
    return sample._replace(boxes_yxyx=tf.clip_by_value(moved, 0.0, 1.0))


def drop_label_probabilistically(
    sample: Sample, *, label: int, drop_probability: float = 1.0, seed: tf.Tensor
) -> Sample:
    """Drops objects of the class `label`, each with a probability; their pixels stay."""
    draws = tf.random.stateless_uniform(tf.shape(sample.classes), seed)
    return select(sample, (sample.classes != label) | (draws >= drop_probability))


def remap_labels(sample: Sample, *, original_labels: Sequence[int], new_label: int, seed: tf.Tensor) -> Sample:
    """Changes the classes `original_labels` to `new_label`; nothing is drawn from `seed`."""
    originals = tf.constant(original_labels, tf.int32)
    changed = tf.reduce_any(sample.classes[:, tf.newaxis] == originals, axis=-1)
    return sample._replace(classes=tf.where(changed, new_label, sample.classes))
