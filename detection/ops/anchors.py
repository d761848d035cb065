"""Anchor boxes of a feature pyramid, and their assignment to objects."""

import functools
import logging
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.ops.boxes import area_yxyx, intersection_yxyx

_LOGGER = logging.getLogger("cocoflow.ops")
_OBJECTS_AT_ONCE = 4  # objects per loop step; with fewer, the best IoUs so far are read and written more often
_BLOCK = 128  # anchors per block in the search for an object's best anchor

AspectRatio = float | tuple[float, float]
AnchorLayout = Literal["cells", "od-api", "corners"]


def feature_sizes(image_size: tuple[int, int], max_level: int) -> list[tuple[int, int]]:
    """Returns (height, width) of the feature maps of levels 0..max_level, each half the previous one, rounded up."""
    sizes = [image_size]
    for _ in range(max_level):
        height, width = sizes[-1]
        sizes.append(((height + 1) // 2, (width + 1) // 2))
    return sizes


def pyramid_anchors_yxyx(
    image_size: tuple[int, int],
    *,
    min_level: int,
    max_level: int,
    num_scales: int,
    aspect_ratios: Sequence[AspectRatio],
    anchor_scale: float | Sequence[float],
    layout: AnchorLayout = "cells",
) -> npt.NDArray[np.float32]:
    """Returns the anchors of all cells, ordered by level, row, column, octave scale, aspect ratio.

    An anchor's base side is `anchor_scale` strides times 2^(o/num_scales).  In the layout `cells`, a
    cell's stride is the exact ratio of image size and feature size, and anchors are at the centres of
    cells.  In the layout `od-api`, the stride is 2^l; if the image's side is a multiple of it, the first
    anchor is at half a stride, else at 0.  For multiples, both are equal.  In the layout `corners`,
    the stride is 2^l, and the first anchor is at 0.

    Sources: google/automl EfficientDet's `anchors.py`; the TF Object Detection API's
    `multiscale_grid_anchor_generator.py` and `grid_anchor_generator.py`.

    Args:
        image_size: (height, width) of the network input in pixels.
        min_level: finest pyramid level; level l has about image_size / 2^l cells per side.
        max_level: coarsest level.
        num_scales: octave scales, o = 0..num_scales-1.
        aspect_ratios: each width / height of anchors of the base side's area, or the pair
            (width, height) in base sides.
        anchor_scale: base anchor side in strides: one for all levels, or one per level, finest first.
        layout: strides and places of the anchors.

    Returns:
        float32 [A, 4], (ymin, xmin, ymax, xmax) in pixels; anchors may exceed the image.
    """
    sizes = feature_sizes(image_size, max_level)[min_level:]
    scales = [anchor_scale] * len(sizes) if isinstance(anchor_scale, int | float) else anchor_scale
    levels = []
    for level, (height, width), scale in zip(range(min_level, max_level + 1), sizes, scales, strict=True):
        stride, first = np.array([image_size[0] / height, image_size[1] / width]), np.array([0.5, 0.5])
        if layout != "cells":
            stride = np.array([2.0**level, 2.0**level])
            first = np.where((np.array(image_size) % 2**level > 0) | (layout == "corners"), 0.0, 0.5)
        half = _half_sizes(stride, num_scales, aspect_ratios, scale)
        centre_y, centre_x = ((np.arange(side) + first[i]) * stride[i] for i, side in enumerate((height, width)))
        centres = np.stack(np.meshgrid(centre_y, centre_x, indexing="ij"), axis=-1)[:, :, None, :]
        levels.append(np.concatenate([centres - half, centres + half], axis=-1).reshape(-1, 4))
    return np.concatenate(levels).astype(np.float32)


def grid_anchors_yxyx(
    image_size: tuple[int, int], level_sizes: Sequence[tuple[int, int]], shapes: Sequence[Sequence[tuple[float, float]]]
) -> npt.NDArray[np.float32]:
    """Returns SSD's anchors of all cells, at their centres, ordered by level, row, column, shape.

    Source: the TF Object Detection API's `multiple_grid_anchor_generator.py`.

    Args:
        image_size: (height, width) of the network input in pixels.
        level_sizes: (height, width) of the features of each level.
        shapes: for each level, (scale, width / height) of the anchors of a cell; an anchor's area is that of a square
            whose side is `scale` times the image's short side.

    Returns:
        float32 [A, 4], (ymin, xmin, ymax, xmax) in pixels; anchors may exceed the image.
    """
    levels = []
    for size, of_level in zip(level_sizes, shapes, strict=True):
        scales, ratios = np.array(of_level).T
        half = min(image_size) * scales[:, np.newaxis] * np.stack([ratios**-0.5, ratios**0.5], axis=-1) / 2.0
        centre_y, centre_x = ((np.arange(side) + 0.5) * image_size[i] / side for i, side in enumerate(size))
        centres = np.stack(np.meshgrid(centre_y, centre_x, indexing="ij"), axis=-1)[:, :, np.newaxis]
        levels.append(np.concatenate([centres - half, centres + half], axis=-1).reshape(-1, 4))
    return np.concatenate(levels).astype(np.float32)


def _half_sizes(
    stride: npt.NDArray[np.float64], num_scales: int, aspect_ratios: Sequence[AspectRatio], anchor_scale: float
) -> npt.NDArray[np.float64]:
    """Returns half (height, width) of one cell's anchors, float64 [num_scales * len(aspect_ratios), 2]."""
    shapes = []
    for octave in range(num_scales):
        side = 2.0 ** (octave / num_scales)
        for ratio in aspect_ratios:
            if isinstance(ratio, int | float):
                shapes.append((side / ratio**0.5, side * ratio**0.5))
            else:
                width, height = ratio
                shapes.append((side * height, side * width))
    return np.array(shapes) * stride * anchor_scale / 2.0


class Assignment(NamedTuple):
    """Result of `assign_anchors`.

    positive: bool [B, A], the anchor is assigned to an object.
    ignored: bool [B, A], the anchor is neither positive nor background; None if no anchor can be.
    index: int32 [B, A], index of the assigned object, 0 <= index < N; undefined if not positive.
    """

    positive: tf.Tensor
    ignored: tf.Tensor | None
    index: tf.Tensor

    def ignore(self, anchors: tf.Tensor) -> "Assignment":
        """Returns the assignment with more ignored anchors: bool [B, A], or [A] for all images."""
        ignored = tf.zeros_like(self.positive) if self.ignored is None else self.ignored
        return self._replace(ignored=ignored | anchors)


def assign_anchors(
    anchors: tf.Tensor,
    boxes: tf.Tensor,
    valid: tf.Tensor,
    *,
    claims: tf.Tensor | None = None,
    match_threshold: float = 0.5,
    unmatched_threshold: float | None = None,
    force_match: bool = True,
) -> Assignment:
    """Assigns each anchor to the object that it overlaps most, if the IoU reaches the threshold.

    With `force_match`, each valid object is also assigned the anchor that overlaps it most
    (the first one in a tie), at any IoU above 0, so that every object has an anchor; if two
    objects claim the same anchor, the first object gets it.  Padding gets no anchor.  Source: the
    TF Object Detection API's `ArgMaxMatcher`, with its `force_match_for_each_row`.

    Args:
        anchors: float32 [A, 4], (ymin, xmin, ymax, xmax).
        boxes: float32 [B, N, 4], same layout and unit.
        valid: bool [B, N], False for padding.
        claims: bool [B, N], the objects of which `force_match` is true; None: `valid`.
        match_threshold: min intersection over union of a positive anchor, 0 < threshold <= 1.
        unmatched_threshold: anchors that are not positive are ignored if their best IoU is at
            least this, 0 < threshold <= match_threshold; None: match_threshold, so that no
            anchor is ignored.
        force_match: each object also gets the anchor with the best IoU.
    """
    # On GPUs, separate operations are fast, and XLA needs parts of CUDA that not every installation has.
    compiled = not tf.config.list_physical_devices("GPU") and _compiles()
    best = (_compiled_best_overlaps if compiled else _best_overlaps)(anchors, boxes, valid)
    positive, index = best.iou >= match_threshold, best.index
    if force_match:
        claiming = valid if claims is None else claims
        claimant = _first_claimants(best.anchor, tf.where(claiming[..., tf.newaxis], boxes, 0.0), anchors)
        is_claimed = claimant < boxes.shape[1]
        positive, index = positive | is_claimed, tf.where(is_claimed, claimant, index)
    has_band = unmatched_threshold is not None and unmatched_threshold < match_threshold
    return Assignment(
        positive=positive, ignored=~positive & (best.iou >= unmatched_threshold) if has_band else None, index=index
    )


class _Overlaps(NamedTuple):
    """The best overlaps between anchors and objects; ties go to the lower index.

    iou: float32 [B, A], IoU of each anchor with the object that it overlaps most.
    index: int32 [B, A], index of that object.
    anchor: int32 [B, N], index of the anchor that overlaps each object most.
    """

    iou: tf.Tensor
    index: tf.Tensor
    anchor: tf.Tensor


def _best_overlaps(anchors: tf.Tensor, boxes: tf.Tensor, valid: tf.Tensor) -> _Overlaps:
    """Compares all anchors with a few objects at a time; arguments as in `assign_anchors`.

    A matrix of all IoUs would be much larger and mostly padding: images have far fewer objects
    than rows.  On CPUs, a maximum is cheap and an argmax is not, so the best anchor of an object
    is only searched in the block with the highest maximum.
    """
    rows = tf.where(valid, tf.range(1, boxes.shape[1] + 1), 0)
    count = tf.reduce_max(rows)  # rows beyond are padding in all images
    by_object = tf.transpose(tf.where(valid[..., tf.newaxis], boxes, 0.0), [1, 0, 2])[:, :, tf.newaxis]
    by_object = tf.pad(by_object, [[0, -boxes.shape[1] % _OBJECTS_AT_ONCE], [0, 0], [0, 0], [0, 0]])
    outside = tf.repeat([[-2.0, -2.0, -1.0, -1.0]], -anchors.shape[0] % _BLOCK, axis=0)
    padded = tf.concat([anchors, outside], axis=0)
    blocks = tf.reshape(padded, [-1, _BLOCK, 4])

    def compare(number: tf.Tensor, iou: tf.Tensor, index: tf.Tensor, of_blocks: tf.Tensor) -> tuple[tf.Tensor, ...]:
        for row in (number + offset for offset in range(_OBJECTS_AT_ONCE)):
            ious = _iou_with_anchors(by_object[row], padded)
            best = tf.reduce_max(tf.reshape(ious, [-1, *blocks.shape[:2]]), axis=2)
            of_blocks = tf.tensor_scatter_nd_update(of_blocks, row[tf.newaxis, tf.newaxis], best[tf.newaxis])
            iou, index = tf.maximum(iou, ious), tf.where(ious > iou, row, index)
        return number + _OBJECTS_AT_ONCE, iou, index, of_blocks

    shape = tf.shape(boxes)[0], padded.shape[0]
    of_blocks = tf.zeros([*tf.unstack(tf.shape(by_object)[:2]), blocks.shape[0]])
    start = tf.constant(0), tf.zeros(shape), tf.zeros(shape, tf.int32), of_blocks
    _, iou, index, of_blocks = tf.while_loop(lambda number, *_: number < count, compare, start)
    block = tf.argmax(of_blocks, axis=2, output_type=tf.int32)
    within = tf.argmax(_iou_with_anchors(by_object, tf.gather(blocks, block)), axis=2, output_type=tf.int32)
    anchor = tf.transpose(block * _BLOCK + within)
    return _Overlaps(iou[:, : anchors.shape[0]], index[:, : anchors.shape[0]], anchor[:, : boxes.shape[1]])


# XLA fuses the twenty operations of an IoU into one pass over the anchors, which is three times as fast.
_compiled_best_overlaps = tf.function(_best_overlaps, autograph=False, jit_compile=True)


@functools.cache
def _compiles() -> bool:
    """Returns whether XLA can compile the overlaps for this machine's CPU; logs a warning, once, if not."""
    try:
        with tf.init_scope(), tf.device("CPU"):
            box = tf.constant([[0.0, 0.0, 1.0, 1.0]])
            _compiled_best_overlaps(box, box[tf.newaxis], tf.constant([[True]]))
    except tf.errors.OpError as error:
        reason = error.message.strip().partition("\n")[0]
        _LOGGER.warning("XLA cannot compile the assignment of anchors (%s): without it, training takes longer", reason)
        return False
    return True


def _iou_with_anchors(boxes: tf.Tensor, anchors: tf.Tensor) -> tf.Tensor:
    """`iou_yxyx` of boxes and anchors without a zero-union guard: anchors have positive area."""
    overlap = intersection_yxyx(boxes, anchors)
    return overlap / (area_yxyx(boxes) + area_yxyx(anchors) - overlap)


def _first_claimants(anchor: tf.Tensor, boxes: tf.Tensor, anchors: tf.Tensor) -> tf.Tensor:
    """Returns, for each anchor, the first object with it as best anchor, int32 [B, A]; N or more: no object."""
    batch, rows, count = tf.shape(boxes)[0], boxes.shape[1], anchors.shape[0]
    overlaps = intersection_yxyx(boxes, tf.gather(anchors, anchor)) > 0.0
    place = tf.where(overlaps, anchor + count * tf.range(batch)[:, tf.newaxis], -1)  # -1: ignored below
    numbers = tf.broadcast_to(tf.range(rows), tf.shape(place))
    return tf.reshape(tf.math.unsorted_segment_min(numbers, place, batch * count), [batch, count])


def anchors_inside(anchors: tf.Tensor, boxes: tf.Tensor, valid: tf.Tensor, *, min_fraction: float) -> tf.Tensor:
    """Marks the anchors with at least a fraction of their area inside one region.

    COCO's evaluation uses the same fraction to compare detections with crowds.

    Args:
        anchors: float32 [A, 4], (ymin, xmin, ymax, xmax).
        boxes: float32 [B, N, 4], regions, same layout and unit.
        valid: bool [B, N], True for regions, False for padding.
        min_fraction: min fraction of an anchor's area, 0 < min_fraction <= 1.

    Returns:
        bool [B, A].
    """
    fractions = tf.math.divide_no_nan(intersection_yxyx(boxes[:, :, tf.newaxis], anchors), area_yxyx(anchors))
    return tf.reduce_any((fractions >= min_fraction) & valid[..., tf.newaxis], axis=1)
