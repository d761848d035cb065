"""All loss terms of D-FINE: of every layer, of the initial and the encoder's boxes, and of the denoising queries."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from detection.models.dfine.decoder import DecoderOutputs
from detection.models.dfine.losses import (
    ClassLoss,
    Targets,
    box_losses,
    class_loss,
    distillation,
    distribution_loss,
    targets_of,
)
from detection.models.dfine.matching import Objects, match

Terms = dict[str, tf.Tensor]


class Predictions(NamedTuple):
    """Outputs that have losses.

    initial: of the initial boxes.
    layers: of all layers.
    """

    initial: DecoderOutputs
    layers: Sequence[DecoderOutputs]


class Distributions(NamedTuple):
    """Spacing of the bins; see `bin_distances`."""

    up: float
    scale: float


class Pairs(NamedTuple):
    """Queries and their objects for the terms of a set of predictions, and the divisors of these.

    own: for the class loss.
    boxes: for the losses of boxes and distributions.
    count: divisor of the class loss.
    box_count: divisor of the losses of boxes, and of distributions by objects.
    ddf: `distillation_weights`.
    """

    own: Targets
    boxes: Targets
    count: tf.Tensor
    box_count: tf.Tensor
    ddf: tf.Tensor


def matched_terms(
    predictions: Predictions,
    encoder: DecoderOutputs,
    objects: Objects,
    distributions: Distributions,
    *,
    matches: tf.Tensor,
    union: Targets,
    count: tf.Tensor,
    union_count: tf.Tensor,
    ddf: tf.Tensor,
    kind: ClassLoss,
) -> Terms:
    """Returns the terms of the matching queries, without weights.

    Args:
        predictions: outputs of the decoder.
        encoder: outputs of the query selection.
        objects: the objects.
        distributions: spacing of the bins.
        matches: int32 [S, B, Q], of the layers, the initial and the encoder's boxes, as `match` returns them.
        union: targets by `union_of` of the matches.
        count: number of objects of the update's batch, at least 1.
        union_count: number of queries of the batch's union, at least 1.
        ddf: `distillation_weights` of the union.
        kind: loss of the classes.
    """
    own = [targets_of(objects, one) for one in tf.unstack(matches)]
    pairs = [Pairs(one, union, count, union_count, ddf) for one in own]
    terms = _decoder_terms(predictions, distributions, pairs[:-1], kind=kind)
    return terms | _terms("_encoder", encoder, pairs[-1], kind)


def denoising_terms(
    predictions: Predictions,
    targets: Targets,
    distributions: Distributions,
    *,
    count: tf.Tensor,
    ddf: tf.Tensor,
    kind: ClassLoss,
) -> Terms:
    """Returns the terms of the denoising queries, whose objects are known, without weights.

    Args:
        predictions: outputs of the decoder.
        targets: the queries' targets.
        distributions: spacing of the bins.
        count: number of objects times groups, at least 1.
        ddf: their `distillation_weights`.
        kind: loss of the classes.
    """
    pairs = [Pairs(targets, targets, count, count, ddf)] * (len(predictions.layers) + 1)
    terms = _decoder_terms(predictions, distributions, pairs, kind=kind)
    return {f"denoising_{name}": term for name, term in terms.items()}


def _decoder_terms(
    predictions: Predictions, distributions: Distributions, pairs: Sequence[Pairs], *, kind: ClassLoss
) -> Terms:
    """Returns the terms of all layers and of the initial boxes, whose pairs come last."""
    last = predictions.layers[-1]
    terms: Terms = {}
    for number, (layer, own) in enumerate(zip(predictions.layers, pairs[:-1], strict=True)):
        is_last = layer is last
        suffix = "" if is_last else f"_{number}"
        terms |= _terms(suffix, layer, own, kind)
        terms[f"fgl_loss{suffix}"] = (
            distribution_loss(
                layer.corners, layer.boxes, predictions.initial.boxes, own.boxes, **distributions._asdict()
            )
            / own.box_count
        )
        if not is_last:
            learnt = distillation(
                layer.corners, layer.boxes, own.boxes, last_corners=last.corners, last_logits=last.logits
            )
            terms[f"ddf_loss{suffix}"] = tf.reduce_sum(tf.stack(learnt) * own.ddf)
    return terms | _terms("_initial", predictions.initial, pairs[-1], kind)


def _terms(suffix: str, outputs: DecoderOutputs, pairs: Pairs, kind: ClassLoss) -> Terms:
    distance, giou = box_losses(outputs.boxes, pairs.boxes)
    return {
        f"class_loss{suffix}": class_loss(outputs.logits, outputs.boxes, pairs.own, kind=kind) / pairs.count,
        f"box_loss{suffix}": distance / pairs.box_count,
        f"giou_loss{suffix}": giou / pairs.box_count,
    }


def match_all(predictions: Predictions, encoder: DecoderOutputs, objects: Objects) -> tf.Tensor:
    """Returns the matches of the layers, the initial and the encoder's boxes, int32 [S, B, Q]; see `match`."""
    sets = [*predictions.layers, predictions.initial, encoder]
    return match([(one.logits, one.boxes) for one in sets], objects)


def weighted(terms: Mapping[str, tf.Tensor], weights: Mapping[str, float]) -> Terms:
    """Returns the terms times the weights of their kinds, such as `box_loss`; what is not a number counts as 0."""
    found: Terms = {}
    for name, term in terms.items():
        kind = next(kind for kind in weights if f"_{name}".find(f"_{kind}") >= 0)
        found[name] = weights[kind] * tf.where(tf.math.is_nan(term), 0.0, term)
    return found
