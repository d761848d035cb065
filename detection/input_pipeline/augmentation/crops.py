"""Random crops: scale jitter with a window of the input's size, and SSD's random crop."""

from collections.abc import Sequence
from typing import Literal

import tensorflow as tf

from detection.input_pipeline.network_input import InputSample, in_window, input_scale, resize
from detection.input_pipeline.sample import Sample, keep_labelled, select
from detection.ops.boxes import area_yxyx, intersection_yxyx
from detection.types import Resizing

KeepRule = Literal["overlap", "centre"]

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


def ssd_random_crop(
    sample: Sample,
    *,
    min_overlaps: Sequence[float] = MIN_OVERLAPS,
    aspect_ratio_range: tuple[float, float] = (0.5, 2.0),
    area_range: tuple[float, float] = (0.1, 1.0),
    keep: KeepRule = "overlap",
    seed: tf.Tensor,
) -> Sample:
    """Crops a random window that covers an object sufficiently.

    Draws one of `min_overlaps`; the window covers at least this fraction of at least one object.
    After 100 attempts without success, the image is not cropped.  The remaining objects are
    clipped to the window.

    Source: the TF Object Detection API's `ssd_random_crop` (which does not crop 15 % of the
    images), after Liu et al., "SSD: Single Shot MultiBox Detector", 2016.

    Args:
        sample: image and objects.
        min_overlaps: fractions of an object's area, each 0 to 1.
        aspect_ratio_range: range of the window's width / height.
        area_range: range of the window's area, as a fraction of the image's.
        keep: rule for keeping objects: `overlap`: the drawn fraction of the object is in the
            window (the API's rule); `centre`: its centre is (SSD's rule).
        seed: int32 [2].
    """
    choice_seed, window_seed = tf.unstack(tf.random.split(seed, 2))
    choice = tf.random.stateless_uniform([], choice_seed, maxval=len(min_overlaps), dtype=tf.int32)
    min_overlap = tf.constant(min_overlaps, tf.float32)[choice]
    boxes = sample.boxes_yxyx
    objects = boxes if sample.crowds is None else tf.boolean_mask(boxes, ~sample.crowds)
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.shape(sample.image),
        objects[tf.newaxis],
        window_seed,
        min_object_covered=min_overlap,
        aspect_ratio_range=aspect_ratio_range,
        area_range=area_range,
        max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )
    return crop(sample, begin[:2], size[:2], min_overlap=min_overlap, keep=keep)


def crop(
    sample: Sample, begin: tf.Tensor, size: tf.Tensor, *, min_overlap: tf.Tensor | float, keep: KeepRule
) -> Sample:
    """Cuts a window out of a sample.

    Args:
        sample: image and objects.
        begin: int32 [2], (y, x) of the window's first pixel.
        size: int32 [2], (height, width) of the window.
        min_overlap: min fraction of an object's area in the window for the rule `overlap`; objects
            outside are always dropped.
        keep: rule for keeping objects, `overlap` or `centre`.
    """
    image_size = tf.cast(tf.shape(sample.image)[:2], tf.float32)
    low, extent = tf.cast(begin, tf.float32) / image_size, tf.cast(size, tf.float32) / image_size
    window = tf.concat([low, low + extent], axis=0)
    boxes = sample.boxes_yxyx
    inside = intersection_yxyx(boxes, window)
    if keep == "centre":
        centre = (boxes[:, :2] + boxes[:, 2:]) / 2.0
        kept = tf.reduce_all((centre > window[:2]) & (centre < window[2:]), axis=-1)
    else:
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
    # Rounding leaves a sliver, without a pixel, of boxes that only touch the window.
    sides = (tf.minimum(boxes[:, 2:], window[2:]) - tf.maximum(boxes[:, :2], window[:2])) * image_size
    return select(cut, kept & tf.reduce_all(sides > _MIN_SIDE, axis=-1))
