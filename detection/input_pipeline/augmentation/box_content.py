"""Changing what lies in single boxes: pixels, and the masks and keypoints that lie there."""

from collections.abc import Callable

import tensorflow as tf

from detection.input_pipeline.augmentation.affine import Content, image_extent
from detection.input_pipeline.sample import Sample, inside, keep_labelled

# Content of one box and int32 [2] seed to new content of the same size.
Change = Callable[[Content, tf.Tensor], Content]


def pixel_box(box_yxyx: tf.Tensor, image: tf.Tensor) -> tf.Tensor:
    """The pixels that a normalised box touches, at least one.

    Args:
        box_yxyx: float32 [..., 4].
        image: [H, W, 3].

    Returns:
        int32 [..., 4]: first row, first column, one past the last row and column.
    """
    size = image_extent(image)
    # The thousandth of a pixel takes up the rounding of normalised coordinates.
    first = tf.minimum(tf.floor(box_yxyx[..., :2] * size + 1e-3), size - 1.0)
    end = tf.clip_by_value(tf.math.ceil(box_yxyx[..., 2:] * size - 1e-3), first + 1.0, size)
    return tf.cast(tf.concat([first, end], axis=-1), tf.int32)


def change_boxes(sample: Sample, change: Change, *, probability: tf.Tensor, seed: tf.Tensor) -> Sample:
    """Changes the content of each box with a probability of its own, one after the other in random order.

    The boxes stay.  All masks, and all keypoints that lie in a changed box, follow its
    pixels, whichever object they belong to.

    Args:
        sample: image, normalised boxes and what else there is.
        change: gets a box's content with keypoints normalised to the box, those outside
            unlabelled, and a seed.
        probability: float32 scalar, per box.
        seed: int32 [2].

    Returns:
        The sample with new image, masks and keypoints.
    """
    draw_seed, change_seed = tf.unstack(tf.random.split(seed, 2))
    draws = tf.random.stateless_uniform([tf.shape(sample.boxes_yxyx)[0]], draw_seed)
    count = tf.math.count_nonzero(draws < probability, dtype=tf.int32)
    # The smallest draws are those below the probability; their order is random.
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
    # [..., H, W, C]: above the box, its rows, below; of its rows, to its left, the box, to its right.
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
        None if keypoints is None else keep_labelled(_placed(keypoints, 1.0 / extent, -corner / extent)),
    )
    changed = change(local)
    if masks is not None and changed.masks is not None and changed.masks is not local.masks:
        masks = paste(masks[..., tf.newaxis], changed.masks[..., tf.newaxis], box)[..., 0]
    if changed.keypoints is not None and changed.keypoints is not local.keypoints:
        # Rounding must not push a point over the border.
        moved = tf.minimum(_placed(changed.keypoints, extent, corner), [1.0, 1.0, 2.0])
        moved = tf.where(changed.keypoints[..., 2:] > 0.0, moved, 0.0)
        keypoints = tf.where(inside(local.keypoints)[..., tf.newaxis], moved, keypoints)
    return Content(paste(image, changed.image, box), masks, keypoints)


def _placed(keypoints: tf.Tensor, scale: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
    # Scaled and moved, visibility left as it is.
    points, visibility = tf.split(keypoints, [2, 1], axis=-1)
    return tf.concat([points * scale + offset, visibility], axis=-1)


def _tensors(content: Content) -> tuple[tf.Tensor, ...]:
    return tuple(tensor for tensor in content if tensor is not None)


def _content(sample: Sample, tensors: tuple[tf.Tensor, ...]) -> Content:
    # The reverse of `_tensors`; `sample` tells which are there, and their static shapes.
    left = list(tensors)
    fields = (sample.image, sample.masks, sample.keypoints)
    return Content(*(None if field is None else tf.ensure_shape(left.pop(0), field.shape) for field in fields))
