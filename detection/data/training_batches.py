"""The input pipeline of training: records to augmented batches of static shape.

A batch is a pure function of (seed, step): which records it holds comes from a
permutation per epoch, how they are augmented from the record's position in the
run.  A resumed run starts at any step without reading what came before.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from detection.data.augment import random_horizontal_flip, random_scale_crop
from detection.data.fit import normalize, pad_to
from detection.data.record_decoder import decode_record
from detection.data.record_reader import RecordReader
from detection.types import Labels


class Batch(NamedTuple):
    """What one training step consumes.

    images: float32 [B, H, W, 3], normalised.
    labels: ground truth in pixels of the input.
    cut_off: int32 [B], objects beyond the padding's size that were left out.
    """

    images: tf.Tensor
    labels: Labels
    cut_off: tf.Tensor


class InputOptions(NamedTuple):
    """How a record becomes a training example.

    image_size is (height, width) in pixels; mean and std are RGB on the 0 to 255
    scale; category_ids stand in the order of the network's classes.
    """

    image_size: tuple[int, int]
    mean: Sequence[float]
    std: Sequence[float]
    category_ids: Sequence[int]
    max_instances: int
    horizontal_flip: bool
    scale_min: float
    scale_max: float


def epoch_permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    """The order of the records in one epoch: int64 [size], a function of its arguments alone."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(size)


def training_batches(
    reader: RecordReader,
    options: InputOptions,
    *,
    seed: int,
    start_step: int,
    stop_step: int,
    batch_size: int,
    replica_batch_size: int | None = None,
    pipeline: int = 0,
    num_pipelines: int = 1,
) -> tf.data.Dataset:
    """Batches for the steps `start_step <= step < stop_step`.

    Args:
        reader: the training records.
        options: how a record becomes an example.
        seed: of the order and of the augmentation.
        start_step: first step.
        stop_step: one past the last step.
        batch_size: images of one step in this input pipeline.
        replica_batch_size: images in each element; several elements make up a step
            where several replicas draw from one pipeline.  None: batch_size.
        pipeline: which of the input pipelines (workers) this is; together they see
            each position of the run once.
        num_pipelines: how many there are.

    Returns:
        A data set of `Batch`.
    """

    def position_of(counter: tf.Tensor) -> tf.Tensor:
        step, place = counter // batch_size, counter % batch_size
        return (step * num_pipelines + pipeline) * batch_size + place

    counters = tf.data.Dataset.range(start_step * batch_size, stop_step * batch_size)
    positioned = counters.map(position_of)
    read = _position_reader(reader, seed)
    records = positioned.map(lambda position: (read(position), position))
    examples = records.map(
        lambda record, position: _example(record, options, _position_seed(seed, position)),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return examples.batch(replica_batch_size or batch_size, drop_remainder=True).prefetch(2)


def _position_reader(reader: RecordReader, seed: int) -> Callable[[tf.Tensor], tf.Tensor]:
    # Two epochs are open at once around an epoch's end.
    order = functools.lru_cache(maxsize=2)(lambda epoch: epoch_permutation(seed, epoch, len(reader)))

    def read(position: np.ndarray) -> bytes:
        epoch, place = divmod(int(position), len(reader))
        return reader.read(int(order(epoch)[place]))

    def read_record(position: tf.Tensor) -> tf.Tensor:
        # Stateless: otherwise op determinism would run the whole pipeline serially.
        return tf.ensure_shape(tf.numpy_function(read, [position], tf.string, stateful=False), [])

    return read_record


def _position_seed(seed: int, position: tf.Tensor) -> tf.Tensor:
    base = tf.constant([seed % 2**31, 0x0DA7A], tf.int32)
    low, high = position % 2**31, position // 2**31
    return tf.random.fold_in(tf.random.fold_in(base, tf.cast(low, tf.int32)), tf.cast(high, tf.int32))


def _example(record: tf.Tensor, options: InputOptions, seed: tf.Tensor) -> Batch:
    sample = decode_record(record, category_ids=options.category_ids)
    flip_seed, crop_seed = tf.unstack(tf.random.split(seed, 2))
    if options.horizontal_flip:
        sample = random_horizontal_flip(sample, seed=flip_seed)
    image, boxes, classes = random_scale_crop(
        sample,
        image_size=options.image_size,
        scale_min=options.scale_min,
        scale_max=options.scale_max,
        seed=crop_seed,
    )
    # Padding follows normalisation, so that it is the mean colour: 0.
    image = pad_to(normalize(image, mean=options.mean, std=options.std), options.image_size)
    labels = pad_labels(boxes, classes, max_instances=options.max_instances)
    return Batch(image, labels, tf.maximum(tf.shape(classes)[0] - options.max_instances, 0))


def pad_labels(boxes: tf.Tensor, classes: tf.Tensor, *, max_instances: int) -> Labels:
    """Pads one image's objects to a fixed number, or cuts them off at it.

    Args:
        boxes: float32 [M, 4].
        classes: int32 [M].
        max_instances: N.

    Returns:
        `Labels` without batch axis: boxes [N, 4], classes [N], valid [N].
    """
    count = tf.minimum(tf.shape(classes)[0], max_instances)
    missing = max_instances - count
    return Labels(
        boxes=tf.ensure_shape(tf.pad(boxes[:count], [[0, missing], [0, 0]]), [max_instances, 4]),
        classes=tf.ensure_shape(tf.pad(classes[:count], [[0, missing]]), [max_instances]),
        valid=tf.range(max_instances) < count,
    )
