"""Converts a sample to the network's input: pixel coordinates, and masks as crops of one size."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from detection.input_pipeline.sample import Sample, keep_labelled
from detection.types import ImageInfo, Labels, Resizing


def normalize(image: tf.Tensor, *, mean: Sequence[float], std: Sequence[float]) -> tf.Tensor:
    """Computes (image - mean) / std per RGB channel.

    Args:
        image: float32 or uint8 [..., W, 3], 0 to 255.
        mean: three values on the same scale.
        std: three values on the same scale.

    Returns:
        float32, same shape.
    """
    # Row by row, TensorFlow is several times faster on CPUs than channel by channel.
    shape = tf.shape(image)
    rows = tf.reshape(tf.cast(image, tf.float32), tf.concat([shape[:-2], [3 * shape[-2]]], axis=0))
    means, stds = (tf.tile(tf.constant(values, tf.float32), [shape[-2]]) for values in (mean, std))
    return tf.reshape((rows - means) / stds, shape)


def fit_to_input(
    image: tf.Tensor, *, image_size: tuple[int, int], resizing: Resizing, mean: Sequence[float], std: Sequence[float]
) -> tuple[tf.Tensor, ImageInfo]:
    """Scales and normalises an image, and pads it with 0 at the bottom and the right.

    The returned scale is the ratio after rounding, per axis, so that boxes map back exactly.

    Args:
        image: uint8 [H, W, 3].
        image_size: (height, width) of the input in pixels.
        resizing: how to scale, usually `Detector.resizing`.
        mean: RGB mean of the pixel values.
        std: RGB standard deviation of the pixel values.

    Returns:
        float32 [height, width, 3] and its `ImageInfo` without batch axis.
    """
    size = tf.cast(tf.shape(image)[:2], tf.float32)
    resized = resize(image, input_scale(size, resizing), resizing=resizing)
    scale = tf.cast(tf.shape(resized)[:2], tf.float32) / size
    padded = pad_to(normalize(resized, mean=mean, std=std), image_size)
    return padded, ImageInfo(original_size=size, scale=scale)


def fit_pixels(
    image: tf.Tensor, *, image_size: tuple[int, int], resizing: Resizing, padding: Sequence[float]
) -> tuple[tf.Tensor, ImageInfo]:
    """Scales an image as `fit_to_input` does, without normalising it, and pads it with a color.

    Args:
        image: uint8 [H, W, 3].
        image_size: (height, width) of the input in pixels.
        resizing: how to scale, usually `Detector.resizing`.
        padding: RGB; padding with the mean pixel value and normalising equals `fit_to_input`.

    Returns:
        float32 [height, width, 3], 0 to 255, and its `ImageInfo` without batch axis.
    """
    pixels, info = fit_to_input(
        image, image_size=image_size, resizing=resizing, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)
    )
    height, width = tf.unstack(tf.cast(tf.round(info.original_size * info.scale), tf.int32))
    inside = (tf.range(image_size[0]) < height)[:, tf.newaxis] & (tf.range(image_size[1]) < width)
    return tf.where(inside[..., tf.newaxis], pixels, tf.constant(padding, tf.float32)), info


def input_scale(size: tf.Tensor, resizing: Resizing) -> tf.Tensor:
    """Returns the factors that scale an image to the input, before rounding: float32 [2], (y, x).

    Sources: google/automl EfficientDet (`fit`: the smaller ratio); the TF Object Detection
    API's fixed_shape_resizer (`stretch`) and keep_aspect_ratio_resizer, which is TPU Mask
    R-CNN's mode `faster_rcnn` (`short_side`).

    Args:
        size: float32 [2], (height, width) of the image in pixels.
        resizing: how to scale.
    """
    ratios = tf.constant(resizing.size, tf.float32) / size
    if resizing.mode == "stretch":
        return ratios
    scale = tf.reduce_min(ratios)
    if resizing.mode == "short_side":
        for side, length in ((resizing.short_side, tf.reduce_min(size)), (resizing.long_side, tf.reduce_max(size))):
            scale = tf.minimum(scale, float(side) / length)
    return tf.stack([scale, scale])


def resize(image: tf.Tensor, scale: tf.Tensor, *, resizing: Resizing) -> tf.Tensor:
    """Resizes bilinearly; each side has at least one pixel.

    Args:
        image: [H, W, 3], any number type.
        scale: float32 [2], (y, x) factors, or a scalar for both.
        resizing: the mode `short_side` rounds sizes to the nearest integer, the others round down.

    Returns:
        float32 [h, w, 3].
    """
    size = tf.cast(tf.shape(image)[:2], tf.float32)
    # 640 * (512 / 640) is slightly below 512 in float32; truncating it to 511 would be wrong.
    rounded = tf.round(size * scale) if resizing.mode == "short_side" else tf.floor(size * scale + 1e-3)
    sides = tf.maximum(tf.cast(rounded, tf.int32), 1)
    if resizing.half_pixel_centers:
        return tf.image.resize(image, sides)
    return tf.compat.v1.image.resize_bilinear(image[tf.newaxis], sides)[0]


def pad_to(image: tf.Tensor, image_size: tuple[int, int]) -> tf.Tensor:
    """Pads [h, w, 3] with zeros below and to the right to the static [height, width, 3]."""
    height, width = image_size
    below = height - tf.shape(image)[0]
    right = width - tf.shape(image)[1]
    padded = tf.pad(image, [[0, below], [0, right], [0, 0]])
    return tf.ensure_shape(padded, [height, width, 3])


class InputSample(NamedTuple):
    """One image in the network's input size, before padding, with its objects.

    image: float32 [h, w, 3].
    boxes_yxyx: float32 [M, 4], pixels of the image, 0 <= min < max.
    classes: int32 [M].
    masks: uint8 [M, m, m], masks within the boxes; or None.
    keypoints: float32 [M, K, 3], (y, x, visibility), pixels; or None.
    crowds: bool [M], or None.
    weights: float32 [M], factor of the loss; or None.
    """

    image: tf.Tensor
    boxes_yxyx: tf.Tensor
    classes: tf.Tensor
    masks: tf.Tensor | None = None
    keypoints: tf.Tensor | None = None
    crowds: tf.Tensor | None = None
    weights: tf.Tensor | None = None


def in_window(
    sample: Sample, image: tf.Tensor, *, size: tf.Tensor, offset: tf.Tensor, window: tf.Tensor, mask_size: int
) -> InputSample:
    """Maps the objects of a sample into a window of its scaled image.

    Clips boxes to the window; drops empty ones, and objects whose mask is empty there unless they never had
    one.  Keypoints outside become unlabelled.

    Args:
        sample: sample before scaling.
        image: float32, pixels of the window, after any processing.
        size: float32 [2], (height, width) of the scaled image.
        offset: float32 [2], (y, x) of the window's corner in the scaled image.
        window: float32 [2], (height, width) of the window.
        mask_size: m; ignored without masks.
    """
    boxes = sample.boxes_yxyx * tf.tile(size, [2]) - tf.tile(offset, [2])
    boxes = tf.clip_by_value(boxes, 0.0, tf.tile(window, [2]))
    left = tf.reduce_all(boxes[:, 2:] - boxes[:, :2] > 0.0, axis=-1)
    masks = keypoints = None
    if sample.masks is not None:
        masks = crop_masks(sample.masks, (boxes + tf.tile(offset, [2])) / tf.tile(size, [2]), mask_size)
        visible = tf.reduce_any(masks > 0, axis=[1, 2])
        # A crowd is a region and needs no visible mask.
        for without in (sample.crowds, sample.maskless):
            visible = visible if without is None else visible | without
        left &= visible
    if sample.keypoints is not None:
        keypoints = _keypoints_in_window(sample.keypoints, size=size, offset=offset, window=window)
    fields = (boxes, sample.classes, masks, keypoints, sample.crowds, sample.weights)
    return InputSample(image, *(None if field is None else tf.boolean_mask(field, left) for field in fields))


def _keypoints_in_window(keypoints: tf.Tensor, *, size: tf.Tensor, offset: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    points = (keypoints[..., :2] * size - offset) / window
    labelled = keep_labelled(tf.concat([points, keypoints[..., 2:]], axis=-1))
    return tf.concat([labelled[..., :2] * window, labelled[..., 2:]], axis=-1)


def crop_masks(masks: tf.Tensor, boxes_yxyx: tf.Tensor, mask_size: int) -> tf.Tensor:
    """Crops each object's mask to its box and stretches it to a square: Mask R-CNN's ground truth.

    The box is divided into m x m cells; a cell is inside if the mask, interpolated between the centres
    of its pixels, is at least 0.5 at the cell's centre.

    Args:
        masks: uint8 [N, H, W].
        boxes_yxyx: float32 [N, 4], normalised to H and W.
        mask_size: m.

    Returns:
        uint8 [N, m, m].
    """
    size = tf.cast(tf.shape(masks)[1:], tf.float32)
    low, high = boxes_yxyx[:, :2] * size, boxes_yxyx[:, 2:] * size
    half_part = (high - low) / (2.0 * mask_size)
    # Centres of the first and the last cell, in pixel centres; the mask extends beyond the border.
    corners = tf.concat([low + half_part, high - half_part], axis=-1) - 0.5
    last = tf.tile(tf.maximum(size - 1.0, 1.0), [2])
    crops = tf.image.crop_and_resize(
        masks[..., tf.newaxis],
        tf.clip_by_value(corners, 0.0, tf.tile(size - 1.0, [2])) / last,
        tf.range(tf.shape(masks)[0]),
        [mask_size, mask_size],
    )
    return tf.cast(crops[..., 0] >= 0.5, tf.uint8)


def pad_labels(sample: InputSample, *, max_instances: int) -> tuple[Labels, tf.Tensor]:
    """Pads one image's objects to a fixed number, or truncates them.

    Args:
        sample: M objects and crowds; of its image, only the size.
        max_instances: N; crowds only get the rows that objects leave free.

    Returns:
        `Labels` without batch axis; int32 scalar, the number of truncated objects.
    """
    rows = tf.range(tf.shape(sample.classes)[0])
    objects = tf.shape(rows)[0]
    if sample.crowds is not None:
        rows = tf.argsort(tf.cast(sample.crowds, tf.int32), stable=True)
        objects -= tf.math.count_nonzero(sample.crowds, dtype=tf.int32)
    rows = rows[:max_instances]
    missing = max_instances - tf.shape(rows)[0]

    def padded(field: tf.Tensor | None) -> tf.Tensor | None:
        if field is None:
            return None
        widths = [[0, missing]] + [[0, 0]] * (field.shape.rank - 1)
        return tf.ensure_shape(tf.pad(tf.gather(field, rows), widths), [max_instances, *field.shape[1:]])

    labels = Labels(
        boxes=padded(sample.boxes_yxyx),
        classes=padded(sample.classes),
        valid=tf.range(max_instances) < objects,
        masks=padded(sample.masks),
        keypoints=padded(sample.keypoints),
        crowds=padded(sample.crowds),
        weights=padded(sample.weights),
        sizes=tf.cast(tf.shape(sample.image)[:2], tf.float32),
    )
    return labels, tf.maximum(objects - max_instances, 0)
