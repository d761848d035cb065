"""The input pipeline of training: records to augmented batches of static shape.

A batch is a pure function of (seed, step): which records it holds comes from a
permutation or a sample per epoch, how they are augmented from the record's position in the
run.  A resumed run starts at any step without reading what came before.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.input_pipeline.augmentation.crops import random_scale_crop
from detection.input_pipeline.augmentation.flip import random_horizontal_flip
from detection.input_pipeline.network_input import normalize, pad_labels, pad_to
from detection.input_pipeline.record_decoder import decode_record, python_op
from detection.input_pipeline.record_order import RecordOrder
from detection.input_pipeline.record_reader import RecordReader
from detection.input_pipeline.sample import Sample
from detection.types import Labels, Resizing


class Batch(NamedTuple):
    """One batch of training examples.

    images: float32 [B, H, W, 3], normalised.
    labels: ground truth in pixels of the input.
    truncated: int32 [B], instances beyond `max_instances` that were left out.
    """

    images: tf.Tensor
    labels: Labels
    truncated: tf.Tensor


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


class InputOptions(NamedTuple):
    """Options that turn a record into a training example.

    image_size: (height, width) of the input, pixels.
    mean: RGB, on the 0 to 255 scale.
    std: RGB, on the same scale.
    category_ids: in the order of the network's classes.
    max_instances: max instances per image; more are truncated and counted.
    horizontal_flip: mirror half of the images.
    scale_min: see `random_scale_crop`.
    scale_max: see `random_scale_crop`.
    augmentations: what is done before flip and scale jitter, in this order.
    mask_size: side of the mask crops, pixels; 0: no masks.
    num_keypoints: K, the most of any category; 0: no keypoints.
    keypoint_flips: see `random_horizontal_flip`.
    with_crowds: crowds go into `Labels.crowds`; otherwise they are left out.
    resizing: see `random_scale_crop`.
    class_weights: float32 [C], of each class, for `Labels.weights`; None: no weights.
    """

    image_size: tuple[int, int]
    mean: Sequence[float]
    std: Sequence[float]
    category_ids: Sequence[int]
    max_instances: int
    horizontal_flip: bool
    scale_min: float
    scale_max: float
    augmentations: Sequence[Augmentation] = ()
    mask_size: int = 0
    num_keypoints: int = 0
    keypoint_flips: Sequence[Sequence[int]] | None = None
    with_crowds: bool = False
    resizing: Resizing | None = None
    class_weights: npt.NDArray[np.float32] | None = None


def training_batches(
    reader: RecordReader,
    options: InputOptions,
    *,
    seed: int,
    start_step: int,
    stop_step: int | None,
    batch_size: int,
    replica_batch_size: int | None = None,
    micro_batches: int = 1,
    repeat_factors: npt.NDArray[np.float64] | None = None,
    pipeline: int = 0,
    num_pipelines: int = 1,
) -> tf.data.Dataset:
    """Batches for the steps `start_step <= step < stop_step`.

    Args:
        reader: the training records.
        options: how a record becomes an example.
        seed: of the order and of the augmentation.
        start_step: first step.
        stop_step: one past the last step; None: the batches have no end.
        batch_size: images of one step in this input pipeline.
        replica_batch_size: images in each element; several elements make up a step
            where several replicas draw from one pipeline.  None: batch_size.
        micro_batches: number of micro-batches that a replica divides its element into, in order.
            Each of them, over all replicas, holds successive positions of the run.
        repeat_factors: see `RecordOrder`.
        pipeline: which of the input pipelines (workers) this is; together they see
            each position of the run once.
        num_pipelines: how many there are.

    Returns:
        A data set of `Batch`.
    """
    element_size = replica_batch_size or batch_size
    order = RecordOrder(seed, len(reader), repeat_factors)
    read = _position_reader(reader, order)

    def example_of(counter: tf.Tensor) -> Batch:
        position = _position_of(
            counter,
            batch_size=batch_size,
            element_size=element_size,
            micro_batches=micro_batches,
            pipeline=pipeline,
            num_pipelines=num_pipelines,
        )
        first = position - position % order.epoch_size  # of the epoch

        def draw_partner(partner_seed: tf.Tensor) -> Sample:
            place = tf.random.stateless_uniform([], partner_seed, maxval=order.epoch_size, dtype=tf.int64)
            return _decode(read(first + place), options)

        sample = _decode(read(position), options)
        return _example(sample, options, draw_partner=draw_partner, seed=_position_seed(seed, position))

    start = start_step * batch_size
    endless = tf.data.Dataset.counter(start)
    counters = endless if stop_step is None else tf.data.Dataset.range(start, stop_step * batch_size)
    # There is no Python control flow on tensors in it; converting it costs seconds.
    example = tf.autograph.experimental.do_not_convert(example_of)
    # Reading, decoding and augmenting run in parallel; the order stays.
    examples = counters.map(example, num_parallel_calls=tf.data.AUTOTUNE)
    return examples.batch(element_size, drop_remainder=True).prefetch(2)


def _position_of(
    counter: tf.Tensor, *, batch_size: int, element_size: int, micro_batches: int, pipeline: int, num_pipelines: int
) -> tf.Tensor:
    """Returns the position in the run of an image of one input pipeline.

    A pipeline counts its images step by step, in each step replica by replica.  Positions of the
    run go over the replicas of all pipelines for each micro-batch of a step.

    Args:
        counter: int64 [], number of the image in its pipeline, from 0 on.
        batch_size: images of one step in the pipeline.
        element_size: images of one step per replica.
        micro_batches: see `training_batches`.
        pipeline: see `training_batches`.
        num_pipelines: see `training_batches`.

    Returns:
        int64 [].
    """
    micro_batch_size = element_size // micro_batches
    replicas = batch_size // element_size  # of this pipeline
    step, place = counter // batch_size, counter % batch_size
    replica, place = place // element_size, place % element_size
    micro_batch, place = place // micro_batch_size, place % micro_batch_size
    replicas_before = (step * micro_batches + micro_batch) * replicas * num_pipelines + pipeline * replicas + replica
    return replicas_before * micro_batch_size + place


def _position_reader(reader: RecordReader, order: RecordOrder) -> Callable[[tf.Tensor], tf.Tensor]:
    def read(position: np.ndarray) -> bytes:
        return reader.read(order.record(int(position)))

    return lambda position: python_op(read, [position], tf.string, [])


def _position_seed(seed: int, position: tf.Tensor) -> tf.Tensor:
    base = tf.constant([seed % 2**31, 0x0DA7A], tf.int32)
    low, high = position % 2**31, position // 2**31
    return tf.random.fold_in(tf.random.fold_in(base, tf.cast(low, tf.int32)), tf.cast(high, tf.int32))


def _decode(record: tf.Tensor, options: InputOptions) -> Sample:
    return decode_record(
        record,
        category_ids=options.category_ids,
        with_masks=options.mask_size > 0,
        num_keypoints=options.num_keypoints,
        with_crowds=options.with_crowds,
    )


def _example(
    sample: Sample, options: InputOptions, *, draw_partner: Callable[[tf.Tensor], Sample], seed: tf.Tensor
) -> Batch:
    sample = augment(sample, options.augmentations, draw_partner=draw_partner, seed=seed)
    flip_seed, crop_seed = tf.unstack(tf.random.split(seed, 2))
    if options.horizontal_flip:
        sample = random_horizontal_flip(sample, keypoint_flips=options.keypoint_flips, seed=flip_seed)
    window = random_scale_crop(
        sample,
        image_size=options.image_size,
        resizing=options.resizing,
        scale_min=options.scale_min,
        scale_max=options.scale_max,
        mask_size=options.mask_size,
        seed=crop_seed,
    )
    # Padding follows normalisation, so that it is the mean colour: 0.
    image = pad_to(normalize(window.image, mean=options.mean, std=options.std), options.image_size)
    labels, truncated = pad_labels(window, max_instances=options.max_instances)
    if options.class_weights is not None:
        labels = labels._replace(weights=tf.gather(tf.constant(options.class_weights), labels.classes))
    return Batch(image, labels, truncated)


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
        sample = _apply_step(sample, step, draw_partner, tf.random.fold_in(seed, step.number))
    return sample


def _apply_step(
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
