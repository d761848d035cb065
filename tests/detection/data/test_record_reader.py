from pathlib import Path

import pytest
import tensorflow as tf

from detection.data.record_reader import RecordReader
from schemas.errors import DataError
from tests.detection.synthetic import write_shards

RECORDS = [bytes([number]) * (number * 7 % 40 + 1) for number in range(25)]


def test_reads_any_record_in_any_order_as_tf_data_does(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, RECORDS, shards=3)
    expected = [record.numpy() for record in tf.data.TFRecordDataset(shards)]
    reader = RecordReader(shards)
    assert len(reader) == 25
    assert [reader.read(index) for index in reversed(range(25))] == expected[::-1]


def test_an_empty_shard_among_others_is_fine(tmp_path: Path) -> None:
    assert len(RecordReader(write_shards(tmp_path, RECORDS[:2], shards=4))) == 2


@pytest.mark.parametrize("cut", [1, 5, 11, 13])
def test_a_cut_file_is_refused_by_name(tmp_path: Path, cut: int) -> None:
    (path,) = write_shards(tmp_path, RECORDS, shards=1)
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[:-cut])
    with pytest.raises(DataError, match=r"data-00000-of-00001.*record 24"):
        RecordReader([path])


def test_a_text_file_is_no_tfrecord(tmp_path: Path) -> None:
    path = tmp_path / "pointer.tfrecord"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\n")
    with pytest.raises(DataError, match=r"pointer\.tfrecord: not a whole uncompressed TFRecord"):
        RecordReader([str(path)])


def test_no_records_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no training record"):
        RecordReader(write_shards(tmp_path, [], shards=1))
