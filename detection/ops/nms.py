"""Non-maximum suppression with static shapes: hard, soft with decaying scores, and both by TensorFlow's own op.

All are exact greedy searches: repeatedly pick the best box, then remove the boxes that overlap
it (hard), or lower their scores (soft: Bodla et al., "Soft-NMS", 2017).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from detection.ops.boxes import area_yxyx, pairwise_iou_yxyx

_REMOVED = -1.0  # score of picked boxes and of padding
_TILE = 64  # candidates that hard NMS compares at once


class Picked(NamedTuple):
    """The boxes that NMS picked and that count, in the order in which they were picked.

    indices: int32 [B, M], indices into the K candidates, 0 beyond `num`.
    scores: float32 [B, M], scores when picked, 0 beyond `num`.
    num: int32 [B], the number of picked boxes.
    """

    indices: tf.Tensor
    scores: tf.Tensor
    num: tf.Tensor


def hard_nms(
    boxes: tf.Tensor,
    scores: tf.Tensor,
    classes: tf.Tensor | None,
    *,
    iou_threshold: float,
    score_threshold: float,
    max_outputs: int,
    max_per_class: int | None = None,
    counts: tf.Tensor | None = None,
) -> Picked:
    """Picks boxes from the best to the worst, except those that overlap a picked box of their class.

    A box is dropped if its intersection over union with a picked box of the same class is
    above `iou_threshold`.  Candidates are compared in tiles, with the boxes picked before and
    with each other, until every image has all its boxes.  The work depends on the number of
    candidates up to the last picked box, not on K.

    Boxes that do not count are dropped after they were picked: they suppress others, the first M of them, and they
    belong to the boxes of their class.

    Args:
        boxes: float32 [B, K, 4], (ymin, xmin, ymax, xmax), any unit.
        scores: float32 [B, K], >= 0, best first; ties are picked in this order.
        classes: int32 [B, K]; None: boxes suppress boxes of any class.
        iou_threshold: 0 <= threshold <= 1.
        score_threshold: boxes need a score above this.
        max_outputs: M, max number of picked boxes.
        max_per_class: max number of picked boxes of a class; None: no limit, as without classes.
        counts: bool [B, K], boxes that the result may contain; None: all.

    Returns:
        The picked boxes, best score first.
    """
    batch, count = scores.shape[0] or tf.shape(scores)[0], scores.shape[1]
    size = min(_TILE, count)
    tiles = -(-count // size)
    more = tiles * size - count
    boxes = tf.pad(boxes, [[0, 0], [0, more], [0, 0]])
    scores = tf.pad(scores, [[0, 0], [0, more]], constant_values=_REMOVED)
    classes = None if classes is None else tf.pad(classes, [[0, 0], [0, more]])
    counts = None if counts is None else tf.pad(counts, [[0, 0], [0, more]])
    slots, places = tf.range(max_outputs), tf.range(size)
    kinds = 1 if counts is None else 2  # the boxes that count, and the others

    def part(values: tf.Tensor, tile: tf.Tensor) -> tf.Tensor:
        shape = [batch, size, *values.shape[2:]]
        return tf.slice(values, [0, tile * size, *[0] * (values.shape.rank - 2)], shape)

    def unfinished(tile: tf.Tensor, _picked: Sequence[tf.Tensor], nums: Sequence[tf.Tensor]) -> tf.Tensor:
        best = tf.gather(scores, tf.minimum(tile, tiles - 1) * size, axis=1)
        return (tile < tiles) & tf.reduce_any((nums[0] < max_outputs) & (best > score_threshold))

    def compare(
        tile: tf.Tensor, picked: Sequence[tf.Tensor], nums: Sequence[tf.Tensor]
    ) -> tuple[tf.Tensor, Sequence[tf.Tensor], Sequence[tf.Tensor]]:
        before = tf.concat(picked, axis=1)
        others = tf.concat([tf.gather(boxes, before, batch_dims=1), part(boxes, tile)], axis=1)
        overlaps = pairwise_iou_yxyx(part(boxes, tile), others) > iou_threshold
        same_class = None
        if classes is not None:
            of_others = tf.concat([tf.gather(classes, before, batch_dims=1), part(classes, tile)], axis=1)
            same_class = part(classes, tile)[:, :, tf.newaxis] == of_others[:, tf.newaxis]
            overlaps &= same_class
        is_picked = tf.concat([slots < num[:, tf.newaxis] for num in nums], axis=1)[:, tf.newaxis]
        free = ~tf.reduce_any(overlaps[:, :, :-size] & is_picked, axis=2)
        free &= part(scores, tile) > score_threshold
        is_before = places < places[:, tf.newaxis]
        kept = _first_ones(free, overlaps[:, :, -size:] & is_before)
        if max_per_class is not None and same_class is not None:
            of_class = tf.broadcast_to(is_picked, tf.shape(overlaps[:, :, :-size]))
            of_class = same_class & tf.concat([of_class, kept[:, tf.newaxis] & is_before], axis=2)
            kept &= tf.math.count_nonzero(of_class, axis=2, dtype=tf.int32) < max_per_class
        own = [kept] if counts is None else [kept & part(counts, tile), kept & ~part(counts, tile)]
        appended = [_append(*each, start=tile * size) for each in zip(picked, nums, own, strict=True)]
        return tile + 1, [indices for indices, _ in appended], [num for _, num in appended]

    start = (tf.constant(0), [tf.zeros([batch, max_outputs], tf.int32)] * kinds, [tf.zeros([batch], tf.int32)] * kinds)
    _, picked, nums = tf.while_loop(unfinished, compare, start, maximum_iterations=tiles)
    values = tf.gather(scores, picked[0], batch_dims=1)
    return Picked(picked[0], tf.where(slots < nums[0][:, tf.newaxis], values, 0.0), nums[0])


def _first_ones(free: tf.Tensor, overlaps: tf.Tensor) -> tf.Tensor:
    """Marks the candidates of a tile that a greedy search keeps.

    A candidate is kept if no kept candidate before it overlaps it.  Each iteration over all
    candidates at once decides at least one more; a few iterations usually decide all.

    Args:
        free: bool [B, T], candidates that no box before the tile suppresses.
        overlaps: bool [B, T, T], the candidate of the last axis comes before the candidate of
            the other axis, and overlaps it.

    Returns:
        bool [B, T].
    """

    def again(kept: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        better = free & ~tf.reduce_any(overlaps & kept[:, tf.newaxis], axis=2)
        return better, tf.reduce_any(better != kept)

    kept, _ = tf.while_loop(lambda _, changed: changed, again, (free, tf.constant(True)))
    return kept


def _append(picked: tf.Tensor, num: tf.Tensor, kept: tf.Tensor, *, start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Appends the kept candidates of the tile at `start`, up to the max number of boxes."""
    size, slots = kept.shape[1], tf.range(picked.shape[1])
    more = tf.reduce_sum(tf.cast(kept, tf.int32), axis=1)
    _, order = tf.math.top_k(tf.where(kept, size - tf.range(size), 0), size)  # the kept ones first, in their order
    source = slots - num[:, tf.newaxis]
    new = tf.gather(order, tf.clip_by_value(source, 0, size - 1), batch_dims=1) + start
    is_new = (source >= 0) & (source < more[:, tf.newaxis])
    return tf.where(is_new, new, picked), tf.minimum(num + more, picked.shape[1])


def linear_decay(iou: tf.Tensor, *, iou_threshold: float) -> tf.Tensor:
    """Returns the factors of linear soft NMS: 1 - IoU above the threshold, otherwise 1 (Bodla et al., eq. 2)."""
    return tf.where(iou > iou_threshold, 1.0 - iou, 1.0)


def gaussian_decay(iou: tf.Tensor, *, sigma: float) -> tf.Tensor:
    """Returns the factors of Gaussian soft NMS: exp(-IoU^2 / sigma) (Bodla et al., eq. 3).

    TensorFlow's `non_max_suppression_with_scores` divides by 2 * sigma: pass half of this sigma
    for the same factors.
    """
    return tf.exp(tf.square(iou) * (-1.0 / sigma))


def soft_nms(
    boxes: tf.Tensor,
    scores: tf.Tensor,
    classes: tf.Tensor | None,
    *,
    decay: Callable[[tf.Tensor], tf.Tensor],
    score_threshold: float,
    max_outputs: int,
    counts: tf.Tensor | None = None,
) -> Picked:
    """Repeatedly picks the best box, and multiplies the scores of other boxes of its class by a decay.

    Each picked box takes one pass over the K candidates of all images.  Boxes that do not count are dropped after they
    were picked: they lower the scores of others.

    Args:
        boxes: float32 [B, K, 4], (ymin, xmin, ymax, xmax), any unit.
        scores: float32 [B, K], >= 0; ties are picked in this order.
        classes: int32 [B, K]; None: boxes affect boxes of any class.
        decay: factors 0..1 of intersections over union with the picked box, [B, K] to [B, K].
        score_threshold: boxes need a score above this when they are picked.
        max_outputs: M, max number of picked boxes.
        counts: bool [B, K], boxes that the result may contain; None: all.

    Returns:
        The picked boxes; their scores do not increase.
    """
    batch, count = scores.shape[0] or tf.shape(scores)[0], scores.shape[1]
    places, slots = tf.range(count), tf.range(max_outputs)
    columns, areas = tf.transpose(boxes, [0, 2, 1]), area_yxyx(boxes)

    def anything_left(num: tf.Tensor, remaining: tf.Tensor, _indices: tf.Tensor, _scores: tf.Tensor) -> tf.Tensor:
        return tf.reduce_any((num < max_outputs) & tf.reduce_any(remaining > score_threshold, axis=1, keepdims=True))

    def pick(
        num: tf.Tensor, remaining: tf.Tensor, indices: tf.Tensor, values: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        best = tf.argmax(remaining, axis=1, output_type=tf.int32)[:, tf.newaxis]
        value = tf.gather(remaining, best, batch_dims=1)
        box = tf.gather(boxes, best, batch_dims=1)
        factors = decay(_iou_with_one(columns, areas, box))
        if classes is not None:
            factors = tf.where(classes == tf.gather(classes, best, batch_dims=1), factors, 1.0)
        taken = value > score_threshold
        if counts is not None:
            taken &= tf.gather(counts, best, batch_dims=1)
        here = (slots == num) & taken
        return (
            num + tf.cast(taken & (num < max_outputs), tf.int32),
            tf.where(places == best, _REMOVED, remaining * factors),
            tf.where(here, best, indices),
            tf.where(here, value, values),
        )

    start = (
        tf.zeros([batch, 1], tf.int32),
        tf.where(scores > score_threshold, scores, _REMOVED),
        tf.zeros([batch, max_outputs], tf.int32),
        tf.zeros([batch, max_outputs]),
    )
    steps = max_outputs if counts is None else count
    num, _, indices, values = tf.while_loop(anything_left, pick, start, maximum_iterations=steps)
    return Picked(indices, values, num[:, 0])


def _iou_with_one(columns: tf.Tensor, areas: tf.Tensor, box: tf.Tensor) -> tf.Tensor:
    """Returns intersections over union [B, K] of boxes, transposed to [B, 4, K], and one box per image, [B, 1, 4]."""
    corners = tf.transpose(box, [0, 2, 1])
    sides = tf.minimum(columns[:, 2:], corners[:, 2:]) - tf.maximum(columns[:, :2], corners[:, :2])
    sides = tf.maximum(sides, 0.0)
    overlap = sides[:, 0] * sides[:, 1]
    return tf.math.divide_no_nan(overlap, areas + area_yxyx(box) - overlap)


def op_nms(
    boxes: tf.Tensor,
    scores: tf.Tensor,
    classes: tf.Tensor | None,
    *,
    num_classes: int,
    side: tf.Tensor | float,
    iou_threshold: float,
    sigma: float | None,
    score_threshold: float,
    max_outputs: int,
    max_per_class: int | None = None,
    counts: tf.Tensor | None = None,
) -> Picked:
    """Hard or Gaussian NMS by one op per image, `NonMaxSuppressionV4` or `V5`, for graphs without loops.

    The op does not support classes, so boxes of different classes are moved apart.  These boxes are
    clipped at one `side` beyond the input, which keeps the distances small enough for float32.
    The order of equal scores, frequent with 8 bits, depends on the kernel: hard NMS passes ranks.
    Boxes that do not count, and those of a class beyond its number, are dropped after they were picked: among all of
    hard NMS, and the first 4 M of Gaussian NMS, whose every pick visits all candidates.

    Args:
        boxes: float32 [B, K, 4], (ymin, xmin, ymax, xmax), with a static B.
        scores: float32 [B, K], >= 0, best first.
        classes: int32 [B, K]; None: boxes suppress boxes of any class.
        num_classes: C.
        side: longer side of the network input, in the unit of the boxes.
        iou_threshold: max IoU with a picked box of the same class, for hard NMS.
        sigma: sigma of `gaussian_decay`; None: hard NMS.
        score_threshold: boxes need a score above this when they are picked.
        max_outputs: M, max number of picked boxes.
        max_per_class: as for `hard_nms`.
        counts: bool [B, K], boxes that the result may contain; None: all.

    Returns:
        The picked boxes; their scores do not increase.
    """
    compared = boxes
    if classes is not None:
        columns = math.isqrt(num_classes - 1) + 1  # a square grid around the input keeps the coordinates small
        places = tf.cast(tf.stack([classes // columns, classes % columns], axis=-1) - columns // 2, tf.float32)
        compared = tf.clip_by_value(boxes, -side, 2.0 * side) + tf.concat([places, places], axis=-1) * (3.0 * side)
    limited = classes is not None and max_per_class is not None
    dropped = limited or counts is not None
    most = scores.shape[1] if sigma is None else min(4 * max_outputs, scores.shape[1])
    slots = max(max_outputs, most) if dropped else max_outputs
    if counts is not None:  # boxes without an area overlap none, so none has to be picked first
        scores = tf.where(area_yxyx(boxes) > 0.0, scores, 0.0)
    options = {"max_output_size": slots, "pad_to_max_output_size": True}
    # Counted in the graph: a constant with so many values would lose precision in a float16 file.
    above = tf.cast(scores > score_threshold, tf.float32)
    ranks = tf.cumsum(above, axis=1, reverse=True) * above
    indices, values, num = [], [], []
    for own_boxes, own_scores, own_ranks in zip(*map(tf.unstack, (compared, scores, ranks)), strict=True):
        if sigma is None:
            own = tf.raw_ops.NonMaxSuppressionV4(
                boxes=own_boxes, scores=own_ranks, iou_threshold=iou_threshold, score_threshold=0.5, **options
            )
            picked = (own.selected_indices, tf.gather(own_scores, own.selected_indices), own.valid_outputs)
        else:  # the op divides by 2 * sigma
            picked = tf.raw_ops.NonMaxSuppressionV5(
                boxes=own_boxes,
                scores=own_scores,
                iou_threshold=1.0,
                score_threshold=score_threshold,
                soft_nms_sigma=sigma / 2.0,
                **options,
            )
        valid = tf.range(slots) < picked[2]
        indices.append(tf.where(valid, picked[0], 0))
        values.append(tf.where(valid, picked[1], 0.0))
        num.append(picked[2])
    found = Picked(tf.stack(indices), tf.stack(values), tf.stack(num))
    if not dropped:
        return found
    kept = tf.range(slots) < found.num[:, tf.newaxis]
    if classes is not None and max_per_class is not None:
        of_class = tf.one_hot(tf.gather(classes, found.indices, batch_dims=1), num_classes)
        kept &= tf.reduce_sum(tf.cumsum(of_class, axis=1) * of_class, axis=2) <= max_per_class
    if counts is not None:
        kept &= tf.gather(counts, found.indices, batch_dims=1)
    return _first_kept(found, kept, max_outputs)


def _first_kept(picked: Picked, kept: tf.Tensor, max_outputs: int) -> Picked:
    """Returns the first `max_outputs` picked boxes that are kept, bool [B, P], in their order."""
    slots = tf.range(picked.indices.shape[1])
    num = tf.minimum(tf.reduce_sum(tf.cast(kept, tf.int32), axis=1), max_outputs)
    _, order = tf.math.top_k(tf.where(kept, slots[::-1] + 1, 0), max_outputs)
    valid = tf.range(max_outputs) < num[:, tf.newaxis]
    indices, scores = (tf.gather(values, order, batch_dims=1) for values in (picked.indices, picked.scores))
    return Picked(tf.where(valid, indices, 0), tf.where(valid, scores, 0.0), num)
