import gzip
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detection.input_pipeline.record_index import fingerprint_records
from detection.input_pipeline.record_reader import RecordReader
from detection.storage.files import copy_file
from schemas.errors import DataError
from tests.detection.synthetic import write_shards
from tests.storage_emulator.fixture import Bucket

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
    with pytest.raises(DataError, match=r"pointer\.tfrecord: not a complete uncompressed TFRecord"):
        RecordReader([str(path)])


def test_no_records_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no training records"):
        RecordReader(write_shards(tmp_path, [], shards=1))


def test_gzipped_shards_among_others_read_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shards = write_shards(tmp_path, RECORDS, shards=4)
    for path in shards[1:3]:
        Path(path).write_bytes(gzip.compress(Path(path).read_bytes()))
    expected = [RECORDS[number::4] for number in range(4)]
    with caplog.at_level("INFO", "cocoflow.trainer"):
        reader = RecordReader(shards)
    assert [reader.read(index) for index in range(25)] == [record for part in expected for record in part]
    assert "2 of 4 shards are gzipped" in caplog.text
    assert sorted(map(str, tmp_path.iterdir())) == sorted(shards)


def test_a_record_that_starts_as_gzip_does_is_read_as_it_is(tmp_path: Path) -> None:
    record = bytes(0x088B1F)  # its length is written as 1f 8b 08
    (path,) = write_shards(tmp_path, [record], shards=1)
    assert Path(path).read_bytes().startswith(b"\x1f\x8b\x08")
    assert RecordReader([path]).read(0) == record


def test_a_damaged_gzipped_shard_is_refused_by_name(tmp_path: Path) -> None:
    (path,) = write_shards(tmp_path, RECORDS, shards=1)
    Path(path).write_bytes(gzip.compress(Path(path).read_bytes())[:-20])
    with pytest.raises(DataError, match=r"data-00000-of-00001: (truncated|damaged) after \d+ complete records"):
        RecordReader([path])


def test_no_room_to_decompress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = write_shards(tmp_path, RECORDS, shards=1)
    Path(path).write_bytes(gzip.compress(Path(path).read_bytes()))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(DataError, match=r"data-00000-of-00001: gzipped.*No space left on device.*TMPDIR"):
        RecordReader([path])


def test_a_damaged_record_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, RECORDS, shards=2)
    data = bytearray(Path(paths[1]).read_bytes())
    place = data.index(RECORDS[7])  # the fourth record of the second shard
    data[place] ^= 1
    Path(paths[1]).write_bytes(data)
    reader = RecordReader(paths)
    with pytest.raises(DataError, match=r"data-00001-of-00002: record 3: damaged, its checksum does not match"):
        reader.read(13 + 3)
    assert reader.read(13 + 2) == RECORDS[5]


def test_a_damaged_length_is_named(tmp_path: Path) -> None:
    (path,) = write_shards(tmp_path, RECORDS, shards=1)
    data = bytearray(Path(path).read_bytes())
    data[16 + len(RECORDS[0])] ^= 1
    Path(path).write_bytes(data)
    with pytest.raises(DataError, match=r"data-00000-of-00001: not a complete .*the length of record 1, at byte 17"):
        RecordReader([path])


def test_a_shard_that_vanishes_or_never_was_is_named(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, RECORDS, shards=2)
    reader = RecordReader(paths)
    Path(paths[0]).unlink()
    with pytest.raises(DataError, match=r"data-00000-of-00002: record 1: can no longer be read"):
        reader.read(1)
    with pytest.raises(DataError, match=r"data-00000-of-00002: cannot read"):
        RecordReader(paths)


def test_a_shard_that_shrinks_is_named(tmp_path: Path) -> None:
    (path,) = write_shards(tmp_path, RECORDS, shards=1)
    reader = RecordReader([path])
    os.truncate(path, 30)
    with pytest.raises(DataError, match=r"record 24: damaged"):
        reader.read(24)


def test_remote_shards_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gcs: Bucket) -> None:
    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path / "cache"))
    shards = write_shards(tmp_path, RECORDS, shards=3)
    Path(shards[1]).write_bytes(gzip.compress(Path(shards[1]).read_bytes()))
    remote = [f"{gcs.path}/a [1]/{Path(path).name}" for path in shards]
    for path, copy in zip(shards, remote, strict=True):
        copy_file(path, copy)
    reader = RecordReader(remote)
    expected = RecordReader(shards)
    assert [reader.read(index) for index in range(25)] == [expected.read(index) for index in range(25)]
    assert reader.name(0) == f"{remote[0]}: record 0"
    assert fingerprint_records(remote) == fingerprint_records(shards)
    with pytest.raises(DataError, match=f"{gcs.path}/absent: "):
        RecordReader([f"{gcs.path}/absent"])


def test_many_threads_read_at_once(tmp_path: Path) -> None:
    reader = RecordReader(write_shards(tmp_path, RECORDS, shards=1))
    order = np.random.default_rng(0).integers(0, 25, 2000)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(reader.read, order)) == [RECORDS[index] for index in order]


def test_more_shards_than_a_process_may_open(tmp_path: Path) -> None:
    records = [number.to_bytes(2, "little") for number in range(300)]
    shards = write_shards(tmp_path, records, shards=300)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        reader = RecordReader(shards)
        assert [reader.read(index) for index in range(300)] == records
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
