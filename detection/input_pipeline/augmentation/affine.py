"""Rotation, shear and translation of an image with its boxes, masks and keypoints.

One map, in continuous pixel coordinates (y, x) with pixel i covering [i, i + 1],
moves everything; pixels and masks are read at the nearest source pixel's centre.
"""

import math
from typing import NamedTuple

import tensorflow as tf

from detection.input_pipeline.sample import Sample, keep_labelled, select

# What fills the places that no source pixel reaches; mid-grey, as in AutoAugment.
FILL = 128


class Affine(NamedTuple):
    """Where a point goes, in pixels: new y = yy * y + yx * x + y0, new x = xy * y + xx * x + x0.

    All are float32 scalars or numbers, yy * xx - yx * xy is not 0.  (Single numbers, not
    a matrix: slicing one is most of the graph otherwise.)
    """

    yy: tf.Tensor | float = 1.0
    yx: tf.Tensor | float = 0.0
    y0: tf.Tensor | float = 0.0
    xy: tf.Tensor | float = 0.0
    xx: tf.Tensor | float = 1.0
    x0: tf.Tensor | float = 0.0


class Content(NamedTuple):
    """What moves when pixels move: a whole image's content, or that of a part of it.

    image: uint8 [H, W, 3].
    masks: uint8 [N, H, W], or None.
    keypoints: float32 [N, K, 3], (y, x, visibility), normalised to H and W; or None.
    """

    image: tf.Tensor
    masks: tf.Tensor | None
    keypoints: tf.Tensor | None


def rotation(degrees: tf.Tensor, extent: tf.Tensor) -> Affine:
    """A turn about the middle of `extent`, float32 (height, width); anticlockwise as one sees it."""
    radians = degrees * (math.pi / 180.0)
    cosine, sine = tf.cos(radians), tf.sin(radians)
    y, x = tf.unstack(extent / 2.0)
    # y points down: what goes to the right goes up, to smaller y.
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

    A box becomes the upright box around its moved corners, cut at the image's border.
    AutoAugment's code keeps an object that has left the image, as a strip of a
    twentieth of the image at the border it crossed: a box around nothing of the
    object.  Here such objects are dropped, like those that a crop leaves out.

    Args:
        sample: image, normalised boxes and what else there is.
        affine: in pixels of the image.

    Returns:
        A sample of the same image size; the objects left keep their order.
    """
    content = warp_content(Content(sample.image, sample.masks, sample.keypoints), affine)
    corners = tf.reshape(tf.gather(sample.boxes_yxyx, [0, 1, 0, 3, 2, 1, 2, 3], axis=-1), [-1, 4, 2])
    moved = tf.clip_by_value(_moved_points(corners, affine, image_extent(sample.image)), 0.0, 1.0)
    first, last = tf.reduce_min(moved, axis=1), tf.reduce_max(moved, axis=1)
    boxes = tf.concat([first, last], axis=-1)
    return select(sample._replace(boxes_yxyx=boxes, **content._asdict()), tf.reduce_all(last > first, axis=-1))


def warp_content(content: Content, affine: Affine) -> Content:
    """Moves pixels, masks and keypoints.

    Bare places become mid-grey in the image and 0 in the masks.  Keypoints that
    leave the image become unlabelled: (0, 0, 0).
    """
    transform = _pixel_transform(affine)
    image = _warp_pixels(content.image[tf.newaxis], transform, fill=FILL)[0]
    masks, keypoints = content.masks, content.keypoints
    if masks is not None:
        masks = _warp_pixels(masks[..., tf.newaxis], transform, fill=0)[..., 0]
    if keypoints is not None:
        points, visibility = tf.split(keypoints, [2, 1], axis=-1)
        moved = _moved_points(points, affine, image_extent(content.image))
        keypoints = keep_labelled(tf.concat([moved, visibility], axis=-1))
    return Content(image, masks, keypoints)


def image_extent(image: tf.Tensor) -> tf.Tensor:
    """Height and width of [H, W, C] in pixels: float32 [2]."""
    return tf.cast(tf.shape(image)[:2], tf.float32)


def _pixel_transform(affine: Affine) -> tf.Tensor:
    """What the op below wants: the way back, from a new pixel's index (x, y) to the old one's."""
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


def _moved_points(points: tf.Tensor, affine: Affine, extent: tf.Tensor) -> tf.Tensor:
    # points: [..., 2], (y, x), normalised to `extent`.
    y, x = tf.unstack(points * extent, axis=-1)
    moved = [affine.yy * y + affine.yx * x + affine.y0, affine.xy * y + affine.xx * x + affine.x0]
    return tf.stack(moved, axis=-1) / extent
