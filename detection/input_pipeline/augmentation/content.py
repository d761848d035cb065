"""Moving an image's content: affine maps of the image, and changes within single boxes.

An affine map, in continuous pixel coordinates (y, x) with pixel i covering [i, i + 1], moves
image, boxes, masks and keypoints; pixels and masks take the value of the nearest source pixel.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from detection.input_pipeline.sample import Sample, inside, keep_labelled, select

# Fills areas without source pixels; mid-grey, as in AutoAugment.
FILL = 128


class Content(NamedTuple):
    """Content of an image, or of a part of it: everything that moves with the pixels.

    image: uint8 [H, W, 3].
    masks: uint8 [N, H, W], or None.
    keypoints: float32 [N, K, 3], (y, x, visibility), normalised to H and W; or None.
    """

    image: tf.Tensor
    masks: tf.Tensor | None
    keypoints: tf.Tensor | None


# Maps the content of a box and a seed, int32 [2], to new content of the same size.
Change = Callable[[Content, tf.Tensor], Content]


class Affine(NamedTuple):
    """An affine map of points, in pixels: new y = yy * y + yx * x + y0, new x = xy * y + xx * x + x0.

    All are float32 scalars or numbers; yy * xx - yx * xy is not 0.  (Separate numbers, because
    slicing a matrix would take most of the graph.)
    """

    yy: tf.Tensor | float = 1.0
    yx: tf.Tensor | float = 0.0
    y0: tf.Tensor | float = 0.0
    xy: tf.Tensor | float = 0.0
    xx: tf.Tensor | float = 1.0
    x0: tf.Tensor | float = 0.0


def rotation(degrees: tf.Tensor, extent: tf.Tensor) -> Affine:
    """Rotates about the centre of `extent`, float32 (height, width), anticlockwise as displayed."""
    radians = degrees * (math.pi / 180.0)
    cosine, sine = tf.cos(radians), tf.sin(radians)
    y, x = tf.unstack(extent / 2.0)
    # y points down: points to the right move up, to smaller y.
    return Affine(cosine, -sine, y - cosine * y + sine * x, sine, cosine, x - sine * y - cosine * x)


def shear_x(level: tf.Tensor) -> Affine:
    """Moves each row to the left by `level` times its distance to the upper edge."""
    return Affine(xy=-level)


def shear_y(level: tf.Tensor) -> Affine:
    """Moves each column up by `level` times its distance to the left edge."""
    return Affine(yx=-level)


def translation_x(pixels: tf.Tensor) -> Affine:
    """Moves everything to the left by `pixels`."""
    return Affine(x0=-pixels)


def translation_y(pixels: tf.Tensor) -> Affine:
    """Moves everything up by `pixels`."""
    return Affine(y0=-pixels)


def warp(sample: Sample, affine: Affine) -> Sample:
    """Moves a sample's content and boxes.

    A box becomes the bounding box of its moved corners, clipped to the image.  AutoAugment's code
    keeps objects that have left the image, as a strip of a twentieth of the image at the border.
    Here such objects are dropped, as in crops.

    Args:
        sample: image, normalised boxes and optional fields.
        affine: affine map in pixels of the image.

    Returns:
        A sample of the same image size; the remaining objects keep their order.
    """
    content = warp_content(Content(sample.image, sample.masks, sample.keypoints), affine)
    corners = tf.reshape(tf.gather(sample.boxes_yxyx, [0, 1, 0, 3, 2, 1, 2, 3], axis=-1), [-1, 4, 2])
    moved = tf.clip_by_value(_move_points(corners, affine, image_extent(sample.image)), 0.0, 1.0)
    first, last = tf.reduce_min(moved, axis=1), tf.reduce_max(moved, axis=1)
    boxes = tf.concat([first, last], axis=-1)
    return select(sample._replace(boxes_yxyx=boxes, **content._asdict()), tf.reduce_all(last > first, axis=-1))


def warp_content(content: Content, affine: Affine) -> Content:
    """Moves pixels, masks and keypoints.

    Areas without source become mid-grey in the image and 0 in the masks.  Keypoints that leave the
    image become unlabelled: (0, 0, 0).
    """
    transform = _pixel_transform(affine)
    image = _warp_pixels(content.image[tf.newaxis], transform, fill=FILL)[0]
    masks, keypoints = content.masks, content.keypoints
    if masks is not None:
        masks = _warp_pixels(masks[..., tf.newaxis], transform, fill=0)[..., 0]
    if keypoints is not None:
        points, visibility = tf.split(keypoints, [2, 1], axis=-1)
        moved = _move_points(points, affine, image_extent(content.image))
        keypoints = keep_labelled(tf.concat([moved, visibility], axis=-1))
    return Content(image, masks, keypoints)


def image_extent(image: tf.Tensor) -> tf.Tensor:
    """Returns the height and width of [H, W, C] in pixels: float32 [2]."""
    return tf.cast(tf.shape(image)[:2], tf.float32)


def _pixel_transform(affine: Affine) -> tf.Tensor:
    """Computes the inverse map for the op below: from the index (x, y) of a new pixel to that of its source."""
    determinant = affine.yy * affine.xx - affine.yx * affine.xy
    yy, yx = affine.xx / determinant, -affine.yx / determinant
    xy, xx = -affine.xy / determinant, affine.yy / determinant
    # A pixel's centre is half a pixel from its index.
    y, x = 0.5 - affine.y0, 0.5 - affine.x0
    return tf.stack([[xx, xy, xy * y + xx * x - 0.5, yx, yy, yy * y + yx * x - 0.5, 0.0, 0.0]])


def _warp_pixels(images: tf.Tensor, transform: tf.Tensor, *, fill: int) -> tf.Tensor:
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=transform,
        output_shape=tf.shape(images)[1:3],
        fill_value=tf.constant(fill, tf.float32),
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )


def _move_points(points: tf.Tensor, affine: Affine, extent: tf.Tensor) -> tf.Tensor:
    # points: [..., 2], (y, x), normalised to `extent`.
    y, x = tf.unstack(points * extent, axis=-1)
    moved = [affine.yy * y + affine.yx * x + affine.y0, affine.xy * y + affine.xx * x + affine.x0]
    return tf.stack(moved, axis=-1) / extent


def pixel_box(box_yxyx: tf.Tensor, image: tf.Tensor) -> tf.Tensor:
    """Returns the pixels that a normalised box touches, at least one.

    Args:
        box_yxyx: float32 [..., 4].
        image: [H, W, 3].

    Returns:
        int32 [..., 4]: first row, first column, one past the last row and column.
    """
    size = image_extent(image)
    # A thousandth of a pixel covers the rounding of normalised coordinates.
    first = tf.minimum(tf.floor(box_yxyx[..., :2] * size + 1e-3), size - 1.0)
    end = tf.clip_by_value(tf.math.ceil(box_yxyx[..., 2:] * size - 1e-3), first + 1.0, size)
    return tf.cast(tf.concat([first, end], axis=-1), tf.int32)


def change_boxes(sample: Sample, change: Change, *, probability: tf.Tensor, seed: tf.Tensor) -> Sample:
    """Changes the content of random boxes, one after the other in random order.

    The boxes do not change.  All masks, and all keypoints in a changed box, move with its pixels,
    even if they belong to other objects.

    Args:
        sample: image, normalised boxes and optional fields.
        change: maps a box's content and a seed to new content; keypoints are normalised to the
            box, and unlabelled outside of it.
        probability: float32 scalar, per box.
        seed: int32 [2].

    Returns:
        The sample with new image, masks and keypoints.
    """
    draw_seed, change_seed = tf.unstack(tf.random.split(seed, 2))
    draws = tf.random.stateless_uniform([tf.shape(sample.boxes_yxyx)[0]], draw_seed)
    count = tf.math.count_nonzero(draws < probability, dtype=tf.int32)
    # The smallest draws are below the probability; their order is random.
    boxes = pixel_box(tf.gather(sample.boxes_yxyx, tf.argsort(draws)[:count]), sample.image)

    def step(number: tf.Tensor, *tensors: tf.Tensor) -> tuple[tf.Tensor, ...]:
        changed = _change_box(
            _content(sample, tensors),
            boxes[number],
            lambda content: change(content, tf.random.fold_in(change_seed, number)),
        )
        return number + 1, *_tensors(changed)

    start = (tf.constant(0), *_tensors(Content(sample.image, sample.masks, sample.keypoints)))
    shapes = tuple(tf.TensorShape([None] * (tensor.shape.rank or 0)) for tensor in start)
    result = tf.while_loop(lambda number, *_: number < count, step, start, shape_invariants=shapes)
    return sample._replace(**_content(sample, result[1:])._asdict())


def paste(whole: tf.Tensor, part: tf.Tensor, box: tf.Tensor) -> tf.Tensor:
    """Replaces the pixels of `box` in `whole`.

    Args:
        whole: [..., H, W, C].
        part: [..., h, w, C].
        box: int32 [4], first row, first column, one past the last row and column.

    Returns:
        Like `whole`.
    """
    above, _, below, left, _, right = _parts(whole, box)
    return tf.concat([above, tf.concat([left, part, right], axis=-2), below], axis=-3)


def _parts(whole: tf.Tensor, box: tf.Tensor) -> tuple[tf.Tensor, ...]:
    # [..., H, W, C]: above the box, its rows, below; within its rows: left of the box, the box, right of it.
    top, left, bottom, right = tf.unstack(box)
    height, width = tf.shape(whole)[-3], tf.shape(whole)[-2]
    above, rows, below = tf.split(whole, tf.stack([top, bottom - top, height - bottom]), axis=-3)
    return above, rows, below, *tf.split(rows, tf.stack([left, right - left, width - right]), axis=-2)


def _change_box(content: Content, box: tf.Tensor, change: Callable[[Content], Content]) -> Content:
    size = image_extent(content.image)
    first, end = tf.split(tf.cast(box, tf.float32), 2)
    corner, extent = first / size, (end - first) / size
    image, masks, keypoints = content
    local = Content(
        _parts(image, box)[4],
        None if masks is None else _parts(masks[..., tf.newaxis], box)[4][..., 0],
        None if keypoints is None else keep_labelled(_place(keypoints, 1.0 / extent, -corner / extent)),
    )
    changed = change(local)
    if masks is not None and changed.masks is not None and changed.masks is not local.masks:
        masks = paste(masks[..., tf.newaxis], changed.masks[..., tf.newaxis], box)[..., 0]
    if changed.keypoints is not None and changed.keypoints is not local.keypoints:
        # Rounding must not push a point over the border.
        moved = tf.minimum(_place(changed.keypoints, extent, corner), [1.0, 1.0, 2.0])
        moved = tf.where(changed.keypoints[..., 2:] > 0.0, moved, 0.0)
        keypoints = tf.where(inside(local.keypoints)[..., tf.newaxis], moved, keypoints)
    return Content(paste(image, changed.image, box), masks, keypoints)


def _place(keypoints: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
    # Scales and moves points, keeps the visibility.
    points, visibility = tf.split(keypoints, [2, 1], axis=-1)
    return tf.concat([points * scale + offset, visibility], axis=-1)


def _tensors(content: Content) -> tuple[tf.Tensor, ...]:
    return tuple(tensor for tensor in content if tensor is not None)


def _content(sample: Sample, tensors: tuple[tf.Tensor, ...]) -> Content:
    # The reverse of `_tensors`; `sample` determines the fields and their static shapes.
    left = list(tensors)
    fields = (sample.image, sample.masks, sample.keypoints)
    return Content(*(None if field is None else tf.ensure_shape(left.pop(0), field.shape) for field in fields))
