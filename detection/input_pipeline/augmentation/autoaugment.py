"""AutoAugment and RandAugment for detection: policies, and the chain of operations drawn per image.

Source of the policies, tables of (operation, probability, level): Zoph et al., "Learning Data
Augmentation Strategies for Object Detection" (arXiv 1906.11172), as used by google/automl and
tensorflow/tpu.  v0 gave the paper's results; v1 to v3 were found in the same search.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from detection.input_pipeline.augmentation.autoaugment_operations import OPERATIONS, Draw
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


class Step(NamedTuple):
    """One operation of a sub-policy.

    operation: a key of `autoaugment_operations.OPERATIONS`.
    probability: probability of the operation; operations on single boxes use a third of it
        for each box.
    level: strength, nominally 0 to 10.
    """

    operation: str
    probability: float
    level: float


# Sub-policies; one is drawn per image, and its steps run in order.
Policy = tuple[tuple[Step, ...], ...]


def _policy(*sub_policies: tuple[tuple[str, float, float], ...]) -> Policy:
    return tuple(tuple(Step(*step) for step in sub_policy) for sub_policy in sub_policies)


_V0 = (
    (("TranslateX_BBox", 0.6, 4), ("Equalize", 0.8, 10)),
    (("TranslateY_Only_BBoxes", 0.2, 2), ("Cutout", 0.8, 8)),
    (("Sharpness", 0.0, 8), ("ShearX_BBox", 0.4, 0)),
    (("ShearY_BBox", 1.0, 2), ("TranslateY_Only_BBoxes", 0.6, 6)),
    (("Rotate_BBox", 0.6, 10), ("Color", 1.0, 6)),
)

POLICIES: dict[str, Policy] = {
    "v0": _policy(*_V0),
    "v1": _policy(
        *_V0,
        (("Color", 0.0, 0), ("ShearX_Only_BBoxes", 0.8, 4)),
        (("ShearY_Only_BBoxes", 0.8, 2), ("Flip_Only_BBoxes", 0.0, 10)),
        (("Equalize", 0.6, 10), ("TranslateX_BBox", 0.2, 2)),
        (("Color", 1.0, 10), ("TranslateY_Only_BBoxes", 0.4, 6)),
        (("Rotate_BBox", 0.8, 10), ("Contrast", 0.0, 10)),
        (("Cutout", 0.2, 2), ("Brightness", 0.8, 10)),
        (("Color", 1.0, 6), ("Equalize", 1.0, 2)),
        (("Cutout_Only_BBoxes", 0.4, 6), ("TranslateY_Only_BBoxes", 0.8, 2)),
        (("Color", 0.2, 8), ("Rotate_BBox", 0.8, 10)),
        (("Sharpness", 0.4, 4), ("TranslateY_Only_BBoxes", 0.0, 4)),
        (("Sharpness", 1.0, 4), ("SolarizeAdd", 0.4, 4)),
        (("Rotate_BBox", 1.0, 8), ("Sharpness", 0.2, 8)),
        (("ShearY_BBox", 0.6, 10), ("Equalize_Only_BBoxes", 0.6, 8)),
        (("ShearX_BBox", 0.2, 6), ("TranslateY_Only_BBoxes", 0.2, 10)),
        (("SolarizeAdd", 0.6, 8), ("Brightness", 0.8, 10)),
    ),
    "v2": _policy(
        (("Color", 0.0, 6), ("Cutout", 0.6, 8), ("Sharpness", 0.4, 8)),
        (("Rotate_BBox", 0.4, 8), ("Sharpness", 0.4, 2), ("Rotate_BBox", 0.8, 10)),
        (("TranslateY_BBox", 1.0, 8), ("AutoContrast", 0.8, 2)),
        (("AutoContrast", 0.4, 6), ("ShearX_BBox", 0.8, 8), ("Brightness", 0.0, 10)),
        (("SolarizeAdd", 0.2, 6), ("Contrast", 0.0, 10), ("AutoContrast", 0.6, 0)),
        (("Cutout", 0.2, 0), ("Solarize", 0.8, 8), ("Color", 1.0, 4)),
        (("TranslateY_BBox", 0.0, 4), ("Equalize", 0.6, 8), ("Solarize", 0.0, 10)),
        (("TranslateY_BBox", 0.2, 2), ("ShearY_BBox", 0.8, 8), ("Rotate_BBox", 0.8, 8)),
        (("Cutout", 0.8, 8), ("Brightness", 0.8, 8), ("Cutout", 0.2, 2)),
        (("Color", 0.8, 4), ("TranslateY_BBox", 1.0, 6), ("Rotate_BBox", 0.6, 6)),
        (("Rotate_BBox", 0.6, 10), ("BBox_Cutout", 1.0, 4), ("Cutout", 0.2, 8)),
        (("Rotate_BBox", 0.0, 0), ("Equalize", 0.6, 6), ("ShearY_BBox", 0.6, 8)),
        (("Brightness", 0.8, 8), ("AutoContrast", 0.4, 2), ("Brightness", 0.2, 2)),
        (("TranslateY_BBox", 0.4, 8), ("Solarize", 0.4, 6), ("SolarizeAdd", 0.2, 10)),
        (("Contrast", 1.0, 10), ("SolarizeAdd", 0.2, 8), ("Equalize", 0.2, 4)),
    ),
    "v3": _policy(
        (("Posterize", 0.8, 2), ("TranslateX_BBox", 1.0, 8)),
        (("BBox_Cutout", 0.2, 10), ("Sharpness", 1.0, 8)),
        (("Rotate_BBox", 0.6, 8), ("Rotate_BBox", 0.8, 10)),
        (("Equalize", 0.8, 10), ("AutoContrast", 0.2, 10)),
        (("SolarizeAdd", 0.2, 2), ("TranslateY_BBox", 0.2, 8)),
        (("Sharpness", 0.0, 2), ("Color", 0.4, 8)),
        (("Equalize", 1.0, 8), ("TranslateY_BBox", 1.0, 8)),
        (("Posterize", 0.6, 2), ("Rotate_BBox", 0.0, 10)),
        (("AutoContrast", 0.6, 0), ("Rotate_BBox", 1.0, 6)),
        (("Equalize", 0.0, 4), ("Cutout", 0.8, 10)),
        (("Brightness", 1.0, 2), ("TranslateY_BBox", 1.0, 6)),
        (("Contrast", 0.0, 2), ("ShearY_BBox", 0.8, 0)),
        (("AutoContrast", 0.8, 10), ("Contrast", 0.2, 10)),
        (("Rotate_BBox", 1.0, 10), ("Cutout", 1.0, 10)),
        (("SolarizeAdd", 0.8, 6), ("Equalize", 0.8, 8)),
    ),
    "test": _policy((("TranslateX_BBox", 1.0, 4), ("Equalize", 1.0, 10))),
}


def autoaugment(sample: Sample, *, policy: Policy, seed: tf.Tensor) -> Sample:
    """Applies one sub-policy, drawn uniformly; each of its steps has a separate probability.

    Source: Zoph et al., "Learning Data Augmentation Strategies for Object Detection"
    (arXiv 1906.11172).  Objects that leave the image are dropped.

    Args:
        sample: decoded sample; sizes in pixels (translation, cutout) refer to its image.
        policy: a value of `POLICIES`, or another policy.
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
    """Applies `layers` operations in order, each drawn uniformly from ten.

    Source: Cubuk et al., "RandAugment" (arXiv 1909.13719), with the operations and the
    defaults of google/automl EfficientDet.

    Args:
        sample: decoded sample.
        layers: number of operations.
        magnitude: level of all operations; the nominal maximum is 10.
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


# This code does not need AutoGraph, which makes tracing several times slower.
@tf.autograph.experimental.do_not_convert
def _one_of(sample: Sample, steps: Sequence[Step | None], choice: tf.Tensor, seed: tf.Tensor) -> Sample:
    """Runs step number `choice`; None and steps with probability 0 change nothing.

    The graph contains each operation once, even if several steps use it, and runs only the
    chosen one.
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
    # Branch, probability of the branch, argument of the operation, probability of the step.
    if step is None or step.operation not in names:
        return 0.0, 0.0, 0.0, 0.0
    operation = OPERATIONS[step.operation]
    gate = 1.0 if operation.per_box else step.probability
    return 1.0 + names.index(step.operation), gate, operation.argument(step.level), step.probability
