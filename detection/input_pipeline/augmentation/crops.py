"""Random crops: scale jitter with a window of the input's size, SSD's random crop, crops to an aspect ratio."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from detection.input_pipeline.network_input import InputSample, in_window, input_scale, resize
from detection.input_pipeline.sample import Sample, keep_labelled, select
from detection.ops.boxes import area_yxyx, intersection_yxyx
from detection.types import Resizing


class CropOperation(NamedTuple):
    """One operation of a random crop.

    min_object_covered: min fraction of at least one object that the window covers.
    min_aspect_ratio, max_aspect_ratio: range of the window's width / height.
    min_area, max_area: range of the window's area, as a fraction of the image's.
    overlap_thresh: min fraction of an object in the window.
    random_coef: probability of the unchanged image.
    """

    min_object_covered: float = 1.0
    min_aspect_ratio: float = 0.75
    max_aspect_ratio: float = 1.33
    min_area: float = 0.1
    max_area: float = 1.0
    overlap_thresh: float = 0.3
    random_coef: float = 0.0


# The TF Object Detection API's seven operations.
MIN_OVERLAPS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
_MIN_SIDE = 1e-3  # min pixels of an object in the window


def random_scale_crop(
    sample: Sample,
    *,
    image_size: tuple[int, int],
    resizing: Resizing | None = None,
    scale_min: float,
    scale_max: float,
    mask_size: int = 0,
    seed: tf.Tensor,
) -> InputSample:
    """Resizes to a random multiple of the input's scale and crops a random window of the input's size.

    Source: google/automl EfficientDet's scale jitter.  `in_window` moves the objects.

    Args:
        sample: image and objects.
        image_size: (height, width) of the input in pixels.
        resizing: defines the scale of 1; None: fit images into `image_size`.
        scale_min: min multiple.
        scale_max: max multiple, >= scale_min.
        mask_size: side of the mask crops in pixels.
        seed: int32 [2].

    Returns:
        The window, h <= height and w <= width, pixel values 0 to 255.
    """
    target = tf.constant(image_size, tf.float32)
    factors = tf.random.stateless_uniform([3], seed)
    jitter = scale_min + factors[0] * (scale_max - scale_min)
    resizing = resizing or Resizing(image_size)
    scale = input_scale(tf.cast(tf.shape(sample.image)[:2], tf.float32), resizing)
    image = resize(sample.image, scale * jitter, resizing=resizing)
    size = tf.cast(tf.shape(image)[:2], tf.float32)
    offset = tf.floor(factors[1:] * (tf.maximum(size - target, 0.0) + 1.0 - 1e-4))
    corner = tf.cast(offset, tf.int32)
    pixels = image[corner[0] : corner[0] + image_size[0], corner[1] : corner[1] + image_size[1]]
    window = tf.cast(tf.shape(pixels)[:2], tf.float32)
    return in_window(sample, pixels, size=size, offset=offset, window=window, mask_size=mask_size)


def random_crop(sample: Sample, *, operations: Sequence[CropOperation], seed: tf.Tensor) -> Sample:
    """Crops a random window by one of several operations, drawn uniformly.

    After 100 attempts without success, the image is not cropped.  The remaining objects are clipped to the window.

    Source: the TF Object Detection API's random_crop_image and ssd_random_crop, the latter after Liu et al., "SSD:
    Single Shot MultiBox Detector", 2016.

    Args:
        sample: image and objects.
        operations: operations to draw from.
        seed: int32 [2].
    """
    choice = draw_operation(len(operations), seed)
    overlaps, thresholds, skips = (
        tf.constant([getattr(each, field) for each in operations], tf.float32)[choice]
        for field in ("min_object_covered", "overlap_thresh", "random_coef")
    )
    shapes = [tuple(each[1:5]) for each in operations]
    boxes = sample.boxes_yxyx if sample.crowds is None else tf.boolean_mask(sample.boxes_yxyx, ~sample.crowds)
    window_seed = tf.random.split(seed, 2)[1]

    def window_of(shape: tuple[float, ...]) -> tuple[tf.Tensor, tf.Tensor]:
        begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            tf.shape(sample.image),
            boxes[tf.newaxis],
            window_seed,
            min_object_covered=overlaps,
            aspect_ratio_range=shape[:2],
            area_range=shape[2:],
            max_attempts=100,
            use_image_if_no_bounding_boxes=True,
        )
        return begin[:2], size[:2]

    distinct = sorted(set(shapes))  # the op takes ranges as attributes, not as tensors
    branch = tf.constant([distinct.index(shape) for shape in shapes])[choice]
    begin, size = tf.switch_case(branch, [partial(window_of, shape) for shape in distinct])
    skip = tf.random.stateless_uniform([], tf.random.fold_in(seed, 1)) < skips
    begin, size = tf.where(skip, 0, begin), tf.where(skip, tf.shape(sample.image)[:2], size)
    return crop(sample, begin, size, min_overlap=thresholds)


def draw_operation(count: int, seed: tf.Tensor) -> tf.Tensor:
    """Draws the index of `random_crop`'s operation for a seed: int32 []."""
    return tf.random.stateless_uniform([], tf.random.split(seed, 2)[0], maxval=count, dtype=tf.int32)


def random_crop_to_aspect_ratio(
    sample: Sample, *, aspect_ratio: float = 1.0, overlap_thresh: float = 0.3, seed: tf.Tensor
) -> Sample:
    """Crops the largest window of an aspect ratio (width / height) at a random place (TF Object Detection API)."""
    sides = tf.shape(sample.image)[:2]
    height, width = tf.unstack(tf.cast(sides, tf.float32))
    window = tf.round(tf.stack([tf.minimum(height, width / aspect_ratio), tf.minimum(width, height * aspect_ratio)]))
    size = tf.maximum(tf.cast(window, tf.int32), 1)
    return crop(sample, random_offset(sides - size, seed), size, min_overlap=overlap_thresh)


def random_offset(room: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Draws integers from 0 to `room`, both included: int32 [2]."""
    draws = tf.random.stateless_uniform([2], seed)
    return tf.minimum(tf.cast(draws * tf.cast(room + 1, tf.float32), tf.int32), room)


def crop(sample: Sample, begin: tf.Tensor, size: tf.Tensor, *, min_overlap: tf.Tensor | float) -> Sample:
    """Cuts a window out of a sample.

    Args:
        sample: image and objects.
        begin: int32 [2], (y, x) of the window's first pixel.
        size: int32 [2], (height, width) of the window.
        min_overlap: min fraction of an object's area in the window; objects outside are always dropped.
    """
    image_size = tf.cast(tf.shape(sample.image)[:2], tf.float32)
    low, extent = tf.cast(begin, tf.float32) / image_size, tf.cast(size, tf.float32) / image_size
    window = tf.concat([low, low + extent], axis=0)
    boxes = sample.boxes_yxyx
    inside = intersection_yxyx(boxes, window)
    # The tolerance is for windows that end where the object does.
    kept = tf.math.divide_no_nan(inside, area_yxyx(boxes)) >= min_overlap - 1e-6
    rows, columns = slice(begin[0], begin[0] + size[0]), slice(begin[1], begin[1] + size[1])
    cut = sample._replace(
        image=sample.image[rows, columns],
        boxes_yxyx=tf.clip_by_value((boxes - tf.tile(low, [2])) / tf.tile(extent, [2]), 0.0, 1.0),
    )
    if cut.masks is not None:
        cut = cut._replace(masks=cut.masks[:, rows, columns])
    if cut.keypoints is not None:
        points = (cut.keypoints[..., :2] - low) / extent
        cut = cut._replace(keypoints=keep_labelled(tf.concat([points, cut.keypoints[..., 2:]], axis=-1)))
    # Drop boxes whose part inside the window rounds to less than a pixel.
    sides = (tf.minimum(boxes[:, 2:], window[2:]) - tf.maximum(boxes[:, :2], window[:2])) * image_size
    return select(cut, kept & tf.reduce_all(sides > _MIN_SIDE, axis=-1))
