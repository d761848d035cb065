from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from detection.input_pipeline.record_classes import RecordClasses, inverse_frequency_weights, read_classes
from detection.input_pipeline.record_reader import RecordReader
from schemas.errors import DataError
from tests.detection.synthetic import example, write_shards

IMAGE = np.zeros((8, 8, 3), np.uint8)
BOX = [1, 1, 5, 5]


def _read(folder: Path, records: list[bytes], category_ids: list[int]) -> list[tuple[int, int]]:
    classes = read_classes(RecordReader(write_shards(folder, records, shards=1)), category_ids)
    return list(zip(classes.records.tolist(), classes.classes.tolist(), strict=True))


def test_classes_are_places_in_the_category_ids_record_by_record(tmp_path: Path) -> None:
    records = [example(IMAGE, [BOX] * len(ids), ids) for ids in ([7, 3, 7], [], [40])]
    assert _read(tmp_path, records, [3, 7, 40]) == [(0, 1), (0, 0), (0, 1), (2, 2)]
    assert _read(tmp_path, records, [40, 7, 3]) == [(0, 1), (0, 2), (0, 1), (2, 0)]


def test_crowds_are_no_objects_and_a_short_list_of_them_is_fine(tmp_path: Path) -> None:
    records = [example(IMAGE, [BOX] * 3, [3, 7, 3], crowd=crowd) for crowd in ([0, 1, 0], [1], [])]
    assert _read(tmp_path, records, [3, 7]) == [(0, 0), (0, 0), (1, 1), (1, 0), (2, 0), (2, 1), (2, 0)]


def test_many_records_are_read_in_their_order(tmp_path: Path) -> None:
    records = [example(IMAGE, [BOX], [1 + number % 5]) for number in range(600)]
    assert _read(tmp_path, records, [1, 2, 3, 4, 5]) == [(number, number % 5) for number in range(600)]


def test_an_unknown_category_is_refused_by_image(tmp_path: Path) -> None:
    record = tf.train.Example.FromString(example(IMAGE, [BOX, BOX], [3, 9]))
    record.features.feature["image/source_id"].bytes_list.value.append(b"123")
    with pytest.raises(DataError, match=r"the record of image '123': object 1 has the unknown category 9"):
        _read(tmp_path, [example(IMAGE, [BOX], [7]), record.SerializeToString()], [3, 7])


def test_what_is_no_example_is_refused_by_shard_and_number(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data-00000-of-00001: record 1: not a tf\.train\.Example"):
        _read(tmp_path, [example(IMAGE, [], []), b"\xff\xff\xff"], [3])


def test_records_of_another_tool(shared_data: Path) -> None:
    """Google's own TFRecords of the raccoons: one class, its label 1."""
    reader = RecordReader([str(shared_data / "tfrecords/raccoon/test.record")])
    classes = read_classes(reader, [1])
    assert set(classes.records.tolist()) == set(range(len(reader)))
    assert set(classes.classes.tolist()) == {0}


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_inverse_frequency_weights_balance_the_classes_and_keep_the_mean(kinds: list[int]) -> None:
    classes = RecordClasses(np.arange(len(kinds)), np.array(kinds, np.int64))
    present = sorted(set(kinds))
    for exponent in (1.0, 0.5):
        weights = inverse_frequency_weights(classes, num_classes=5, exponent=exponent)
        assert weights.dtype == np.float32
        np.testing.assert_allclose(weights[kinds].mean(), 1.0, rtol=1e-5)
        totals = [weights[kind] * kinds.count(kind) ** exponent for kind in present]
        np.testing.assert_allclose(totals, totals[0], rtol=1e-5)
        assert all(weights[kind] == 1.0 for kind in range(5) if kind not in kinds)


def test_without_objects_all_weigh_one() -> None:
    none = np.zeros(0, np.int64)
    weights = inverse_frequency_weights(RecordClasses(none, none), num_classes=3, exponent=1.0)
    np.testing.assert_array_equal(weights, [1.0, 1.0, 1.0])
