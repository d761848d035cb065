"""When two sets of records are the same."""

import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from detection.input_pipeline.record_index import fingerprint_records
from schemas.errors import DataError

RECORDS = [b"one", b"two" * 1000, b"", b"three"]


def _write(path: Path, records: list[bytes], compression: str = "") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return str(path)


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    return [_write(tmp_path / "a", RECORDS[:2]), _write(tmp_path / "b", RECORDS[2:])]


def test_names_places_and_times_do_not_matter(shards: list[str], tmp_path: Path) -> None:
    others = [shutil.copy(path, _write(tmp_path / "else" / Path(path).name.upper(), [])) for path in shards]
    assert fingerprint_records(others) == fingerprint_records(shards)


@pytest.mark.parametrize(
    "records",
    [
        [b"one", b"twO" + b"two" * 999, b"", b"three"],
        [b"two" * 1000, b"one", b"", b"three"],
        [b"one", b"two" * 1000, b"three", b""],
        [b"one", b"two" * 1000, b"", b"three", b""],
    ],
)
def test_records_and_their_order_do(records: list[bytes], shards: list[str], tmp_path: Path) -> None:
    others = [_write(tmp_path / "c", records[:2]), _write(tmp_path / "d", records[2:])]
    assert fingerprint_records(others) != fingerprint_records(shards)
    assert fingerprint_records(shards[::-1]) != fingerprint_records(shards)


def test_gzipped_shards_count_by_their_bytes(tmp_path: Path) -> None:
    one = _write(tmp_path / "a.gz", RECORDS, "GZIP")
    other = _write(tmp_path / "b.gz", [*RECORDS, b"more"], "GZIP")
    again = shutil.copy(one, tmp_path / "c.gz")
    assert fingerprint_records([one]) == fingerprint_records([str(again)]) != fingerprint_records([other])


def test_a_truncated_shard_is_refused(shards: list[str]) -> None:
    path = Path(shards[0])
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match="not a complete"):
        fingerprint_records(shards)
