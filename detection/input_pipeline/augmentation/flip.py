"""Horizontal flips of images with their objects, and of keypoints by their names."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from detection.input_pipeline.record_decoder import num_keypoints
from detection.input_pipeline.sample import Sample
from schemas.errors import ConfigError

_SIDE = re.compile(r"(?<![a-z])(left|right|l|r)(?![a-z])", re.IGNORECASE)
_OTHER_SIDE = {"left": "right", "right": "left", "l": "r", "r": "l"}


def random_horizontal_flip(
    sample: Sample, *, keypoint_flips: Sequence[Sequence[int]] | None = None, seed: tf.Tensor
) -> Sample:
    """Mirrors image and objects left to right, with a probability of 0.5.

    Args:
        sample: image and objects.
        keypoint_flips: int [C, K], for each class the keypoint that each keypoint becomes, such as
            left eye -> right eye; None: keypoints keep their indices.
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
        points = _mirror_keypoints(sample.keypoints, sample.classes, keypoint_flips)
        sample = sample._replace(keypoints=tf.where(flip, points, sample.keypoints))
    return sample


def _mirror_keypoints(
    keypoints: tf.Tensor, classes: tf.Tensor, keypoint_flips: Sequence[Sequence[int]] | None
) -> tf.Tensor:
    y, x, visibility = tf.unstack(keypoints, axis=-1)
    mirrored = tf.stack([y, tf.where(visibility > 0.0, 1.0 - x, x), visibility], axis=-1)
    if keypoint_flips is None:
        return mirrored
    sources = tf.gather(tf.constant(keypoint_flips, tf.int32), classes)
    return tf.gather(mirrored, sources, batch_dims=1)


def keypoint_flips(categories: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Maps each keypoint to its counterpart in a mirrored image, by name.

    The word left, right, l or r in a name ("left_eye", "Eye Right", "l-eye") is replaced by the
    other side's word; other keypoints map to themselves.

    Args:
        categories: COCO categories, in the order of the classes; `keypoints` lists the names.

    Returns:
        int [C, K], with K the max number of keypoints per category; missing keypoints map to themselves.

    Raises:
        ConfigError: the keypoint of one side has no counterpart.
    """
    most = num_keypoints(categories)
    return [_flips_of(category, most) for category in categories]


def _flips_of(category: Mapping[str, Any], most: int) -> list[int]:
    names = list(category.get("keypoints", ()))
    flips = list(range(most))
    for number, name in enumerate(names):
        other = _SIDE.sub(_with_other_side, name)
        if other not in names:
            raise ConfigError(
                f"train.augment.horizontal_flip: category {category['name']!r} has a keypoint {name!r} but no "
                f"{other!r}, its counterpart in a mirrored image. Set it to false, or name the keypoints in pairs."
            )
        flips[number] = names.index(other)
    return flips


def _with_other_side(match: re.Match[str]) -> str:
    word = match[0]
    other = _OTHER_SIDE[word.lower()]
    if word.isupper():
        return other.upper()
    return other.capitalize() if word[0].isupper() else other
