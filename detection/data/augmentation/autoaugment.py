"""AutoAugment and RandAugment for detection: one of several chains of operations, drawn for each image."""

from collections.abc import Sequence

import tensorflow as tf

from detection.data.augmentation.autoaugment_operations import OPERATIONS, Draw
from detection.data.augmentation.autoaugment_policies import Policy, Step
from detection.data.sample import Sample

RANDAUGMENT_OPERATIONS = (
    "Equalize",
    "Solarize",
    "Color",
    "Cutout",
    "SolarizeAdd",
    "TranslateX_BBox",
    "TranslateY_BBox",
    "ShearX_BBox",
    "ShearY_BBox",
    "Rotate_BBox",
)


def autoaugment(sample: Sample, *, policy: Policy, seed: tf.Tensor) -> Sample:
    """Applies one sub-policy, drawn uniformly; each of its steps acts with its own probability.

    Source: Zoph et al., "Learning Data Augmentation Strategies for Object Detection"
    (arXiv 1906.11172).  Objects that a step moves out of the image are dropped.

    Args:
        sample: as decoded: sizes in pixels (translation, cutout) refer to its image.
        policy: an entry of `autoaugment_policies.POLICIES`, or one like it.
        seed: int32 [2].

    Returns:
        A sample of the same image size.
    """
    choice_seed, steps_seed = tf.unstack(tf.random.split(seed, 2))
    choice = tf.random.stateless_uniform([], choice_seed, maxval=len(policy), dtype=tf.int32)
    for number in range(max(len(chain) for chain in policy)):
        steps = [chain[number] if number < len(chain) else None for chain in policy]
        sample = _one_of(sample, steps, choice, tf.random.fold_in(steps_seed, number))
    return sample


def randaugment(sample: Sample, *, layers: int = 1, magnitude: float = 15.0, seed: tf.Tensor) -> Sample:
    """Applies `layers` operations one after the other, each drawn uniformly from ten.

    Source: Cubuk et al., "RandAugment" (arXiv 1909.13719), with the operations and the
    defaults of google/automl EfficientDet.

    Args:
        sample: as decoded.
        layers: how many operations.
        magnitude: level of all; the scale nominally ends at 10.
        seed: int32 [2].

    Returns:
        A sample of the same image size.
    """
    steps = [Step(name, 1.0, magnitude) for name in RANDAUGMENT_OPERATIONS]
    for number in range(layers):
        choice_seed, step_seed = tf.unstack(tf.random.split(tf.random.fold_in(seed, number), 2))
        choice = tf.random.stateless_uniform([], choice_seed, maxval=len(steps), dtype=tf.int32)
        sample = _one_of(sample, steps, choice, step_seed)
    return sample


# Nothing here needs AutoGraph, which would make tracing several times slower.
@tf.autograph.experimental.do_not_convert
def _one_of(sample: Sample, steps: Sequence[Step | None], choice: tf.Tensor, seed: tf.Tensor) -> Sample:
    """Runs step number `choice`, where None and steps of probability 0 do nothing.

    The graph holds each operation once, however many steps share it, and runs only
    the chosen one.
    """
    gate_seed, operation_seed = tf.unstack(tf.random.split(seed, 2))
    names = sorted({step.operation for step in steps if step is not None and step.probability > 0.0})
    acting = [step if step is not None and step.operation in names else Step("", 0.0, 0.0) for step in steps]
    gates = [1.0 if step.operation and OPERATIONS[step.operation].per_box else step.probability for step in acting]
    levels = [OPERATIONS[step.operation].argument(step.level) if step.operation else 0.0 for step in acting]
    indices = [1 + names.index(step.operation) if step.operation else 0 for step in acting]
    draw = Draw(
        argument=tf.gather(tf.constant(levels, tf.float32), choice),
        probability=tf.gather(tf.constant([step.probability for step in acting], tf.float32), choice),
        seed=operation_seed,
    )
    acts = tf.random.stateless_uniform([], gate_seed) < tf.gather(tf.constant(gates, tf.float32), choice)
    branch = tf.where(acts, tf.gather(tf.constant(indices), choice), 0)
    runs = [lambda: sample, *(lambda name=name: OPERATIONS[name].run(sample, draw) for name in names)]
    return tf.switch_case(branch, runs)
