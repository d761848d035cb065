"""Augmentations that change the image's size: resizing, padding, and crops with padding.

Source of the random ones: the TF Object Detection API's preprocessing steps of the same names.
Images are rounded to uint8 and masks take the nearest pixel; objects follow the pixels.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from detection.input_pipeline.augmentation.content import image_extent
from detection.input_pipeline.augmentation.crops import CropOperation, crop, draw_operation, random_crop, random_offset
from detection.input_pipeline.sample import Sample, join

METHODS = ("bilinear", "nearest", "bicubic", "area")


def resize_sample(sample: Sample, size: tf.Tensor, *, method: str = "bilinear") -> Sample:
    """Resizes image and masks to `size`, int32 [2], (height, width)."""
    image = tf.image.resize(sample.image, size, method=method)
    image = tf.round(tf.clip_by_value(tf.cast(image, tf.float32), 0.0, 255.0))
    resized = sample._replace(image=tf.cast(image, tf.uint8))
    if sample.masks is None:
        return resized
    masks = tf.image.resize(sample.masks[..., tf.newaxis], size, method="nearest")
    return resized._replace(masks=masks[..., 0])


def pad(sample: Sample, corner: tf.Tensor, size: tf.Tensor, *, color: tf.Tensor | None = None) -> Sample:
    """Puts a sample on a larger canvas.

    Args:
        sample: image and objects.
        corner: int32 [2], (y, x) of the image's first pixel on the canvas.
        size: int32 [2], (height, width) of the canvas, at least corner + the image's size.
        color: float32 [3], RGB of the rest, 0 to 255; None: black.
    """
    place = (corner[0], corner[1], size[0], size[1])
    extent, whole, offset = image_extent(sample.image), tf.cast(size, tf.float32), tf.cast(corner, tf.float32)
    image = tf.image.pad_to_bounding_box(sample.image, *place)
    if color is not None:
        inside = tf.image.pad_to_bounding_box(tf.ones_like(sample.image[..., :1]), *place) > 0
        image = tf.where(inside, image, tf.cast(tf.round(color), tf.uint8))
    boxes = (sample.boxes_yxyx * tf.tile(extent, [2]) + tf.tile(offset, [2])) / tf.tile(whole, [2])
    padded = sample._replace(image=tf.ensure_shape(image, [None, None, 3]), boxes_yxyx=boxes)
    if sample.masks is not None:
        masks = tf.image.pad_to_bounding_box(sample.masks[..., tf.newaxis], *place)
        padded = padded._replace(masks=masks[..., 0])
    if sample.keypoints is not None:
        points = (sample.keypoints[..., :2] * extent + offset) / whole
        moved = tf.concat([points, sample.keypoints[..., 2:]], axis=-1)
        padded = padded._replace(keypoints=tf.where(sample.keypoints[..., 2:] > 0.0, moved, 0.0))
    return padded


def random_image_scale(
    sample: Sample, *, min_scale_ratio: float = 0.5, max_scale_ratio: float = 2.0, seed: tf.Tensor
) -> Sample:
    """Resizes by a factor, drawn uniformly."""
    factor = tf.random.stateless_uniform([], seed, min_scale_ratio, max_scale_ratio)
    return _scaled(sample, factor)


def random_downscale_to_target_pixels(
    sample: Sample, *, min_target_pixels: int = 300000, max_target_pixels: int = 500000, seed: tf.Tensor
) -> Sample:
    """Shrinks the image to a number of pixels, drawn uniformly; smaller images stay as they are."""
    target = tf.random.stateless_uniform([], seed, min_target_pixels, max_target_pixels + 1, tf.int32)
    pixels = tf.reduce_prod(image_extent(sample.image))
    factor = tf.sqrt(tf.cast(target, tf.float32) / pixels)
    return tf.cond(factor < 1.0, lambda: _scaled(sample, factor), lambda: sample)


def resize_image(
    sample: Sample, *, new_height: int, new_width: int, method: str = "bilinear", seed: tf.Tensor
) -> Sample:
    """Resizes; nothing is drawn from `seed`."""
    return resize_sample(sample, tf.constant([new_height, new_width]), method=method)


def random_resize_method(sample: Sample, *, target_height: int, target_width: int, seed: tf.Tensor) -> Sample:
    """Resizes with one of four methods, drawn uniformly."""
    size = tf.constant([target_height, target_width])
    choice = tf.random.stateless_uniform([], seed, maxval=len(METHODS), dtype=tf.int32)
    return tf.switch_case(
        choice, [lambda method=method: resize_sample(sample, size, method=method) for method in METHODS]
    )


def random_pad_image(
    sample: Sample,
    *,
    min_image_height: int | None = None,
    min_image_width: int | None = None,
    max_image_height: int | None = None,
    max_image_width: int | None = None,
    pad_color: Sequence[float] = (),
    seed: tf.Tensor,
) -> Sample:
    """Pads to a random size, with the image at a random place.

    Args:
        sample: image and objects.
        min_image_height: min height of the result in pixels; None: the image's.
        min_image_width: min width; None: the image's.
        max_image_height: max height; None: twice the image's.
        max_image_width: max width; None: twice the image's.
        pad_color: RGB, 0 to 255; empty: the image's mean.
        seed: int32 [2].
    """
    size = tf.shape(sample.image)[:2]
    low = _or_default((min_image_height, min_image_width), size)
    high = _or_default((max_image_height, max_image_width), 2 * size)
    return _pad_randomly(sample, low, high, _color(sample, pad_color), seed)


def random_absolute_pad_image(
    sample: Sample, *, max_height_padding: int, max_width_padding: int, pad_color: Sequence[float] = (), seed: tf.Tensor
) -> Sample:
    """Adds up to `max_height_padding` rows and `max_width_padding` columns, with the image at a random place."""
    size = tf.shape(sample.image)[:2]
    high = size + tf.constant([max_height_padding, max_width_padding])
    return _pad_randomly(sample, size, high, _color(sample, pad_color), seed)


def random_crop_pad_image(
    sample: Sample,
    *,
    operations: Sequence[CropOperation],
    paddings: Sequence[tuple[Sequence[float], Sequence[float], Sequence[float]]],
    seed: tf.Tensor,
) -> Sample:
    """Crops by one of several operations, and pads to a random size.

    Args:
        sample: image and objects.
        operations: crops to draw from.
        paddings: of each operation: min and max (height, width) of the result, as fractions of the
            original image's, and the colour, empty for the mean.
        seed: int32 [2].
    """
    crop_seed, pad_seed = tf.unstack(tf.random.split(seed, 2))
    cropped = random_crop(sample, operations=operations, seed=crop_seed)
    choice = draw_operation(len(operations), crop_seed)
    low, high = (
        tf.cast(image_extent(sample.image) * tf.constant([each[end] for each in paddings])[choice], tf.int32)
        for end in (0, 1)
    )
    colors = tf.stack([_color(cropped, color) for *_, color in paddings])
    return _pad_randomly(cropped, low, high, colors[choice], pad_seed)


def pad_to_aspect_ratio(
    sample: Sample,
    *,
    aspect_ratio: float = 1.0,
    min_padded_size_ratio: Sequence[float] = (1.0, 1.0),
    max_padded_size_ratio: Sequence[float] = (2.0, 2.0),
    seed: tf.Tensor,
) -> Sample:
    """Pads with black below and to the right to an aspect ratio (width / height).

    Args:
        sample: image and objects.
        aspect_ratio: of the result.
        min_padded_size_ratio: min (height, width), as fractions of the smallest result's.
        max_padded_size_ratio: max (height, width).
        seed: int32 [2].
    """
    height, width = tf.unstack(image_extent(sample.image))
    smallest = tf.stack([tf.maximum(height, width / aspect_ratio), tf.maximum(width, height * aspect_ratio)])
    least = [max(ratio, 1.0) for ratio in min_padded_size_ratio]
    high = min(max(most, low) for most, low in zip(max_padded_size_ratio, least, strict=True))
    scale = tf.random.stateless_uniform([], seed, min(high, max(least)), high)
    size = tf.maximum(tf.cast(tf.round(scale * smallest), tf.int32), tf.shape(sample.image)[:2])
    return pad(sample, tf.zeros([2], tf.int32), size)


def random_square_crop_by_scale(
    sample: Sample,
    *,
    max_border: int = 128,
    scale_min: float = 0.6,
    scale_max: float = 1.3,
    num_scales: int = 8,
    seed: tf.Tensor,
) -> Sample:
    """Crops a square about a random centre, padded with black; drops objects outside.

    Args:
        sample: image and objects.
        max_border: min distance of the centre to the border in pixels, halved until there is room.
        scale_min: min side, as a fraction of the image's long side.
        scale_max: max side.
        num_scales: number of evenly spaced scales to draw from.
        seed: int32 [2].
    """
    draws = tf.random.stateless_uniform([3], seed)
    extent, sides = image_extent(sample.image), tf.shape(sample.image)[:2]
    scale = tf.linspace(scale_min, scale_max, num_scales)[tf.cast(draws[0] * num_scales, tf.int32)]
    side = tf.maximum(tf.cast(scale * tf.reduce_max(extent), tf.int32), 1)
    halvings = tf.math.ceil(tf.math.log(2.0 * max_border / extent) / math.log(2.0))
    border = tf.floor(max_border / tf.clip_by_value(2.0**halvings, 1.0, float(max_border)))
    centre = tf.cast(border + draws[1:] * tf.maximum(extent - 2.0 * border, 0.0), tf.int32)
    first = centre - side // 2
    begin, end = tf.maximum(first, 0), tf.minimum(first + side, sides)
    cut = crop(sample, begin, end - begin, min_overlap=0.0)
    return pad(cut, begin - first, tf.stack([side, side]))


def random_scale_crop_and_pad_to_square(
    sample: Sample, *, output_size: int = 512, scale_min: float = 0.1, scale_max: float = 2.0, seed: tf.Tensor
) -> Sample:
    """Scales the long side to a random multiple of `output_size`, crops a random window, pads it to a square.

    Args:
        sample: image and objects; objects outside the window are dropped.
        output_size: side of the result in pixels; padding is black, below and to the right.
        scale_min: min multiple.
        scale_max: max multiple.
        seed: int32 [2].
    """
    scale_seed, place_seed = tf.unstack(tf.random.split(seed, 2))
    scale = tf.random.stateless_uniform([], scale_seed, scale_min, scale_max)
    scaled = _scaled(sample, scale * output_size / tf.reduce_max(image_extent(sample.image)))
    sides = tf.shape(scaled.image)[:2]
    size = tf.minimum(sides, output_size)
    cut = crop(scaled, random_offset(sides - size, place_seed), size, min_overlap=0.0)
    return pad(cut, tf.zeros([2], tf.int32), tf.constant([output_size, output_size]))


def random_self_concat_image(
    sample: Sample,
    *,
    concat_vertical_probability: float = 0.1,
    concat_horizontal_probability: float = 0.1,
    seed: tf.Tensor,
) -> Sample:
    """Repeats the image and its objects below and to the right, each with a probability."""
    draws = tf.random.stateless_uniform([2], seed)
    for axis, probability in enumerate((concat_vertical_probability, concat_horizontal_probability)):
        repeat = lambda axis=axis, sample=sample: _repeat(sample, axis)  # noqa: E731
        sample = tf.cond(draws[axis] < probability, repeat, lambda sample=sample: sample)
    return sample


def _repeat(sample: Sample, axis: int) -> Sample:
    size = tf.shape(sample.image)[:2]
    step = size * tf.one_hot(axis, 2, dtype=tf.int32)
    parts = [pad(sample, corner, size + step) for corner in (tf.zeros_like(step), step)]
    return join(tf.concat([sample.image, sample.image], axis=axis), parts)


def _scaled(sample: Sample, factor: tf.Tensor) -> Sample:
    # 640 * (512 / 640) is slightly below 512 in float32.
    size = tf.cast(tf.floor(image_extent(sample.image) * factor + 1e-3), tf.int32)
    return resize_sample(sample, tf.maximum(size, 1))


def _pad_randomly(sample: Sample, low: tf.Tensor, high: tf.Tensor, color: tf.Tensor, seed: tf.Tensor) -> Sample:
    # low, high: int32 [2], min and max (height, width); the image is never cut.
    size_seed, place_seed = tf.unstack(tf.random.split(seed, 2))
    image_size = tf.shape(sample.image)[:2]
    low = tf.maximum(low, image_size)
    size = low + random_offset(tf.maximum(high - low, 0), size_seed)
    return pad(sample, random_offset(size - image_size, place_seed), size, color=color)


def _or_default(values: Sequence[int | None], default: tf.Tensor) -> tf.Tensor:
    return tf.stack([default[axis] if value is None else value for axis, value in enumerate(values)])


def _color(sample: Sample, color: Sequence[float]) -> tf.Tensor:
    if color:
        return tf.constant(color, tf.float32)
    return tf.reduce_mean(tf.cast(sample.image, tf.float32), axis=[0, 1])
