"""Post-processing of anchor-based detectors: options, best candidates, non-maximum suppression."""

from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple, Self

import tensorflow as tf
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from detection.models.detector import MaskOutput, NmsGraph
from detection.ops.boxes import area_yxyx, clip_yxyx, decode_yxyx
from detection.ops.nms import Picked, gaussian_decay, hard_nms, linear_decay, op_nms, soft_nms
from detection.types import Detections, ImageInfo
from schemas.config.section import Section


class BoxPostprocess(Section):
    """Options from raw outputs to boxes: the keys of `model.postprocess`."""

    nms: Literal["hard", "linear", "gaussian"] = Field(
        "hard",
        description="effect of an overlap with a better box: `hard` removes the box, `linear` multiplies its score by "
        "1 - IoU, `gaussian` by exp(-IoU^2 / sigma)",
    )
    class_agnostic: bool = Field(False, description="suppress boxes across classes, not only within their class")
    one_class_per_anchor: bool = Field(
        False, description="only the best class of each anchor enters NMS, not all (anchor, class) pairs"
    )
    score_threshold: float = Field(0.001, ge=0.0, le=1.0, description="detections have a score above this")
    iou_threshold: float = Field(
        0.5, ge=0.0, le=1.0, description="IoU above which hard and linear NMS act; Gaussian NMS has no threshold"
    )
    sigma: PositiveFloat = Field(0.5, description="sigma of Gaussian NMS")
    max_detections: PositiveInt = Field(100, le=100_000, description="max detections per image")
    max_detections_per_class: PositiveInt | None = Field(
        None, description="max detections per image and class, of hard NMS; none: no limit"
    )
    pre_nms_top_k: PositiveInt = Field(5000, description="best candidates, (anchor, class) pairs, that enter NMS")

    @model_validator(mode="after")
    def _no_idle_key(self) -> Self:
        self.refuse(["iou_threshold" if self.nms == "gaussian" else "sigma"], f"under nms = {self.nms}")
        unlimited = self.nms != "hard" or self.class_agnostic
        self.refuse(["max_detections_per_class"], "without hard NMS within classes", when=unlimited)
        return self


class MaskPostprocess(BoxPostprocess):
    """Options of a detector with masks: the keys of `model.postprocess`."""

    mask_output: MaskOutput = Field(
        "crops",
        description="masks of the exported model: `crops`, probabilities within each box (detection_masks float32 "
        "[B, N, 28, 28]); `pasted`, 0 and 1 for every pixel of the image (uint8 [B, N, H, W], padded to the "
        "largest image of the batch); or `rle`, COCO's compressed counts in the image's size (string [B, N])",
    )


# NMS usually needs few candidates: it gets the best ones first, and more only if the result could still change.
# Gaussian NMS lowers the score of every box that overlaps another, so 256 candidates are rarely enough.
_WINDOWS = {"hard": (256, 1024, 2048), "linear": (256, 1024, 2048), "gaussian": (1024, 2048)}


class Candidates(NamedTuple):
    """The best candidates, best first.

    logits: float32 [B, K].
    anchors: int32 [B, K].
    classes: int32 [B, K].
    """

    logits: tf.Tensor
    anchors: tf.Tensor
    classes: tf.Tensor


def detect_boxes(
    class_logits: Sequence[tf.Tensor],
    box_deltas: Sequence[tf.Tensor],
    anchors: tf.Tensor,
    image_info: ImageInfo,
    options: BoxPostprocess,
    *,
    graph: NmsGraph = "windows",
    with_anchors: bool = False,
) -> Detections:
    """Turns the outputs of a detector into detections: candidates, decoded boxes, NMS, and the boxes in the image.

    The result is the same as with all `pre_nms_top_k` candidates, although the best few hundred
    are tried first: the others cannot change it if these fill all outputs with scores that are
    at least as high.

    Args:
        class_logits: float32 [B, A_l, C] per pyramid level.
        box_deltas: float32 [B, A_l, 4] per level, (ty, tx, th, tw).
        anchors: float32 [A, 4], (ymin, xmin, ymax, xmax) in pixels of the network input, of all
            levels; A is the sum of A_l.
        image_info: sizes and scales of the images.
        options: options of post-processing.
        graph: form of the NMS graph, as in `Detector.nms_graph`.
        with_anchors: also return `Detections.anchors`.
    """
    best = tf.concat([tf.reduce_max(level, axis=2) for level in class_logits], axis=1)
    num_classes = class_logits[0].shape[2]
    pairs = best.shape[1] * (1 if options.one_class_per_anchor else num_classes)
    limit = min(options.pre_nms_top_k, pairs)
    windows = [*(window for window in _WINDOWS[options.nms] if graph == "windows" and window < limit), limit]

    def detect(number: int) -> Detections:
        select = best_classes if options.one_class_per_anchor else best_pairs
        candidates = select(class_logits, best, windows[number])
        deltas = rows_of_levels(box_deltas, candidates.anchors)
        boxes = decode_yxyx(deltas, tf.gather(anchors, candidates.anchors))
        scores = tf.sigmoid(candidates.logits)
        clipped = clipped_to_image(boxes, image_info)
        picked = suppress(
            boxes,
            clipped,
            scores,
            candidates.classes,
            options,
            image_info=image_info,
            num_classes=num_classes,
            graph=graph,
        )
        detections = picked_detections(picked, clipped, candidates.classes)
        if with_anchors:
            picked_anchors = tf.gather(candidates.anchors, picked.indices, batch_dims=1)
            detections = detections._replace(anchors=tf.where(detections.scores > 0.0, picked_anchors, 0))
        if number + 1 == len(windows):
            return detections
        settled = tf.reduce_all(_is_settled(picked, scores[:, -1], options))
        return tf.cond(settled, lambda: detections, lambda: detect(number + 1))

    return detect(0)


def _is_settled(picked: Picked, next_best: tf.Tensor, options: BoxPostprocess) -> tf.Tensor:
    """Marks images whose result cannot change with more candidates of scores <= `next_best`; bool [B]."""
    filled = (picked.num == options.max_detections) & (picked.scores[:, -1] >= next_best)
    return filled | (next_best <= options.score_threshold)


def best_pairs(levels: Sequence[tf.Tensor], best: tf.Tensor, count: int) -> Candidates:
    """Returns the `count` best (anchor, class) pairs per image; ties go to the lower anchor, then the lower class.

    Only anchors whose best class is among the `count` best can have such a pair, so most
    anchors are dropped before pairs are compared.

    Args:
        levels: class logits, float32 [B, A_l, C] per pyramid level.
        best: float32 [B, A], logit of each anchor's best class.
        count: K, at most the number of pairs.
    """
    _, anchors = tf.math.top_k(best, min(count, best.shape[1]))
    anchors = tf.sort(anchors)  # so that ties are in the order of their anchors
    classes = levels[0].shape[2]
    pairs = tf.reshape(rows_of_levels(levels, anchors), [-1, anchors.shape[1] * classes])
    values, places = tf.math.top_k(pairs, count)
    return Candidates(values, tf.gather(anchors, places // classes, batch_dims=1), places % classes)


def best_classes(levels: Sequence[tf.Tensor], best: tf.Tensor, count: int) -> Candidates:
    """Returns the `count` best anchors per image with their best class; arguments as in `best_pairs`."""
    values, anchors = tf.math.top_k(best, count)
    return Candidates(values, anchors, tf.argmax(rows_of_levels(levels, anchors), axis=2, output_type=tf.int32))


def rows_of_levels(levels: Sequence[tf.Tensor], anchors: tf.Tensor) -> tf.Tensor:
    """Gathers the rows [B, K, C] of anchors from all levels, without concatenating (copying) the levels.

    Args:
        levels: [B, A_l, C] per pyramid level.
        anchors: int32 [B, K], indices into the anchors of all levels.
    """
    rows, start = None, 0
    for level in levels:
        size = level.shape[1]
        own = tf.gather(level, tf.clip_by_value(anchors - start, 0, size - 1), batch_dims=1)
        rows = own if rows is None else tf.where((anchors >= start)[..., tf.newaxis], own, rows)
        start += size
    return rows


def suppress(
    boxes: tf.Tensor,
    clipped: tf.Tensor,
    scores: tf.Tensor,
    classes: tf.Tensor,
    options: BoxPostprocess,
    *,
    image_info: ImageInfo,
    num_classes: int,
    graph: NmsGraph = "windows",
) -> Picked:
    """Applies the NMS of the options; boxes outside of the image are dropped after it, and take no place in the result.

    The order is that of the TF Object Detection API: NMS, then clipping, then the best `max_detections`.

    Args:
        boxes: float32 [B, K, 4], (ymin, xmin, ymax, xmax) in pixels of the network input, which NMS compares.
        clipped: float32 [B, K, 4], the boxes within the image, any unit: those without an area are dropped.
        scores: float32 [B, K], best first.
        classes: int32 [B, K].
        options: options of post-processing.
        image_info: sizes and scales of the images.
        num_classes: C.
        graph: form of the NMS graph, as in `Detector.nms_graph`.
    """
    groups = None if options.class_agnostic else classes
    floor, most = options.score_threshold, options.max_detections
    per_class = options.max_detections_per_class
    in_image = area_yxyx(clipped) > 0.0
    if graph == "op" and options.nms != "linear":
        return op_nms(
            boxes,
            scores,
            groups,
            num_classes=num_classes,
            side=tf.reduce_max(image_info.original_size * image_info.scale),
            iou_threshold=options.iou_threshold,
            sigma=options.sigma if options.nms == "gaussian" else None,
            score_threshold=floor,
            max_outputs=most,
            max_per_class=per_class,
            counts=in_image,
        )
    if options.nms == "hard":
        return hard_nms(
            boxes,
            scores,
            groups,
            iou_threshold=options.iou_threshold,
            score_threshold=floor,
            max_outputs=most,
            max_per_class=per_class,
            counts=in_image,
        )
    decay = (
        partial(gaussian_decay, sigma=options.sigma)
        if options.nms == "gaussian"
        else partial(linear_decay, iou_threshold=options.iou_threshold)
    )
    return soft_nms(boxes, scores, groups, decay=decay, score_threshold=floor, max_outputs=most, counts=in_image)


def picked_above(scores: tf.Tensor, threshold: float, slots: int) -> Picked:
    """Picks the scores [B, K], best first, above a threshold, in `slots` >= K slots; for networks without NMS."""
    scores = tf.pad(scores, [[0, 0], [0, slots - scores.shape[1]]])
    picked = scores > threshold
    indices = tf.where(picked, tf.range(slots), 0)
    return Picked(indices, tf.where(picked, scores, 0.0), tf.reduce_sum(tf.cast(picked, tf.int32), axis=1))


def picked_detections(picked: Picked, boxes: tf.Tensor, classes: tf.Tensor) -> Detections:
    """Gathers the picked boxes.

    Args:
        picked: result of NMS.
        boxes: float32 [B, K, 4], as `clipped_to_image` returns them.
        classes: int32 [B, K].
    """
    counts = tf.range(picked.indices.shape[1]) < picked.num[:, tf.newaxis]
    return Detections(
        boxes=tf.where(counts[..., tf.newaxis], tf.gather(boxes, picked.indices, batch_dims=1), 0.0),
        scores=picked.scores,
        classes=tf.where(counts, tf.gather(classes, picked.indices, batch_dims=1), 0),
        num=picked.num,
    )


def clipped_to_image(boxes: tf.Tensor, image_info: ImageInfo) -> tf.Tensor:
    """Converts boxes as `normalize_boxes` does, and clips them to the image: to 0 to 1."""
    return clip_yxyx(normalize_boxes(boxes, image_info), 1.0, 1.0)


def normalize_boxes(boxes: tf.Tensor, image_info: ImageInfo) -> tf.Tensor:
    """Converts [B, K, 4], (ymin, xmin, ymax, xmax), from pixels of the input to fractions of the original image."""
    factor = 1.0 / (image_info.scale * image_info.original_size)
    return boxes * tf.concat([factor, factor], axis=1)[:, tf.newaxis]
