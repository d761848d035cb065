"""AutoAugment and RandAugment for detection: one of several chains of operations, drawn for each image."""

from collections.abc import Sequence

import tensorflow as tf

from detection.input_pipeline.augmentation.autoaugment_operations import OPERATIONS, Draw
from detection.input_pipeline.augmentation.autoaugment_policies import Policy, Step
from detection.input_pipeline.sample import Sample

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
    table = tf.constant([_row(step, names) for step in steps], tf.float32)
    branch, gate, argument, probability = tf.unstack(table[choice])
    draw = Draw(argument, probability, operation_seed)
    acts = tf.random.stateless_uniform([], gate_seed) < gate
    runs = [lambda: sample, *(lambda name=name: OPERATIONS[name].run(sample, draw) for name in names)]
    return tf.switch_case(tf.where(acts, tf.cast(branch, tf.int32), 0), runs)


def _row(step: Step | None, names: Sequence[str]) -> tuple[float, float, float, float]:
    # Which branch, how often it is taken, and what its operation is told.
    if step is None or step.operation not in names:
        return 0.0, 0.0, 0.0, 0.0
    operation = OPERATIONS[step.operation]
    gate = 1.0 if operation.per_box else step.probability
    return 1.0 + names.index(step.operation), gate, operation.argument(step.level), step.probability
