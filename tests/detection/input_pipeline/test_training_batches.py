"""Batches for training: order, resuming, replicas, shapes, and the labels that follow their pixels."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.images.decode import decode_rgb
from detection.input_pipeline.augmentation.combining import mixup, mosaic
from detection.input_pipeline.augmentation.crops import CropOperation, random_crop
from detection.input_pipeline.record_order import epoch_permutation
from detection.input_pipeline.record_reader import RecordReader
from detection.input_pipeline.sample import Sample
from detection.input_pipeline.training_batches import Augmentation, Batch, InputOptions, augment, training_batches
from schemas import features
from schemas.errors import DataError, find_user_error
from tests.detection.input_pipeline.augmentation.coordinate_images import assert_equal, coordinate_sample
from tests.detection.synthetic import CATEGORY_IDS, COLOURS, example, rectangles, write_shards

PLAIN = InputOptions(
    image_size=(64, 64),
    mean=(0.0, 0.0, 0.0),
    std=(1.0, 1.0, 1.0),
    category_ids=CATEGORY_IDS,
    max_instances=5,
    horizontal_flip=True,
    scale_min=0.5,
    scale_max=1.8,
)
MIXED = PLAIN._replace(
    augmentations=(
        Augmentation(1, functools.partial(mosaic, image_size=(80, 72)), probability=0.5, partners=3),
        Augmentation(2, mixup, probability=0.5, partners=1),
        Augmentation(7, functools.partial(random_crop, operations=[CropOperation()]), probability=0.5),
    )
)
SAMPLE = coordinate_sample(6, 8, [(1, 2, 4, 7)])
SEED = tf.constant([5, 6])


def _batches(
    reader: RecordReader, start: int, stop: int, options: InputOptions = PLAIN, **keywords: Any
) -> list[Batch]:
    arguments = {"seed": 11, "batch_size": 4} | keywords
    return list(training_batches(reader, options, start_step=start, stop_step=stop, **arguments))


def _reader(tmp_path: Path, count: int = 10) -> RecordReader:
    return RecordReader(write_shards(tmp_path, rectangles(count)))


def _assert_equal(left: Batch, right: Batch) -> None:
    for one, other in zip(tf.nest.flatten(left), tf.nest.flatten(right), strict=True):
        if one is None:
            assert other is None
        else:
            np.testing.assert_array_equal(one.numpy(), other.numpy())


def _joined(*partitions: Batch) -> Batch:
    return tf.nest.map_structure(lambda *each: None if each[0] is None else tf.concat(each, 0), *partitions)


def test_repeated_images_resume_and_share_out_exactly(tmp_path: Path) -> None:
    """Twelve images per epoch of ten records, so three steps of four are an epoch, which mosaic's partners come from.

    Two workers that start late together see what one sees from the start.
    """
    reader, weights = _reader(tmp_path), np.array([0.5, 2.0, 4.0], np.float32)
    options, factors = MIXED._replace(class_weights=weights), np.array([1.0] * 8 + [2.6, 1.4])
    whole = _batches(reader, 0, 7, options, repeat_factors=factors)
    halves = [
        _batches(reader, 4, 7, options, repeat_factors=factors, batch_size=2, pipeline=half, num_pipelines=2)
        for half in (0, 1)
    ]
    for batch, *parts in zip(whole[4:], *halves, strict=True):
        _assert_equal(batch, _joined(*parts))
        labels = tf.nest.map_structure(lambda value: None if value is None else value.numpy(), batch.labels)
        np.testing.assert_array_equal(labels.weights[labels.valid], weights[labels.classes[labels.valid]])


def test_micro_batches_of_all_replicas_are_the_batch_in_order(tmp_path: Path) -> None:
    """Two pipelines of two replicas, which divide a step's eight images into two micro-batches."""
    reader = _reader(tmp_path)
    options: dict[str, Any] = {"batch_size": 4, "replica_batch_size": 2, "micro_batches": 2, "num_pipelines": 2}
    pipelines = [_batches(reader, 1, 2, pipeline=number, **options) for number in (0, 1)]
    elements = [element for pipeline in pipelines for element in pipeline]
    assert len(elements) == 4
    halves = [
        tf.nest.map_structure(lambda value, row=row: None if value is None else value[row : row + 1], element)
        for row in (0, 1)
        for element in elements
    ]
    (whole,) = _batches(reader, 1, 2, batch_size=8)
    _assert_equal(_joined(*halves), whole)


def test_shapes_are_static(tmp_path: Path) -> None:
    batches = training_batches(_reader(tmp_path), PLAIN, seed=0, start_step=0, stop_step=1, batch_size=4)
    assert batches.element_spec.images.shape == (4, 64, 64, 3)
    assert batches.element_spec.labels.boxes.shape == (4, 5, 4)


def test_boxes_follow_the_pixels_through_flip_and_scale_jitter(tmp_path: Path) -> None:
    """Each rectangle's colour fills the centre of its box, whatever flip, scale and crop did to it."""
    checked = 0
    for batch in _batches(_reader(tmp_path), 0, 20):
        for image, boxes, classes, valid in zip(batch.images.numpy(), *map(np.asarray, batch.labels[:3]), strict=True):
            last = np.flatnonzero(valid)[-1:]  # drawn last, so nothing covers it
            for box, kind in zip(boxes[last], classes[last], strict=True):
                if min(box[2:] - box[:2]) < 6:
                    continue
                y, x = ((box[:2] + box[2:]) / 2).astype(int)
                np.testing.assert_allclose(image[y, x], COLOURS[kind], atol=40)
                assert ((box >= 0) & (box <= 64)).all()
                checked += 1
    assert checked > 40


def test_truncated_instances_are_counted(tmp_path: Path) -> None:
    options = PLAIN._replace(max_instances=1, horizontal_flip=False, scale_min=1.0, scale_max=1.0)
    records = rectangles(4)
    reader = RecordReader(write_shards(tmp_path, records))
    (batch,) = training_batches(reader, options, seed=0, start_step=0, stop_step=1, batch_size=4)
    (whole,) = training_batches(
        reader, options._replace(max_instances=5), seed=0, start_step=0, stop_step=1, batch_size=4
    )
    np.testing.assert_array_equal(batch.truncated.numpy(), whole.labels.valid.numpy().sum(1) - 1)


def test_without_further_augmentations_a_batch_is_what_it_always_was(tmp_path: Path) -> None:
    """Resumed runs count on it, bit by bit: the rules once more, in plain words."""
    reader = _reader(tmp_path)
    (batch,) = _batches(reader, 2, 3)
    for row, position in enumerate(range(8, 12)):
        epoch, place = divmod(position, 10)
        record = tf.train.Example.FromString(reader.read(int(epoch_permutation(11, epoch, 10)[place])))
        values = {key: np.array(feature.float_list.value) for key, feature in record.features.feature.items()}
        boxes = np.stack([values[f"image/object/bbox/{side}"] for side in ("ymin", "xmin", "ymax", "xmax")], axis=1)
        image = decode_rgb(record.features.feature[features.ENCODED].bytes_list.value[0])
        seed = tf.random.fold_in(tf.random.fold_in(tf.constant([11, 0x0DA7A]), position), 0)
        flip_seed, crop_seed = tf.random.split(seed, 2)
        if tf.random.stateless_uniform([], flip_seed) < 0.5:
            image = image[:, ::-1]
            boxes = np.stack([boxes[:, 0], 1 - boxes[:, 3], boxes[:, 2], 1 - boxes[:, 1]], axis=1)
        jitter, *place_at = tf.random.stateless_uniform([3], crop_seed).numpy()
        side = int(np.floor(np.float32(64) * (0.5 + jitter * np.float32(1.3)) + 1e-3))
        offset = [int(fraction * (max(side - 64, 0) + 1 - 1e-4)) for fraction in place_at]
        scaled = tf.image.resize(image, [side, side]).numpy()[offset[0] :, offset[1] :][:64, :64]
        expected = np.zeros((64, 64, 3), np.float32)
        expected[: scaled.shape[0], : scaled.shape[1]] = scaled
        np.testing.assert_array_equal(batch.images[row].numpy(), expected)
        boxes = np.clip(boxes * side - np.tile(offset, 2), 0, min(side, 64))
        boxes = boxes[(boxes[:, 2:] > boxes[:, :2]).all(1)]
        np.testing.assert_allclose(batch.labels.boxes[row].numpy()[: len(boxes)], boxes, atol=1e-4)
        assert batch.labels.valid[row].numpy().tolist() == [number < len(boxes) for number in range(5)]


def _with_shapes(tmp_path: Path) -> tuple[RecordReader, InputOptions]:
    """Records with keypoints, masks and a crowd each, as another tool writes them."""
    records = []
    for number in range(6):
        boxes = [[4, 6, 30 + number, 40], [0, 0, 20, 20]]
        record = tf.train.Example.FromString(
            example(np.full((50, 60, 3), 40 * number, np.uint8), boxes, [7, 3], crowd=[0, 1])
        )
        masks = np.zeros((2, 50, 60), np.float32)
        for mask, (top, left, bottom, right) in zip(masks, boxes, strict=True):
            mask[top:bottom, left:right] = 1
        values = {"mask": masks.ravel(), "keypoint/y": [0.2, 0.4, 0, 0], "keypoint/x": [0.3, 0.5, 0, 0]}
        for name, value in values.items():
            record.features.feature[f"image/object/{name}"].float_list.value.extend(value)
        records.append(record.SerializeToString())
    options = PLAIN._replace(
        scale_min=1.0,
        scale_max=1.0,
        mask_size=6,
        num_keypoints=2,
        keypoint_flips=((0, 1), (1, 0), (0, 1)),
        with_crowds=True,
    )
    return RecordReader(write_shards(tmp_path, records)), options


def test_masks_keypoints_and_crowds_come_in_static_shapes(tmp_path: Path) -> None:
    reader, options = _with_shapes(tmp_path)
    batches = training_batches(reader, options, seed=0, start_step=0, stop_step=3, batch_size=4)
    labels = batches.element_spec.labels
    assert (labels.masks.shape, labels.masks.dtype) == ((4, 5, 6, 6), tf.uint8)
    assert (labels.keypoints.shape, labels.keypoints.dtype) == ((4, 5, 2, 3), tf.float32)
    assert (labels.crowds.shape, labels.crowds.dtype) == ((4, 5), tf.bool)
    flips = set()
    for batch in batches:
        for boxes, classes, valid, masks, points, crowds in zip(*map(np.asarray, batch.labels[:6]), strict=True):
            assert valid.tolist() == [True] + [False] * 4
            assert crowds.tolist() == [False, True] + [False] * 3
            assert classes[:2].tolist() == [1, 0]
            assert (masks[0] == 1).all()
            # 50 x 60 pixels become 53 x 64: points lie at fractions of them, mirrored and exchanged together.
            flipped = points[0, 0, 1] > points[0, 1, 1]
            plain = [[0.2, 0.3], [0.4, 0.5]]
            mirrored = [[0.4, 0.5], [0.2, 0.7]]
            np.testing.assert_allclose(points[0, :, :2] / [53, 64], mirrored if boxes[0, 1] > 7 else plain, atol=1e-5)
            assert (points[0, :, 2] == 2).all()
            assert (points[1:] == 0).all()
            flips.add(bool(flipped) or boxes[0, 1] > 7)
    assert flips == {False, True}


def test_labels_with_and_without_shapes_reach_every_replica(
    tmp_path: Path, two_replicas: tf.distribute.Strategy
) -> None:
    reader, full = _with_shapes(tmp_path)
    plain = PLAIN._replace(with_crowds=False)
    for options in (full, plain):
        (expected,) = training_batches(reader, options, seed=3, start_step=0, stop_step=1, batch_size=4)

        def batches(_: tf.distribute.InputContext, options: InputOptions = options) -> tf.data.Dataset:
            return training_batches(
                reader, options, seed=3, start_step=0, stop_step=1, batch_size=4, replica_batch_size=2
            )

        iterator = iter(two_replicas.distribute_datasets_from_function(batches))

        @tf.function
        def step(iterator: tf.data.Iterator) -> Batch:
            return two_replicas.run(lambda batch: batch, (next(iterator),))

        of_step = step(iterator)
        slices = [
            tf.nest.map_structure(
                lambda value, at=number: None if value is None else two_replicas.experimental_local_results(value)[at],
                of_step,
            )
            for number in range(2)
        ]
        _assert_equal(expected, _joined(*slices))
        assert (expected.labels.masks is None) == (options is plain)


@pytest.mark.parametrize("options", [PLAIN, MIXED], ids=["plain", "mixed"])
def test_images_without_objects_are_examples_too(tmp_path: Path, options: InputOptions) -> None:
    records = [example(np.full((30, 40, 3), number, np.uint8), [], []) for number in range(4)]
    (batch,) = _batches(RecordReader(write_shards(tmp_path, records)), 0, 1, options)
    assert not batch.labels.valid.numpy().any()
    assert (batch.labels.boxes.numpy() == 0).all()
    assert (batch.images.numpy()[:, 0, 0] < 4).all()


def test_mixed_images_hold_the_objects_of_several(tmp_path: Path) -> None:
    """Each record is of a class and a colour of its own; in a mosaic several meet."""
    records = [
        example(np.full((40, 40, 3), COLOURS[kind], np.uint8), [[5, 5, 35, 35]], [CATEGORY_IDS[kind]])
        for kind in range(3)
    ]
    steps = (Augmentation(1, functools.partial(mosaic, image_size=(60, 60)), partners=3),)
    options = PLAIN._replace(augmentations=steps, scale_min=1.0, scale_max=1.0, horizontal_flip=False)
    reader = RecordReader(write_shards(tmp_path, records))
    met = 0
    for batch in _batches(reader, 0, 4, options):
        for image, boxes, classes, valid in zip(batch.images.numpy(), *map(np.asarray, batch.labels[:3]), strict=True):
            assert valid.tolist() == [True] * 4 + [False]
            for box, kind in zip(boxes[:4], classes[:4], strict=True):
                y, x = ((box[:2] + box[2:]) / 2).astype(int)
                np.testing.assert_allclose(image[y, x], COLOURS[kind], atol=1)
            met += len(set(classes[:4])) > 1
    assert met > 8


def test_a_damaged_record_ends_the_batches_with_its_name(tmp_path: Path) -> None:
    records = rectangles(3)
    (path,) = write_shards(tmp_path, records, shards=1)
    data = bytearray(Path(path).read_bytes())
    data[data.index(records[1]) + 40] ^= 1
    Path(path).write_bytes(data)
    with pytest.raises(tf.errors.OpError) as caught:
        _batches(RecordReader([path]), 0, 2)
    error = find_user_error(caught.value)
    assert isinstance(error, DataError)
    assert "data-00000-of-00001: record 1: damaged, its checksum does not match" in str(error)


def test_batches_without_an_end_begin_as_others_do(tmp_path: Path) -> None:
    reader = _reader(tmp_path)
    endless = training_batches(reader, PLAIN, seed=3, start_step=4, stop_step=None, batch_size=4)
    assert endless.cardinality() == tf.data.INFINITE_CARDINALITY
    (expected,) = training_batches(reader, PLAIN, seed=3, start_step=4, stop_step=5, batch_size=4)
    _assert_equal(next(iter(endless)), expected)


def _add(sample: Sample, *partners: Sample, seed: tf.Tensor) -> Sample:
    """Marks the image with a draw of its own and with its partners."""
    draw = tf.random.stateless_uniform([], seed, maxval=256, dtype=tf.int32)
    for partner in partners:
        draw += tf.cast(partner.image[0, 0, 2], tf.int32)
    return sample._replace(image=sample.image + tf.cast(draw % 256, tf.uint8))


def _times_three(sample: Sample, *, seed: tf.Tensor) -> Sample:
    return sample._replace(image=sample.image * 3)


def _no_partner(seed: tf.Tensor) -> Sample:
    raise AssertionError("no step wants a partner")


def _run(*steps: Augmentation, seed: tf.Tensor = SEED) -> Sample:
    return augment(SAMPLE, steps, draw_partner=_no_partner, seed=seed)


def test_nothing_to_do_changes_nothing() -> None:
    assert_equal(_run(), SAMPLE)


def test_steps_follow_each_other_and_another_step_changes_no_draw() -> None:
    alone = _run(Augmentation(4, _add)).image.numpy() - SAMPLE.image.numpy()
    assert len(np.unique(alone)) == 1
    before = _run(Augmentation(2, _times_three, 1.0), Augmentation(4, _add)).image.numpy()
    np.testing.assert_array_equal(before, SAMPLE.image.numpy() * 3 + alone)
    after = _run(Augmentation(4, _add), Augmentation(2, _times_three)).image.numpy()
    np.testing.assert_array_equal(after, (SAMPLE.image.numpy() + alone) * 3)
    other = _run(Augmentation(3, _add)).image.numpy() - SAMPLE.image.numpy()
    assert (other != alone).all()


def test_a_step_acts_as_often_as_asked_in_a_graph_with_fields_that_are_not_there() -> None:
    sample = SAMPLE._replace(masks=None, crowds=None)

    @tf.function
    def run(seed: tf.Tensor) -> Sample:
        return augment(sample, [Augmentation(1, _times_three, 0.3)], draw_partner=_no_partner, seed=seed)

    acted = [bool((run(tf.constant([number, 1])).image != sample.image).numpy().any()) for number in range(200)]
    assert 35 < sum(acted) < 85  # 60, six standard deviations and a half either way
    assert run(SEED).masks is None


def test_a_step_acts_in_its_phase_of_the_run() -> None:
    step = Augmentation(1, _times_three, start=4, stop=6)

    @tf.function
    def run(position: tf.Tensor) -> Sample:
        return augment(SAMPLE, [step], draw_partner=_no_partner, seed=SEED, position=position)

    images = [run(tf.constant(position, tf.int64)).image for position in range(8)]
    acted = [bool((image != SAMPLE.image).numpy().any()) for image in images]
    assert acted == [False] * 4 + [True] * 2 + [False] * 2


def test_partners_are_drawn_by_seeds_of_their_own_and_only_where_the_step_acts() -> None:
    drawn: list[tuple[int, ...]] = []

    def draw_partner(seed: tf.Tensor) -> Sample:
        def note(value: np.ndarray) -> np.ndarray:
            drawn.append(tuple(value))
            return value

        number = tf.numpy_function(note, [seed], tf.int32)[1] % 7
        image = tf.fill([3, 3, 3], tf.cast(tf.abs(number), tf.uint8))
        return SAMPLE._replace(image=tf.ensure_shape(image, [3, 3, 3]))

    @tf.function
    def run(seed: tf.Tensor) -> Sample:
        return augment(SAMPLE, [Augmentation(1, _add, 0.5, partners=3)], draw_partner=draw_partner, seed=seed)

    acted = 0
    for number in range(20):
        count = len(drawn)
        changed = bool((run(tf.constant([0, number])).image != SAMPLE.image).numpy().any())
        assert len(drawn) - count in (0, 3)
        assert len(drawn) - count == 3 or not changed
        acted += len(drawn) - count == 3
    assert 3 < acted < 17
    assert len(set(drawn)) == len(drawn)
