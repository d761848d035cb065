"""Region proposal network: a head over all pyramid levels, and the selection of its best boxes.

Ren et al., "Faster R-CNN", 2015; over a pyramid as in Lin et al., "Feature Pyramid Networks
for Object Detection", 2017.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import keras
import tensorflow as tf
from pydantic import Field, NonNegativeFloat, PositiveInt

from detection.models.detector import NmsGraph
from detection.models.faster_rcnn.roi_targets import SamplingOptions
from detection.models.heads.matcher import Matcher
from detection.models.layers.batch_norm import activate
from detection.models.layers.initializers import normal
from detection.ops.boxes import clip_yxyx, decode_yxyx
from detection.ops.nms import hard_nms, op_nms
from schemas.config.section import Section

RpnLayout = Literal["standard", "od-api"]

_DROPPED = -1.0  # score of boxes that are too small, below all other scores


class RpnOutputs(NamedTuple):
    """Outputs per pyramid level, finest first, anchor by anchor within a cell.

    logits: float [B, h, w, K] per level, objectness of the K anchors per cell.
    deltas: float [B, h, w, K * 4] per level, (ty, tx, th, tw) of each anchor.
    """

    logits: list[tf.Tensor]
    deltas: list[tf.Tensor]


class RpnHead(keras.layers.Layer):
    """3x3 convolution and relu, then a 1x1 convolution for scores and one for boxes; shared by all levels.

    The layout `od-api` is that of the TF Object Detection API: relu6 follows the 3x3 convolution,
    which all levels share; the 1x1 convolutions are separate for each level.

    Args:
        filters: channels of the 3x3 convolution.
        anchors_per_cell: K.
        levels: pyramid levels, finest first; only used by the layout `od-api`.
        layout: `standard` or `od-api`.
        name: layer name.
        dtype: Keras dtype policy.
    """

    def __init__(
        self,
        *,
        filters: int,
        anchors_per_cell: int,
        levels: Sequence[int] = (),
        layout: RpnLayout = "standard",
        name: str = "rpn",
        dtype: Any = None,
    ):
        super().__init__(name=name, dtype=dtype)
        self._filters = filters
        self._activation = "relu6" if layout == "od-api" else "relu"
        self.conv = self._conv(filters, 3, "conv2d")
        suffixes = [f"_p{level}" for level in levels] if layout == "od-api" else [""]
        self.scores = [self._conv(anchors_per_cell, 1, f"score{suffix}") for suffix in suffixes]
        self.boxes = [self._conv(4 * anchors_per_cell, 1, f"box{suffix}") for suffix in suffixes]

    def _conv(self, filters: int, kernel: int, name: str) -> Any:
        return keras.layers.Conv2D(
            filters, kernel, padding="same", kernel_initializer=normal(0.01), name=name, dtype=self.dtype_policy
        )

    def build(self, input_shape: Sequence[tuple[int | None, ...]]) -> None:
        """Creates the variables; `input_shape` has one shape per level, all with the same channels."""
        self.conv.build(input_shape[0])
        for conv in (*self.scores, *self.boxes):
            conv.build((None, None, None, self._filters))

    def call(self, features: Sequence[tf.Tensor]) -> RpnOutputs:
        """Returns the outputs of each level, in the compute dtype."""
        inner = [activate(self.conv(feature), self._activation) for feature in features]
        scores, boxes = (convs * len(inner) if len(convs) == 1 else convs for convs in (self.scores, self.boxes))
        return RpnOutputs(
            [conv(feature) for conv, feature in zip(scores, inner, strict=True)],
            [conv(feature) for conv, feature in zip(boxes, inner, strict=True)],
        )


class ProposalOptions(Section):
    """Numbers of proposals in training or in detection."""

    pre_nms_top_k: PositiveInt = Field(1000, description="best anchors of each level before NMS")
    post_nms_top_k: PositiveInt = Field(1000, description="max proposals per image, over all levels")
    iou_threshold: float = Field(0.7, ge=0.0, le=1.0, description="IoU with a better box above which NMS drops a box")


class RpnOptions(Section):
    """The region proposal network: its head, the samples and weights of its losses, and its proposals."""

    filters: PositiveInt | None = Field(None, description="channels of its head; none: as many as the features have")
    matcher: Matcher = Matcher(positive_iou=0.7, negative_iou=0.3)
    sampling: SamplingOptions = SamplingOptions(count=256, positive_fraction=0.5)
    score_loss_weight: NonNegativeFloat = 1.0
    box_loss_weight: NonNegativeFloat = 1.0
    min_size: NonNegativeFloat = Field(
        1.0, description="proposals with a shorter side are dropped; pixels of the network input"
    )
    train: ProposalOptions = ProposalOptions(pre_nms_top_k=2000)
    test: ProposalOptions = ProposalOptions()


class Proposals(NamedTuple):
    """The proposals of each image, best score first.

    boxes: float32 [B, P, 4], (ymin, xmin, ymax, xmax) in pixels of the network input; 0 for padding.
    scores: float32 [B, P], probability of an object; 0 for padding.
    valid: bool [B, P], False for padding, and for boxes that were dropped after NMS.
    """

    boxes: tf.Tensor
    scores: tf.Tensor
    valid: tf.Tensor


def propose(
    outputs: RpnOutputs,
    anchors: tf.Tensor,
    image_sizes: tf.Tensor,
    options: ProposalOptions,
    *,
    min_size: float,
    by_level: bool = True,
    clip_after_nms: bool = False,
    pixel_offset: float = 0.0,
    max_log_size: float,
    graph: NmsGraph = "windows",
) -> Proposals:
    """Selects the proposals: decodes the best anchors of each level, clips them to the image and applies NMS.

    NMS runs within each level, or over all levels; then the best boxes of all levels are kept.
    No gradient flows through proposals.

    Args:
        outputs: outputs of `RpnHead`.
        anchors: float32 [A, 4], (ymin, xmin, ymax, xmax) in pixels of the network input, of all
            levels in the order of the outputs.
        image_sizes: float32 [B, 2] or [2], (height, width) of the images within the network input,
            in its pixels; images start at the top left corner.
        options: numbers and threshold.
        min_size: boxes with a shorter side, in pixels of the network input, are dropped.
        by_level: boxes only suppress boxes of their level.
        clip_after_nms: clip boxes after NMS; those without an area then are dropped.
        pixel_offset: 1 if box corners are pixel indices, 0 if they are edges.
        max_log_size: upper limit of the size deltas.
        graph: form of the NMS graph, as in `Detector.nms_graph`; all boxes are tried at once.
    """
    boxes, logits, levels = _candidates(
        outputs, anchors, options.pre_nms_top_k, pixel_offset=pixel_offset, max_log_size=max_log_size
    )
    limits = tf.reshape(image_sizes, [-1, 2]) - pixel_offset
    if not clip_after_nms:
        boxes = clip_yxyx(boxes, limits[:, :1], limits[:, 1:])
    large = _short_sides(boxes) + pixel_offset >= min_size
    # Different logits may have equal float32 probabilities.
    _, order = tf.math.top_k(tf.where(large, logits, logits.dtype.min), logits.shape[1])
    boxes, levels = tf.gather(boxes, order, batch_dims=1), tf.gather(levels, order, batch_dims=1)
    scores = tf.gather(tf.where(large, tf.sigmoid(logits), _DROPPED), order, batch_dims=1)
    by_op = partial(op_nms, num_classes=len(outputs.logits), side=tf.reduce_max(image_sizes), sigma=None)
    picked = (by_op if graph == "op" else hard_nms)(
        boxes,
        scores,
        levels if by_level else None,
        iou_threshold=options.iou_threshold,
        score_threshold=_DROPPED / 2.0,
        max_outputs=options.post_nms_top_k,
    )
    valid = tf.range(options.post_nms_top_k) < picked.num[:, tf.newaxis]
    boxes = tf.gather(boxes, picked.indices, batch_dims=1)
    if clip_after_nms:
        boxes = clip_yxyx(boxes, limits[:, :1], limits[:, 1:])
        valid &= _short_sides(boxes) > 0.0
    return Proposals(tf.where(valid[..., tf.newaxis], boxes, 0.0), tf.where(valid, picked.scores, 0.0), valid)


def _short_sides(boxes: tf.Tensor) -> tf.Tensor:
    return tf.reduce_min(boxes[..., 2:] - boxes[..., :2], axis=-1)


def _candidates(
    outputs: RpnOutputs, anchors: tf.Tensor, top_k: int, *, pixel_offset: float, max_log_size: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Decodes the `top_k` anchors with the best scores of each level, without a gradient.

    Returns:
        boxes: float32 [B, K, 4], not clipped, level by level, best first within a level.
        logits: float32 [B, K].
        levels: int32 [B, K], 0 for the finest.
    """
    candidates, start = [], 0
    for level, (level_logits, level_deltas) in enumerate(zip(outputs.logits, outputs.deltas, strict=True)):
        height, width, per_cell = level_logits.shape[1:]
        size = height * width * per_cell
        logits = tf.reshape(tf.cast(tf.stop_gradient(level_logits), tf.float32), [-1, size])
        deltas = tf.reshape(tf.stop_gradient(level_deltas), [-1, size, 4])
        logits, rows = tf.math.top_k(logits, min(top_k, size))
        boxes = decode_yxyx(
            tf.cast(tf.gather(deltas, rows, batch_dims=1), tf.float32),
            tf.gather(anchors[start : start + size], rows),
            pixel_offset=pixel_offset,
            max_log_size=max_log_size,
        )
        candidates.append((boxes, logits, tf.fill(tf.shape(rows), level)))
        start += size
    boxes, logits, levels = (tf.concat(values, axis=1) for values in zip(*candidates, strict=True))
    return boxes, logits, levels
