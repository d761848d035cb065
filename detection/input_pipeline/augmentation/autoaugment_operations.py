"""The operations of AutoAugment for detection, by their names in the policies.

Source: google/automl EfficientDet's aug/autoaugment.py, constants included.
"..._BBox" moves the image with its objects, "..._Only_BBoxes" changes the content of single
boxes and keeps the boxes.  Areas without source pixels become mid-grey.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from detection.input_pipeline.augmentation import colors
from detection.input_pipeline.augmentation.content import (
    Affine,
    Content,
    change_boxes,
    image_extent,
    rotation,
    shear_x,
    shear_y,
    translation_x,
    translation_y,
    warp,
    warp_content,
)
from detection.input_pipeline.augmentation.erasing import box_cutout, cutout
from detection.input_pipeline.sample import Sample


class Draw(NamedTuple):
    """The random draw of an operation.

    argument: float32 scalar, strength in the operation's unit (`Operation.argument`).
    probability: float32 scalar, probability of the step; operations on single boxes use a third
        of it for each box, the others ignore it.
    seed: int32 [2].
    """

    argument: tf.Tensor
    probability: tf.Tensor
    seed: tf.Tensor


class Operation(NamedTuple):
    """One operation.

    run: changes a sample.
    argument: converts the level, nominally 0 to 10, to a strength: degrees, pixels, values of
        0 to 255, bits, fractions or factors.
    per_box: the operation is drawn separately for each box.
    """

    run: Callable[[Sample, Draw], Sample]
    argument: Callable[[float], float]
    per_box: bool = False


# (image, argument, seed) -> image.
_Recolor = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]
# (argument, float32 (height, width)) -> affine map.
_Motion = Callable[[tf.Tensor, tf.Tensor], Affine]
_ToArgument = Callable[[float], float]


def _fraction_of(most: float) -> _ToArgument:
    return lambda level: level / 10.0 * most


def _whole_fraction_of(most: float) -> _ToArgument:
    return lambda level: float(int(level / 10.0 * most))


def _enhancement(level: float) -> float:
    return level / 10.0 * 1.8 + 0.1


def _unused(_: float) -> float:
    return 0.0


def _simple(change: Callable[[tf.Tensor], tf.Tensor]) -> _Recolor:
    return lambda image, _argument, _seed: change(image)


def _graded(change: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> _Recolor:
    return lambda image, argument, _seed: change(image, argument)


def _still(motion: Callable[[tf.Tensor], Affine]) -> _Motion:
    return lambda argument, _extent: motion(argument)


def _recolor(change: _Recolor, argument: _ToArgument) -> Operation:
    def run(sample: Sample, draw: Draw) -> Sample:
        return sample._replace(image=change(sample.image, draw.argument, draw.seed))

    return Operation(run, argument)


def _move(motion: _Motion, argument: _ToArgument) -> Operation:
    def run(sample: Sample, draw: Draw) -> Sample:
        return warp(sample, motion(_either_way(draw), image_extent(sample.image)))

    return Operation(run, argument)


def _recolor_boxes(change: _Recolor, argument: _ToArgument) -> Operation:
    def run(sample: Sample, draw: Draw) -> Sample:
        def recolored(content: Content, seed: tf.Tensor) -> Content:
            return content._replace(image=change(content.image, draw.argument, seed))

        return change_boxes(sample, recolored, probability=draw.probability / 3.0, seed=draw.seed)

    return Operation(run, argument, per_box=True)


def _move_in_boxes(motion: _Motion, argument: _ToArgument) -> Operation:
    def run(sample: Sample, draw: Draw) -> Sample:
        # All boxes of an image use the same direction, as in the original.
        amount = _either_way(draw)

        def moved(content: Content, _seed: tf.Tensor) -> Content:
            return warp_content(content, motion(amount, image_extent(content.image)))

        return change_boxes(sample, moved, probability=draw.probability / 3.0, seed=draw.seed)

    return Operation(run, argument, per_box=True)


def _flip_in_boxes(sample: Sample, draw: Draw) -> Sample:
    def flipped(content: Content, _seed: tf.Tensor) -> Content:
        masks = None if content.masks is None else content.masks[:, :, ::-1]
        # A mirrored left eye is a right eye: mirrored keypoints become unlabelled.
        keypoints = None if content.keypoints is None else tf.zeros_like(content.keypoints)
        return Content(content.image[:, ::-1], masks, keypoints)

    return change_boxes(sample, flipped, probability=draw.probability / 3.0, seed=draw.seed)


def _cut_out_of_box(sample: Sample, draw: Draw) -> Sample:
    return sample._replace(image=box_cutout(sample.image, sample.boxes_yxyx, draw.argument, draw.seed))


def _either_way(draw: Draw) -> tf.Tensor:
    # Folded, so that this draw is independent of the draws in `change_boxes`.
    forth = tf.random.stateless_uniform([], tf.random.fold_in(draw.seed, 1)) < 0.5
    return tf.where(forth, draw.argument, -draw.argument)


_AUTOCONTRAST, _EQUALIZE = _simple(colors.autocontrast), _simple(colors.equalize)
_POSTERIZE, _SOLARIZE = _graded(colors.posterize), _graded(colors.solarize)
_SHEAR_X, _SHEAR_Y = _still(shear_x), _still(shear_y)
_TRANSLATE_X, _TRANSLATE_Y = _still(translation_x), _still(translation_y)

OPERATIONS: dict[str, Operation] = {
    "AutoContrast": _recolor(_AUTOCONTRAST, _unused),
    "Equalize": _recolor(_EQUALIZE, _unused),
    "Posterize": _recolor(_POSTERIZE, _whole_fraction_of(4)),
    "Solarize": _recolor(_SOLARIZE, _whole_fraction_of(256)),
    "SolarizeAdd": _recolor(_graded(colors.solarize_add), _whole_fraction_of(110)),
    "Color": _recolor(_graded(colors.color), _enhancement),
    "Contrast": _recolor(_graded(colors.contrast), _enhancement),
    "Brightness": _recolor(_graded(colors.brightness), _enhancement),
    "Sharpness": _recolor(_graded(colors.sharpness), _enhancement),
    "Cutout": _recolor(cutout, _whole_fraction_of(100)),
    "BBox_Cutout": Operation(_cut_out_of_box, _fraction_of(0.75)),
    "Rotate_BBox": _move(rotation, _fraction_of(30)),
    "ShearX_BBox": _move(_SHEAR_X, _fraction_of(0.3)),
    "ShearY_BBox": _move(_SHEAR_Y, _fraction_of(0.3)),
    "TranslateX_BBox": _move(_TRANSLATE_X, _fraction_of(250)),
    "TranslateY_BBox": _move(_TRANSLATE_Y, _fraction_of(250)),
    "Rotate_Only_BBoxes": _move_in_boxes(rotation, _fraction_of(30)),
    "ShearX_Only_BBoxes": _move_in_boxes(_SHEAR_X, _fraction_of(0.3)),
    "ShearY_Only_BBoxes": _move_in_boxes(_SHEAR_Y, _fraction_of(0.3)),
    "TranslateX_Only_BBoxes": _move_in_boxes(_TRANSLATE_X, _fraction_of(120)),
    "TranslateY_Only_BBoxes": _move_in_boxes(_TRANSLATE_Y, _fraction_of(120)),
    "Flip_Only_BBoxes": Operation(_flip_in_boxes, _unused, per_box=True),
    "Solarize_Only_BBoxes": _recolor_boxes(_SOLARIZE, _whole_fraction_of(256)),
    "Equalize_Only_BBoxes": _recolor_boxes(_EQUALIZE, _unused),
    "Cutout_Only_BBoxes": _recolor_boxes(cutout, _whole_fraction_of(50)),
}
