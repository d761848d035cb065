"""Augmentations one after the other, each with a seed of its own."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from detection.input_pipeline.sample import Sample


class Augmentation(NamedTuple):
    """A step of the chain.

    number: of its seed; no two steps share one, so that switching one on leaves the
        draws of all others as they were.
    apply: gets the sample, its partners and `seed` (int32 [2]) by name; gives the new sample.
    probability: how often it acts.
    partners: how many other samples it wants.
    """

    number: int
    apply: Callable[..., Sample]
    probability: float = 1.0
    partners: int = 0


def augment(
    sample: Sample, steps: Sequence[Augmentation], *, draw_partner: Callable[[tf.Tensor], Sample], seed: tf.Tensor
) -> Sample:
    """Applies the steps in their order.

    Args:
        sample: as decoded.
        steps: what is done to it.
        draw_partner: another sample of the data set, as decoded, by a seed (int32 [2]);
            called inside the graph's branch that needs it, so that others cost nothing.
        seed: int32 [2], of this sample.
    """
    for step in steps:
        sample = _applied(sample, step, draw_partner, tf.random.fold_in(seed, step.number))
    return sample


def _applied(
    sample: Sample, step: Augmentation, draw_partner: Callable[[tf.Tensor], Sample], seed: tf.Tensor
) -> Sample:
    decision_seed, partner_seed, step_seed = tf.unstack(tf.random.split(seed, 3))

    def act() -> Sample:
        partners = [draw_partner(tf.random.fold_in(partner_seed, number)) for number in range(step.partners)]
        return step.apply(sample, *partners, seed=step_seed)

    if step.probability >= 1.0:
        return act()
    decision = tf.random.stateless_uniform([], decision_seed) < step.probability
    return tf.cond(decision, act, lambda: sample)
