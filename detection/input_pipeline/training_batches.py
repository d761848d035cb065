"""The input pipeline of training: turns records into augmented batches of static shape.

A batch is a pure function of (seed, step): its records come from a permutation or a sample per
epoch, their augmentation from the position in the run.  A resumed run starts at any step without
reading earlier records.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detection.input_pipeline.augmentation.crops import random_scale_crop
from detection.input_pipeline.augmentation.flip import random_horizontal_flip
from detection.input_pipeline.network_input import normalize, pad_labels, pad_to
from detection.input_pipeline.parallel_map import parallel_map
from detection.input_pipeline.record_decoder import decode_record, python_op
from detection.input_pipeline.record_order import RecordOrder
from detection.input_pipeline.record_reader import RecordReader
from detection.input_pipeline.sample import Sample
from detection.types import Labels, Resizing


class Batch(NamedTuple):
    """One batch of training examples.

    images: float32 [B, H, W, 3], normalised.
    labels: ground truth in pixels of the input.
    truncated: int32 [B], number of instances beyond `max_instances`, which were dropped.
    """

    images: tf.Tensor
    labels: Labels
    truncated: tf.Tensor


class Augmentation(NamedTuple):
    """An augmentation step.

    number: number of its seed; unique, so that enabling a step does not change the draws of
        other steps.
    apply: maps the sample, its partners and `seed` (int32 [2], by name) to a new sample.
    probability: probability of the step.
    partners: number of other samples that it needs.
    start, stop: first image of the run that it may change, and the first that it may not; None: it has no end.
    """

    number: int
    apply: Callable[..., Sample]
    probability: float = 1.0
    partners: int = 0
    start: int = 0
    stop: int | None = None


class InputOptions(NamedTuple):
    """Options that turn a record into a training example.

    image_size: (height, width) of the input in pixels.
    mean: RGB mean of 0..255 pixels.
    std: RGB standard deviation of 0..255 pixels.
    category_ids: category ids in the order of the network's classes.
    max_instances: max instances per image; more are truncated and counted.
    horizontal_flip: mirror half of the images.
    scale_min: min multiple of the input's scale.
    scale_max: max multiple of the input's scale.
    augmentations: augmentations before flip and scale jitter, in order.
    mask_size: side of the mask crops in pixels; 0: no masks.
    num_keypoints: K, the max number per category; 0: no keypoints.
    keypoint_flips: int [C, K], counterpart of each keypoint in a mirrored image; None: itself.
    with_crowds: return crowds in `Labels.crowds`; False: drop them.
    resizing: how images are scaled into the input; None: fit.
    class_weights: float32 [C], weights per class for `Labels.weights`; None: no weights.
    with_weights: read the objects' own weights, which multiply those of their classes.
    jitter_stop: first image of the run whose scale is 1; None: there is none.
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
    with_weights: bool = False
    jitter_stop: int | None = None


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
    """Builds the batches of the steps `start_step <= step < stop_step`.

    Args:
        reader: the training records.
        options: how a record becomes an example.
        seed: seed of the order and of the augmentation.
        start_step: first step.
        stop_step: one past the last step; None: endless.
        batch_size: images per step in this input pipeline.
        replica_batch_size: images per element; a step has several elements if several replicas
            share a pipeline.  None: batch_size.
        micro_batches: number of micro-batches that a replica divides its element into, in order.
            Each micro-batch, over all replicas, has consecutive positions of the run.
        repeat_factors: float64 [N], expected repeats of each record per epoch; None: each once.
        pipeline: index of this input pipeline (worker); together the pipelines read each
            position of the run once.
        num_pipelines: number of input pipelines.

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
        first = position - position % order.epoch_size  # start of the epoch

        def draw_partner(partner_seed: tf.Tensor) -> Sample:
            place = tf.random.stateless_uniform([], partner_seed, maxval=order.epoch_size, dtype=tf.int64)
            return _decode(read(first + place), options)

        sample = _decode(read(position), options)
        seeds = _position_seed(seed, position)
        return _example(sample, options, draw_partner=draw_partner, seed=seeds, position=position)

    start = start_step * batch_size
    endless = tf.data.Dataset.counter(start)
    counters = endless if stop_step is None else tf.data.Dataset.range(start, stop_step * batch_size)
    examples = parallel_map(counters, example_of)
    return examples.batch(element_size, drop_remainder=True).prefetch(2)


def _position_of(
    counter: tf.Tensor, *, batch_size: int, element_size: int, micro_batches: int, pipeline: int, num_pipelines: int
) -> tf.Tensor:
    """Returns the position in the run of an image of one input pipeline.

    A pipeline counts its images by step, then by replica.  Positions of the run count by step, then
    by micro-batch, then over the replicas of all pipelines.

    Args:
        counter: int64 [], index of the image in its pipeline.
        batch_size: images per step in the pipeline.
        element_size: images per step and replica.
        micro_batches: micro-batches per step.
        pipeline: index of the pipeline.
        num_pipelines: number of pipelines.

    Returns:
        int64 [].
    """
    micro_batch_size = element_size // micro_batches
    replicas = batch_size // element_size  # that this pipeline feeds
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
        with_weights=options.with_weights,
    )


def _example(
    sample: Sample,
    options: InputOptions,
    *,
    draw_partner: Callable[[tf.Tensor], Sample],
    seed: tf.Tensor,
    position: tf.Tensor,
) -> Batch:
    sample = augment(sample, options.augmentations, draw_partner=draw_partner, seed=seed, position=position)
    scales: Any = (options.scale_min, options.scale_max)
    if options.jitter_stop is not None:
        scales = tf.unstack(tf.where(position < options.jitter_stop, scales, (1.0, 1.0)))
    flip_seed, crop_seed = tf.unstack(tf.random.split(seed, 2))
    if options.horizontal_flip:
        sample = random_horizontal_flip(sample, keypoint_flips=options.keypoint_flips, seed=flip_seed)
    window = random_scale_crop(
        sample,
        image_size=options.image_size,
        resizing=options.resizing,
        scale_min=scales[0],
        scale_max=scales[1],
        mask_size=options.mask_size,
        seed=crop_seed,
    )
    # Padding follows normalisation, so that it equals the mean colour: 0.
    image = pad_to(normalize(window.image, mean=options.mean, std=options.std), options.image_size)
    labels, truncated = pad_labels(window, max_instances=options.max_instances)
    if options.class_weights is not None:
        weights = tf.gather(tf.constant(options.class_weights), labels.classes)
        labels = labels._replace(weights=weights if labels.weights is None else weights * labels.weights)
    return Batch(image, labels, truncated)


def augment(
    sample: Sample,
    steps: Sequence[Augmentation],
    *,
    draw_partner: Callable[[tf.Tensor], Sample],
    seed: tf.Tensor,
    position: tf.Tensor | int = 0,
) -> Sample:
    """Applies the steps in order.

    Args:
        sample: decoded sample.
        steps: augmentation steps.
        draw_partner: decodes another sample of the data set, given a seed (int32 [2]); called
            inside the graph's branch that needs it, so that other branches cost nothing.
        seed: int32 [2], seed of this sample.
        position: int64 [], image of the run, from 0.
    """
    for step in steps:
        sample = _apply_step(sample, step, draw_partner, tf.random.fold_in(seed, step.number), position)
    return sample


def _apply_step(
    sample: Sample,
    step: Augmentation,
    draw_partner: Callable[[tf.Tensor], Sample],
    seed: tf.Tensor,
    position: tf.Tensor | int,
) -> Sample:
    decision_seed, partner_seed, step_seed = tf.unstack(tf.random.split(seed, 3))

    def act() -> Sample:
        partners = [draw_partner(tf.random.fold_in(partner_seed, number)) for number in range(step.partners)]
        return step.apply(sample, *partners, seed=step_seed)

    if step.probability >= 1.0 and not step.start and step.stop is None:
        return act()
    decision = tf.random.stateless_uniform([], decision_seed) < step.probability
    if step.start or step.stop is not None:
        position = tf.convert_to_tensor(position, tf.int64)
        decision &= (position >= step.start) & (position < (tf.int64.max if step.stop is None else step.stop))
    return tf.cond(decision, act, lambda: sample)
