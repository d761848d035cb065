"""Flips and quarter turns of images with their objects, and of keypoints by their names."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from detection.input_pipeline.record_decoder import num_keypoints
from detection.input_pipeline.sample import Sample
from schemas.errors import ConfigError

_LOGGER = logging.getLogger("cocoflow.trainer")
_SIDE = re.compile(r"(?<![a-z])(left|right|l|r)(?![a-z])", re.IGNORECASE)
# Sides within words, as in leftEye, LEFTEYE, lshoulder or eyeR: sides only where the other side's name exists.
_WITHIN = (re.compile("left|right", re.IGNORECASE), re.compile("^[lr]", re.IGNORECASE), re.compile("[LR]$"))
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
    decision = tf.random.stateless_uniform([], seed) < 0.5
    return tf.cond(decision, lambda: horizontal_flip(sample, keypoint_flips=keypoint_flips), lambda: sample)


def horizontal_flip(sample: Sample, *, keypoint_flips: Sequence[Sequence[int]] | None = None) -> Sample:
    """Mirrors left and right; arguments as above."""
    return _turn(sample, lambda pixels: tf.reverse(pixels, [-2]), lambda y, x: (y, 1.0 - x), keypoint_flips)


def vertical_flip(sample: Sample, *, keypoint_flips: Sequence[Sequence[int]] | None = None) -> Sample:
    """Mirrors top and bottom; a left eye becomes a right one, as in any mirror."""
    return _turn(sample, lambda pixels: tf.reverse(pixels, [-3]), lambda y, x: (1.0 - y, x), keypoint_flips)


def rotation90(sample: Sample, *, keypoint_flips: Sequence[Sequence[int]] | None = None) -> Sample:
    """Rotates by 90 degrees anticlockwise: the right border becomes the upper one."""
    return _turn(sample, tf.image.rot90, lambda y, x: (1.0 - x, y), keypoint_flips)


def _turn(
    sample: Sample,
    turn_pixels: Callable[[tf.Tensor], tf.Tensor],
    turn_point: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
    keypoint_flips: Sequence[Sequence[int]] | None,
) -> Sample:
    # turn_pixels maps [H, W, C] and [N, H, W, C]; turn_point maps normalised (y, x).
    ymin, xmin, ymax, xmax = tf.unstack(sample.boxes_yxyx, axis=-1)
    first, last = tf.stack(turn_point(ymin, xmin), axis=-1), tf.stack(turn_point(ymax, xmax), axis=-1)
    boxes = tf.concat([tf.minimum(first, last), tf.maximum(first, last)], axis=-1)
    turned = sample._replace(image=turn_pixels(sample.image), boxes_yxyx=boxes)
    if sample.masks is not None:
        turned = turned._replace(masks=turn_pixels(sample.masks[..., tf.newaxis])[..., 0])
    if sample.keypoints is not None:
        y, x, visibility = tf.unstack(sample.keypoints, axis=-1)
        points = tf.stack([*turn_point(y, x), visibility], axis=-1)
        points = tf.where(visibility[..., tf.newaxis] > 0.0, points, sample.keypoints)
        if keypoint_flips is not None:
            points = tf.gather(points, tf.gather(tf.constant(keypoint_flips, tf.int32), sample.classes), batch_dims=1)
        turned = turned._replace(keypoints=points)
    return turned


def keypoint_flips(
    categories: Sequence[Mapping[str, Any]], *, key: str = "train.augment.horizontal_flip"
) -> list[list[int]]:
    """Maps each keypoint to its counterpart in a mirrored image, by name.

    The word left, right, l or r in a name ("left_eye", "Eye Right", "l-eye") is replaced by the
    other side's word, also within a word ("leftEye", "lshoulder") if there is a keypoint of that name; other keypoints
    map to themselves.  Categories of several keypoints without any pair are logged.

    Args:
        categories: COCO categories, in the order of the classes; `keypoints` lists the names.
        key: configuration key of the flip, for the message.

    Returns:
        int [C, K], with K the max number of keypoints per category; missing keypoints map to themselves.

    Raises:
        ConfigError: the keypoint of one side has no counterpart.
    """
    most = num_keypoints(categories)
    return [_flips_of(category, most, key) for category in categories]


def mirrored_categories(categories: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Returns the names of two categories of which each is the other's mirror image by name, as turn_left, turn_right.

    None: there are no such categories.  Left and right count within words, too, l and r as words beside others.
    """
    names = [category["name"] for category in categories if len(category["name"]) > 1]
    for name in names:
        others = {pattern.sub(_with_other_side, name) for pattern in (_SIDE, _WITHIN[0])} - {name}
        if other := next((one for one in names if one in others), None):
            return name, other
    return None


def mirrors(horizontal_flip: bool | str, categories: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether images are mirrored under `train.augment.horizontal_flip`, whose `auto` the categories decide."""
    return mirrored_categories(categories) is None if horizontal_flip == "auto" else bool(horizontal_flip)


def _flips_of(category: Mapping[str, Any], most: int, key: str) -> list[int]:
    names = list(category.get("keypoints", ()))
    flips = list(range(most))
    for number, name in enumerate(names):
        other = _SIDE.sub(_with_other_side, name)
        if other == name:
            within = (pattern.sub(_with_other_side, name) for pattern in _WITHIN)
            other = next((one for one in within if one != name and one in names), name)
        if other not in names:
            raise ConfigError(
                f"{key}: category {category['name']!r} has a keypoint {name!r} but no "
                f"{other!r}, its counterpart in a mirrored image. Switch it off, or name the keypoints in pairs."
            )
        flips[number] = names.index(other)
    if len(names) > 1 and flips == list(range(most)):
        _LOGGER.warning(
            "%s: no two keypoints of %r are named as left and right, so all stay what they are in mirrored images: %s",
            key,
            category["name"],
            ", ".join(names),
        )
    return flips


def _with_other_side(match: re.Match[str]) -> str:
    word = match[0]
    other = _OTHER_SIDE[word.lower()]
    if word.isupper():
        return other.upper()
    return other.capitalize() if word[0].isupper() else other
