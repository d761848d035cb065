from pathlib import Path

import numpy as np
import tensorflow as tf

from detection.data.augment import random_horizontal_flip, random_scale_crop
from detection.data.record_decoder import Sample
from detection.data.record_reader import RecordReader
from detection.data.training_batches import Batch, InputOptions, epoch_permutation, pad_labels, training_batches
from tests.detection.synthetic import CATEGORY_IDS, COLOURS, rectangles, write_shards

OPTIONS = InputOptions(
    image_size=(64, 64),
    mean=(0.0, 0.0, 0.0),
    std=(1.0, 1.0, 1.0),
    category_ids=CATEGORY_IDS,
    max_instances=5,
    horizontal_flip=True,
    scale_min=0.5,
    scale_max=1.8,
)


def _batches(reader: RecordReader, start: int, stop: int, **keywords: int) -> list[Batch]:
    sized = {"batch_size": 4} | keywords
    return list(training_batches(reader, OPTIONS, seed=11, start_step=start, stop_step=stop, **sized))


def _reader(tmp_path: Path, count: int = 10) -> RecordReader:
    return RecordReader(write_shards(tmp_path, rectangles(count)))


def _assert_equal(left: Batch, right: Batch) -> None:
    tf.nest.map_structure(lambda a, b: np.testing.assert_array_equal(a.numpy(), b.numpy()), left, right)


def test_a_run_that_starts_late_sees_what_an_earlier_start_sees(tmp_path: Path) -> None:
    reader = _reader(tmp_path)
    whole, late = _batches(reader, 0, 6), _batches(reader, 4, 6)
    assert len(late) == 2
    for one, other in zip(whole[4:], late, strict=True):
        _assert_equal(one, other)


def test_two_pipelines_together_see_what_one_sees(tmp_path: Path) -> None:
    reader = _reader(tmp_path)
    whole = _batches(reader, 0, 3)
    parts = [_batches(reader, 0, 3, batch_size=2, pipeline=number, num_pipelines=2) for number in (0, 1)]
    for step, one in enumerate(whole):
        joined = tf.nest.map_structure(lambda a, b: tf.concat([a, b], 0), parts[0][step], parts[1][step])
        _assert_equal(one, joined)


def test_replica_batches_are_the_global_batch_in_order(tmp_path: Path) -> None:
    reader = _reader(tmp_path)
    (whole,), halves = _batches(reader, 0, 1), _batches(reader, 0, 1, replica_batch_size=2)
    _assert_equal(whole, tf.nest.map_structure(lambda a, b: tf.concat([a, b], 0), *halves))


def test_an_epoch_holds_every_record_once_and_epochs_differ() -> None:
    orders = [epoch_permutation(3, epoch, 100) for epoch in range(3)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(100))
    assert (orders[0] != orders[1]).any()
    assert (orders[0] != epoch_permutation(4, 0, 100)).any()


def test_shapes_are_static(tmp_path: Path) -> None:
    batches = training_batches(_reader(tmp_path), OPTIONS, seed=0, start_step=0, stop_step=1, batch_size=4)
    assert batches.element_spec.images.shape == (4, 64, 64, 3)
    assert batches.element_spec.labels.boxes.shape == (4, 5, 4)


def test_boxes_follow_the_pixels_through_every_augmentation(tmp_path: Path) -> None:
    """Each rectangle's colour fills the centre of its box, whatever flip, scale and crop did to it."""
    checked = 0
    for batch in _batches(_reader(tmp_path), 0, 20):
        for image, boxes, classes, valid in zip(batch.images.numpy(), *map(np.asarray, batch.labels), strict=True):
            last = np.flatnonzero(valid)[-1:]  # drawn last, so nothing covers it
            for box, kind in zip(boxes[last], classes[last], strict=True):
                if min(box[2:] - box[:2]) < 6:
                    continue
                y, x = ((box[:2] + box[2:]) / 2).astype(int)
                np.testing.assert_allclose(image[y, x], COLOURS[kind], atol=40)
                assert ((box >= 0) & (box <= 64)).all()
                checked += 1
    assert checked > 40


def test_flipping_mirrors_x_and_leaves_y() -> None:
    image = np.zeros((4, 10, 3), np.uint8)
    image[1, 2] = 255
    sample = Sample(tf.constant(image), tf.constant([[0.25, 0.2, 0.5, 0.3]]), tf.constant([0]))
    flipped = [random_horizontal_flip(sample, seed=tf.constant([0, number])) for number in range(20)]
    mirrored = [one for one in flipped if one.image.numpy()[1, 7, 0] == 255]
    assert 3 < len(mirrored) < 17
    np.testing.assert_allclose(mirrored[0].boxes_yxyx.numpy(), [[0.25, 0.7, 0.5, 0.8]], rtol=1e-6)


def test_boxes_outside_the_window_are_dropped_and_others_cut() -> None:
    boxes = tf.constant([[0.0, 0.0, 0.1, 0.1], [0.9, 0.9, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
    sample = Sample(tf.zeros([40, 40, 3], tf.uint8), boxes, tf.constant([0, 1, 2]))
    for number in range(10):
        image, cut, classes = random_scale_crop(
            sample, image_size=(20, 20), scale_min=4.0, scale_max=4.0, seed=tf.constant([1, number])
        )
        assert image.shape == (20, 20, 3)
        np.testing.assert_array_equal(cut.numpy()[-1], [0, 0, 20, 20])
        assert len(set(classes.numpy()) & {0, 1}) < 2


def test_too_many_objects_are_cut_off() -> None:
    boxes = tf.reshape(tf.range(28, dtype=tf.float32), [7, 4])
    labels = pad_labels(boxes, tf.range(7), max_instances=5)
    np.testing.assert_array_equal(labels.classes.numpy(), np.arange(5))
    assert labels.valid.numpy().all()
    padded = pad_labels(boxes[:2], tf.range(2), max_instances=5)
    np.testing.assert_array_equal(padded.valid.numpy(), [True, True, False, False, False])
    np.testing.assert_array_equal(padded.boxes.numpy()[2:], 0)


def test_objects_cut_off_are_counted(tmp_path: Path) -> None:
    options = OPTIONS._replace(max_instances=1, horizontal_flip=False, scale_min=1.0, scale_max=1.0)
    records = rectangles(4)
    reader = RecordReader(write_shards(tmp_path, records))
    (batch,) = training_batches(reader, options, seed=0, start_step=0, stop_step=1, batch_size=4)
    (whole,) = training_batches(
        reader, options._replace(max_instances=5), seed=0, start_step=0, stop_step=1, batch_size=4
    )
    np.testing.assert_array_equal(batch.cut_off.numpy(), whole.labels.valid.numpy().sum(1) - 1)
