"""Targets and losses of dense detectors, which predict classes and box deltas for every anchor.

The normalizer, its moving average and the IoU loss follow google/automl's EfficientDet; ignored
anchors, forced matches, code weights, object weights, hard examples and the other losses follow the TF Object
Detection API.
"""

from typing import Literal, NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from pydantic import Field, NonNegativeFloat, PositiveFloat

from detection.models.heads.hard_examples import HardExampleMiner, keep_hard_examples
from detection.models.heads.matcher import Matcher
from detection.ops.boxes import decode_yxyx, encode_yxyx
from detection.ops.losses import (
    IouLoss,
    bootstrapped_loss,
    code_iou_loss,
    focal_loss,
    huber_loss,
    iou_loss,
    softmax_loss,
)
from detection.ops.replicas import sum_over_replicas
from detection.types import Labels
from schemas.config.section import Section

Normalizer = Literal["positives_plus_one", "positives", "none"]

_CLASS_LOSS_KEYS = {
    ("focal_alpha", "focal_gamma", "label_smoothing"): "focal",
    ("logit_scale",): "softmax",
    ("bootstrap_alpha",): "bootstrapped",
}


class DenseTargets(NamedTuple):
    """Targets of each anchor.

    positive: bool [B, A], the anchor is assigned to an object.
    ignored: bool [B, A], the anchor is neither positive nor background; None if no anchor is.
    classes: int32 [B, A], class of the object; -1 if not positive.
    boxes: float32 [B, A, 4], box of the object, (ymin, xmin, ymax, xmax) in pixels of the
        network input; undefined if not positive.
    weights: float32 [B, A], weight of the object, 1 if not positive; None: all are 1.
    """

    positive: tf.Tensor
    ignored: tf.Tensor | None
    classes: tf.Tensor
    boxes: tf.Tensor
    weights: tf.Tensor | None


class PositivesNormalizer:
    """Divisor of the loss terms, from the number of positive anchors in the update's batch.

    Args:
        kind: `positives_plus_one`, as in google/automl; `positives`: at least 1, as in the
            TF Object Detection API, which divides each replica's losses by its own number;
            `none`: 1.
        momentum: momentum of the moving average that replaces the divisor in training; 0: no
            moving average.

    Attributes:
        average: the moving average, 0 before the first step; None: no moving average.
    """

    def __init__(self, *, kind: Normalizer, momentum: float) -> None:
        self._kind = kind
        self._momentum = momentum
        self.average: keras.Variable | None = None
        if momentum > 0.0:
            self.average = keras.Variable(0.0, trainable=False, dtype="float32", name="average_positives")

    def __call__(self, positives: tf.Tensor, *, training: bool) -> tf.Tensor:
        """Returns the divisor, float32 scalar >= 1.

        Args:
            positives: float32 scalar, number of positive anchors of all replicas.
            training: update the moving average, and return it.
        """
        if self._kind == "none":
            return tf.ones([])
        number = positives + 1.0 if self._kind == "positives_plus_one" else tf.maximum(positives, 1.0)
        if self.average is None or not training:
            return number
        # google/automl starts from 0, which makes the first losses 1 / (1 - momentum) times as large.
        before = tf.convert_to_tensor(self.average.value)
        average = tf.where(before > 0.0, before + (number - before) * (1.0 - self._momentum), number)
        self.average.assign(average)
        return average


class DenseLossOptions(Section):
    """Formulas and weights of `DenseLosses`."""

    class_loss: Literal["focal", "softmax", "logits_softmax", "bootstrapped_sigmoid", "hard_bootstrapped_sigmoid"] = (
        Field(
            "focal",
            description="focal: with focal_gamma = 0 and no focal_alpha, sigmoid cross-entropy; softmax: over the "
            "classes and the background; logits_softmax: so are the targets; bootstrapped_sigmoid: targets are mixed "
            "with the predicted probabilities, hard_: with decisions",
        )
    )
    class_loss_weight: NonNegativeFloat = 1.0
    focal_alpha: float | None = Field(
        0.25, ge=0.0, le=1.0, description="weight of targets, 1 - focal_alpha of the others; none: no weights"
    )
    focal_gamma: NonNegativeFloat = 1.5
    label_smoothing: float = Field(0.0, ge=0.0, lt=1.0)
    prior_probability: float = Field(
        0.01, gt=0.0, lt=1.0, description="probability of every class before training: the initial class outputs"
    )
    logit_scale: PositiveFloat = Field(1.0, description="divisor of the class outputs of a softmax")
    bootstrap_alpha: float = Field(0.95, ge=0.0, le=1.0, description="share of the true target in a bootstrapped one")
    box_loss: Literal["huber", "l1", "l2", "code_iou", "code_giou"] = Field(
        "huber",
        description="loss of the box deltas; code_iou and code_giou take them for boxes, as the TF Object Detection "
        "API's weighted_iou and weighted_giou do: set iou_loss_type for losses of boxes",
    )
    box_loss_weight: NonNegativeFloat = 50.0
    huber_delta: PositiveFloat = Field(
        0.1, description="error at which the Huber loss becomes linear, in units of the weighted box deltas"
    )
    code_weights: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat, NonNegativeFloat] = Field(
        (1.0, 1.0, 1.0, 1.0), description="factors of the box deltas (ty, tx, th, tw)"
    )
    iou_loss_type: IouLoss | None = Field(None, description="IoU loss beside the box loss; none: no IoU loss")
    iou_loss_weight: NonNegativeFloat = Field(1.0, description="weight of the IoU loss")
    normalizer: Normalizer = Field(
        "positives_plus_one", description="divisor of the losses; positives: positive anchors, at least 1"
    )
    positives_momentum: float = Field(
        0.0, ge=0.0, lt=1.0, description="momentum of the divisor's moving average; 0: a divisor per batch"
    )
    background_class: bool = Field(
        False,
        description="the class outputs have a background before the classes, whose target is 0, as in the TF Object "
        "Detection API, required by its weights",
    )
    background_target: bool = Field(
        False, description="the target of the background class is 1 for anchors without an object, as in a softmax"
    )
    hard_example_miner: HardExampleMiner | None = Field(
        None, description="losses count only the anchors with the largest loss; none: all anchors"
    )

    def _check_keys(self) -> None:
        self.refuse(("iou_loss_weight",), "without iou_loss_type", when=self.iou_loss_type is None)
        for keys, kind in _CLASS_LOSS_KEYS.items():
            self.refuse(keys, f"with class_loss = {self.class_loss}", when=kind not in self.class_loss)
        self.refuse(("huber_delta",), f"with box_loss = {self.box_loss}", when=self.box_loss != "huber")
        if not self.background_class and (self.background_target or "softmax" in self.class_loss):
            raise ValueError("a softmax and background_target need background_class = true")


class DenseLosses:
    """Loss of the classes, loss of the box deltas, and IoU loss of the decoded boxes.

    Args:
        options: formulas and weights.
        matcher: assigns the anchors to the objects.
        anchors: float32 [A, 4], (ymin, xmin, ymax, xmax) in pixels of the network input.
        num_classes: C.
    """

    def __init__(
        self, options: DenseLossOptions, matcher: Matcher, *, anchors: npt.NDArray[np.float32], num_classes: int
    ) -> None:
        self._options = options
        self._matcher = matcher
        self._anchors = anchors
        self._num_classes = num_classes
        self._normalizer = PositivesNormalizer(kind=options.normalizer, momentum=options.positives_momentum)

    @property
    def statistics(self) -> list[keras.Variable]:
        """See `Detector.loss_statistics`."""
        return [] if self._normalizer.average is None else [self._normalizer.average]

    def count_positives(self, labels: Labels) -> tf.Tensor:
        """Returns the number of positive anchors of this replica, float32 scalar.

        For the normalizer `positives`, each counts as the weight of its object, as in the TF Object Detection API.
        """
        return self._count(self.assign(labels))

    def __call__(
        self,
        class_logits: tf.Tensor,
        box_deltas: tf.Tensor,
        labels: Labels,
        *,
        positives: tf.Tensor | None = None,
        training: bool,
    ) -> dict[str, tf.Tensor]:
        """Returns `class_loss`, `box_loss` and, if there is an IoU loss, `box_iou_loss`.

        Each is divided by the normalizer; `box_loss` also by the 4 deltas per box.  Box
        deltas with an error of 0 are included (google/automl excludes them).

        Args:
            class_logits: float32 [B, A, C], or C + 1 with the background.
            box_deltas: float32 [B, A, 4], (ty, tx, th, tw).
            labels: ground truth.
            positives: number of positive anchors in the update's batch; None: count those of `labels`.
            training: update the moving average of the normalizer.
        """
        targets = self.assign(labels)
        if positives is None:
            positives = sum_over_replicas(self._count(targets))
        normalizer = self._normalizer(positives, training=training)
        class_losses = self._class_losses(class_logits, targets)
        box_losses = self._box_losses(box_deltas, targets)
        if self._options.hard_example_miner is not None:
            class_losses, box_losses = self._mined(class_losses, box_losses, box_deltas, targets)
        terms = {
            "class_loss": self._options.class_loss_weight * tf.reduce_sum(class_losses) / normalizer,
            "box_loss": self._options.box_loss_weight * tf.reduce_sum(box_losses) / (4.0 * normalizer),
        }
        if self._options.iou_loss_type is not None:
            iou_losses = self._iou_losses(box_deltas, targets, self._options.iou_loss_type)
            terms["box_iou_loss"] = self._options.iou_loss_weight * tf.reduce_sum(iou_losses) / normalizer
        return terms

    def assign(self, labels: Labels) -> DenseTargets:
        """Assigns the anchors to the objects.

        Anchors without an object are background.  They are ignored if their IoU is between the two thresholds of the
        matcher, or if at least a fraction `positive_iou` of them is inside a crowd.
        """
        assignment = self._matcher(self._anchors, labels)
        positive = assignment.positive

        def of_object(values: tf.Tensor) -> tf.Tensor:
            return tf.gather(values, assignment.index, batch_dims=1)

        return DenseTargets(
            positive=positive,
            ignored=assignment.ignored,
            classes=tf.where(positive, of_object(labels.classes), -1),
            boxes=of_object(labels.boxes),
            weights=None if labels.weights is None else tf.where(positive, of_object(labels.weights), 1.0),
        )

    def _count(self, targets: DenseTargets) -> tf.Tensor:
        positive = tf.cast(targets.positive, tf.float32)
        if self._options.normalizer == "positives" and targets.weights is not None:
            positive *= targets.weights
        return tf.reduce_sum(positive)

    def _class_losses(self, class_logits: tf.Tensor, targets: DenseTargets) -> tf.Tensor:
        """Returns [B, A, C], C + 1 with the background, or 1 for a softmax."""
        options = self._options
        columns = tf.range(-1 if options.background_class else 0, self._num_classes)
        is_target = targets.classes[..., tf.newaxis] == columns
        if not options.background_target:
            is_target &= columns >= 0
        if options.class_loss.endswith("softmax"):
            soften = options.class_loss == "logits_softmax"
            losses = softmax_loss(class_logits, is_target, logit_scale=options.logit_scale, soften_targets=soften)
            losses = losses[..., tf.newaxis]
        elif options.class_loss == "focal":
            losses = focal_loss(
                class_logits,
                is_target,
                alpha=options.focal_alpha,
                gamma=options.focal_gamma,
                label_smoothing=options.label_smoothing,
            )
        else:
            hard = options.class_loss == "hard_bootstrapped_sigmoid"
            losses = bootstrapped_loss(class_logits, is_target, alpha=options.bootstrap_alpha, hard=hard)
        if targets.ignored is not None:
            losses = tf.where(targets.ignored[..., tf.newaxis], 0.0, losses)
        return _weighted(losses, targets)

    def _box_losses(self, box_deltas: tf.Tensor, targets: DenseTargets) -> tf.Tensor:
        """Returns [B, A, 4], or 1 for a loss of the codes' overlap."""
        options, scales = self._options, tf.constant(self._options.code_weights)
        # `where` comes before the formula: encoded boxes of padding are not finite.
        positive = targets.positive[..., tf.newaxis]
        codes = encode_yxyx(targets.boxes, tf.constant(self._anchors))
        if options.box_loss in ("code_iou", "code_giou"):
            deltas, codes = (scales * tf.where(positive, values, 0.0) for values in (box_deltas, codes))
            losses = code_iou_loss(deltas, codes, generalized=options.box_loss == "code_giou")
            return _weighted(tf.where(positive, losses[..., tf.newaxis], 0.0), targets)
        errors = tf.where(positive, box_deltas - codes, 0.0) * scales
        if options.box_loss == "l2":  # weights are within the square, as in the TF Object Detection API
            return 0.5 * tf.square(_weighted(errors, targets))
        losses = tf.abs(errors) if options.box_loss == "l1" else huber_loss(errors, delta=options.huber_delta)
        return _weighted(losses, targets)

    def _mined(
        self, class_losses: tf.Tensor, box_losses: tf.Tensor, box_deltas: tf.Tensor, targets: DenseTargets
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the losses, [B, A] each, of the hard examples, and 0 for the others."""
        options = self._options
        class_losses, box_losses = (tf.reduce_sum(losses, axis=-1) for losses in (class_losses, box_losses))
        assert options.hard_example_miner is not None
        kept = keep_hard_examples(
            options.class_loss_weight * class_losses,
            options.box_loss_weight * box_losses,
            decode_yxyx(box_deltas, tf.constant(self._anchors)),
            positive=targets.positive,
            ignored=targets.ignored,
            options=options.hard_example_miner,
        )
        return tf.where(kept, class_losses, 0.0), tf.where(kept, box_losses, 0.0)

    def _iou_losses(self, box_deltas: tf.Tensor, targets: DenseTargets, kind: IouLoss) -> tf.Tensor:
        """Returns [B, A, 1]."""
        positive = targets.positive[..., tf.newaxis]
        anchors = tf.constant(self._anchors)
        # `where` comes before the formula: the gradient of its unused branch must be finite, too.
        boxes = decode_yxyx(tf.where(positive, box_deltas, 0.0), anchors)
        losses = iou_loss(boxes, tf.where(positive, targets.boxes, anchors), kind=kind)
        return _weighted(tf.where(positive, losses[..., tf.newaxis], 0.0), targets)


def _weighted(losses: tf.Tensor, targets: DenseTargets) -> tf.Tensor:
    """Multiplies [B, A, ...] by the weights of the anchors' objects."""
    return losses if targets.weights is None else losses * targets.weights[..., tf.newaxis]
