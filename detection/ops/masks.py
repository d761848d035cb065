"""Object masks: pastes crops into images, as pixels or as RLE, and resamples masks within RoIs.

A crop [m, m] is stretched over its box and interpolated bilinearly between the centres of its
cells; values outside are 0, and a pixel belongs to the mask if its value is at least
`THRESHOLD`.  Source: `paste_masks_in_image` of detectron2.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

Rle = dict[str, Any]  # {"size": [height, width], "counts": compressed text}, as in pycocotools

THRESHOLD = 0.5
_MAX_CHARACTERS = 7  # characters per run, 5 bits each, for differences of int32


def paste_masks(crops: tf.Tensor, boxes_yxyx: tf.Tensor, *, height: tf.Tensor | int, width: tf.Tensor | int) -> Any:
    """Pastes crops into masks of the image's size.

    Args:
        crops: float32 [..., m, m], probabilities within each box.
        boxes_yxyx: float32 [..., 4], (ymin, xmin, ymax, xmax) in pixels.
        height: height of the images in pixels.
        width: width of the images in pixels.

    Returns:
        uint8 [..., height, width], 1 inside; 0 everywhere for an empty box.
    """
    cells = crops.shape[-1]
    rows = _weights(boxes_yxyx[..., 0], boxes_yxyx[..., 2], height, cells)
    columns = _weights(boxes_yxyx[..., 1], boxes_yxyx[..., 3], width, cells)
    values = tf.matmul(tf.matmul(rows, crops), columns, transpose_b=True)
    return tf.cast(values >= THRESHOLD, tf.uint8)


def _weights(low: tf.Tensor, high: tf.Tensor, pixels: tf.Tensor | int, cells: int) -> tf.Tensor:
    """Weights [..., pixels, cells] of a crop's cells at each pixel's centre, along one axis."""
    centres = tf.range(tf.cast(pixels, tf.float32)) + 0.5
    side = (high - low)[..., tf.newaxis]
    places = tf.math.divide_no_nan(centres - low[..., tf.newaxis], side) * cells - 0.5
    weights = tf.nn.relu(1.0 - tf.abs(places[..., tf.newaxis] - tf.range(cells, dtype=tf.float32)))
    return tf.where(side[..., tf.newaxis] > 0.0, weights, 0.0)


def encode_rle(masks: tf.Tensor) -> tf.Tensor:
    """Encodes masks as compressed counts of COCO's RLE, with the same bytes as pycocotools.

    Runs go down the columns, background first.  From the fourth run on, the difference to the
    run two before is stored: 5 bits per character, low bits first; bit 5 marks that more
    characters follow.  Source: rleEncode and rleToString of pycocotools.  XLA has no strings.

    Args:
        masks: uint8 [N, height, width], 0 or 1; height * width < 2^31.

    Returns:
        string [N].
    """
    number, pixels = tf.shape(masks)[0], tf.shape(masks)[1] * tf.shape(masks)[2]
    flat = tf.reshape(tf.transpose(masks, [0, 2, 1]), [number, pixels])
    # The last pixel always ends a run, so every mask has at least one.
    changed = tf.pad(flat, [[0, 0], [1, 0]])[:, :-1] != flat
    ends = tf.cast(tf.where(tf.pad(changed, [[0, 0], [0, 1]], constant_values=True)), tf.int32)
    owners, places = ends[:, 0], ends[:, 1]
    runs = places - tf.where(_ago(owners, 1, -1) == owners, _ago(places, 1, 0), 0)
    values = runs - tf.where(_ago(owners, 3, -1) == owners, _ago(runs, 2, 0), 0)
    shifts = 5 * tf.range(_MAX_CHARACTERS)
    # No more characters are needed if bit 4 of a character and all higher bits are equal.
    sign = tf.bitwise.right_shift(values[:, tf.newaxis], tf.minimum(shifts + 4, 31))
    more = (sign != 0) & (sign != -1)
    codes = tf.bitwise.bitwise_and(tf.bitwise.right_shift(values[:, tf.newaxis], shifts), 31)
    codes += 32 * tf.cast(more, tf.int32)
    used = tf.pad(more[:, :-1], [[0, 0], [1, 0]], constant_values=True)
    characters = tf.gather(tf.constant([bytes([48 + code]) for code in range(64)]), codes)
    texts = tf.strings.reduce_join(tf.where(used, characters, ""), axis=1)
    return tf.strings.unsorted_segment_join(texts, owners, number)


def _ago(values: tf.Tensor, steps: int, before: int) -> tf.Tensor:
    """Shifts values [M] back by some steps; the first ones become `before`."""
    return tf.pad(values, [[steps, 0]], constant_values=before)[: tf.shape(values)[0]]


def crop_masks(masks: tf.Tensor, boxes: tf.Tensor, rois: tf.Tensor, index: tf.Tensor, *, size: int) -> tf.Tensor:
    """Resamples objects' masks within RoIs: the targets of a mask head.

    Each of the `size` x `size` cells of a RoI samples the mask of its object at the centre of the
    cell, by bilinear interpolation; the mask is 0 outside of the object's box.  A cell is 1 if
    its value is at least `THRESHOLD`, as in TPU Mask R-CNN and detectron2: targets have boundaries
    as sharp as the masks in the evaluation.

    Args:
        masks: uint8 [B, N, m, m], 1 inside, each object's mask stretched over its box.
        boxes: float32 [B, N, 4], boxes of the objects, (ymin, xmin, ymax, xmax).
        rois: float32 [B, S, 4], same layout and unit.
        index: int32 [B, S], index of the object of each RoI, 0 <= index < N.
        size: cells per side.

    Returns:
        float32 [B, S, size, size], 0 or 1; 0 for an empty box or RoI.
    """
    boxes, cells = tf.gather(boxes, index, batch_dims=1), masks.shape[-1]
    rows = _cell_weights(rois[..., 0], rois[..., 2], boxes[..., 0], boxes[..., 2], size=size, cells=cells)
    columns = _cell_weights(rois[..., 1], rois[..., 3], boxes[..., 1], boxes[..., 3], size=size, cells=cells)
    own = tf.cast(tf.gather(masks, index, batch_dims=1), tf.float32)
    values = tf.matmul(tf.matmul(rows, own), columns, transpose_b=True)
    return tf.stop_gradient(tf.cast(values >= THRESHOLD, tf.float32))


def _cell_weights(
    low: tf.Tensor, high: tf.Tensor, box_low: tf.Tensor, box_high: tf.Tensor, *, size: int, cells: int
) -> tf.Tensor:
    """Weights [..., size, cells] of a mask's cells at the centres of a RoI's cells, along one axis."""
    parts = (tf.range(size, dtype=tf.float32) + 0.5) / size
    centres = low[..., tf.newaxis] + parts * (high - low)[..., tf.newaxis]
    places = tf.math.divide_no_nan(centres - box_low[..., tf.newaxis], (box_high - box_low)[..., tf.newaxis])
    inside = (places > 0.0) & (places < 1.0) & (high > low)[..., tf.newaxis]
    # Border cells extend to the edge of the box: a full mask fills its box up to the corners.
    places = tf.clip_by_value(places * cells - 0.5, 0.0, cells - 1.0)
    weights = tf.nn.relu(1.0 - tf.abs(places[..., tf.newaxis] - tf.range(cells, dtype=tf.float32)))
    return tf.where(inside[..., tf.newaxis], weights, 0.0)


def rle_of_crop(crop: npt.NDArray[Any], box_xywh: npt.NDArray[Any], *, height: int, width: int) -> Rle:
    """Pastes one crop as `paste_masks` does, in float64 and within its box only.

    Args:
        crop: float [m, m], probabilities.
        box_xywh: [4], (x, y, width, height) in pixels.
        height: height of the image in pixels.
        width: width of the image in pixels.

    Returns:
        Compressed RLE of the image's size.
    """
    x, y, box_width, box_height = (float(value) for value in box_xywh)
    top, rows = _places(y, box_height, height, len(crop))
    left, columns = _places(x, box_width, width, len(crop))
    # Both axes at once: the arrays are so small that the number of NumPy calls matters.
    weights = np.concatenate([rows, columns])[:, np.newaxis] - np.arange(len(crop))
    np.abs(weights, out=weights)
    np.subtract(1.0, weights, out=weights)
    np.maximum(0.0, weights, out=weights)
    inside = weights[: len(rows)] @ crop.astype(np.float64) @ weights[len(rows) :].T >= THRESHOLD
    return rle_of_window(inside, top=top, left=left, height=height, width=width)


def _places(start: float, side: float, pixels: int, cells: int) -> tuple[int, npt.NDArray[np.float64]]:
    """Returns a box's first pixel along one axis, and its pixels' positions in cells from the first cell's centre."""
    first = min(max(math.floor(start), 0), pixels)
    last = max(min(math.ceil(start + side), pixels), first) if side > 0.0 else first
    return first, (np.arange(first, last, dtype=np.float64) + 0.5 - start) * cells / (side or 1.0) - 0.5


def rle_of_window(inside: npt.NDArray[Any], *, top: int, left: int, height: int, width: int) -> Rle:
    """Encodes a mask from the pixels of a window, without building the mask of the image.

    Args:
        inside: bool or uint8 [h, w], pixels of the window.
        top: row of the window's first pixel in the image.
        left: column of the window's first pixel in the image.
        height: height of the image in pixels.
        width: width of the image in pixels.

    Returns:
        Compressed RLE of the image's size.
    """
    from pycocotools import mask

    rows, columns = inside.shape
    padded = np.zeros((rows + 2, columns), bool)
    padded[1:-1] = inside
    # There are few changes along columns: sorting them is faster than transposing the mask.
    row, column = np.divmod(np.flatnonzero(padded[1:] != padded[:-1]), max(columns, 1))
    bounds = np.sort((column + left) * height + row + top)
    # A run that ends at the bottom of a column may continue at the top of the next one.
    apart = np.ones(len(bounds) + 1, bool)
    apart[1:-1] = bounds[1:] != bounds[:-1]
    bounds = np.concatenate([[0], bounds[apart[1:] & apart[:-1]], [height * width]])
    counts = (bounds[1:] - bounds[:-1]).tolist()
    if len(counts) > 1 and counts[-1] == 0:
        counts.pop()
    rle = mask.frPyObjects({"size": [height, width], "counts": counts}, height, width)
    return {"size": [height, width], "counts": rle["counts"].decode("ascii")}
