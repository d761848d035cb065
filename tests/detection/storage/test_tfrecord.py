"""TFRecord files: whole, empty, gzipped, truncated, damaged, and what is none."""

import gzip
import os
import struct
from pathlib import Path

import pytest
import tensorflow as tf

from detection.storage import tfrecord as shards
from detection.storage.tfrecord import find_shards, read_shard
from schemas.errors import DataError
from tests.detection.datasets.importers.builders import write_shard

RECORDS = [b"first", b"", b"the third \x1f\x8b\x00" * 20]


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_records_as_tensorflow_wrote_them(tmp_path: Path, compression: str) -> None:
    path = write_shard(tmp_path / "named.anything", RECORDS, compression=compression)
    assert list(read_shard(path)) == RECORDS


def test_a_folder_s_own_name_is_no_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a[1]*?" / "b[c]"
    for place in (folder, tmp_path / "a1xy" / "b[c]"):
        place.mkdir(parents=True)
        for name in ("x-0.record", "x-1.record", "y.record"):
            write_shard(place / name, RECORDS)
    expected = [str(folder / "x-0.record"), str(folder / "x-1.record")]
    assert find_shards(folder / "x-*.record") == find_shards(folder / "x-[01].record") == expected
    assert len(find_shards(folder)) == 3
    assert find_shards(tmp_path / "a[1]x?" / "b*" / "y.record") == [str(tmp_path / "a1xy" / "b[c]" / "y.record")]
    monkeypatch.chdir(folder)
    assert find_shards("x*") == ["x-0.record", "x-1.record"]


@pytest.mark.parametrize("content", [b"", gzip.compress(b"")], ids=["plain", "gzipped"])
def test_an_empty_shard_has_no_records(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.record"
    path.write_bytes(content)
    assert list(read_shard(path)) == []


def test_a_lost_end_is_told_with_the_whole_records_before_it(shared_data: Path) -> None:
    path = shared_data / "tfrecords/broken/truncated_raccoon_test.record"
    whole = sum(1 for _ in tf.data.TFRecordDataset(str(path)).ignore_errors())
    assert whole > 0
    with pytest.raises(DataError, match=rf"{path}: truncated after {whole} complete records.*Copy or write"):
        list(read_shard(path))


def test_a_git_lfs_pointer_is_told(shared_data: Path) -> None:
    path = shared_data / "tfrecords/broken/git_lfs_pointer.tfrecord"
    with pytest.raises(DataError, match=rf"{path}: no TFRecord file but a Git LFS pointer.*0 records.*git lfs pull"):
        list(read_shard(path))


@pytest.mark.parametrize("content", [b"\xff\xd8\xff", b"item {\n  id: 1\n  name: 'cat'\n}\n", bytes(100)])
def test_another_file_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{path}: no TFRecord file: .*0 records"):
        list(read_shard(path))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: cannot read: .*Check the path"):
        list(read_shard(tmp_path / "nowhere"))


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_no_cut_goes_unnoticed(tmp_path: Path, compression: str) -> None:
    content = Path(write_shard(tmp_path / "whole", RECORDS, compression=compression)).read_bytes()
    ends = {0: 0, 21: 1, 37: 2, len(content): 3} if not compression else {0: 0, len(content): 3}
    path = tmp_path / "cut"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        if length in ends:
            assert len(list(read_shard(path))) == ends[length]
            continue
        read: list[bytes] = []
        with pytest.raises(DataError, match=r"truncated after|no TFRecord file") as refused:
            read.extend(read_shard(path))
        assert f"after {len(read)} complete" in str(refused.value) or not read


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_no_flipped_bit_goes_unnoticed(tmp_path: Path, compression: str) -> None:
    content = Path(write_shard(tmp_path / "whole", RECORDS, compression=compression)).read_bytes()
    path = tmp_path / "flipped"
    # A gzip header's time and system (bytes 4 to 9) mean nothing.
    for place in set(range(0, len(content), 3)) - (set(range(3, 10)) if compression else set()):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        with pytest.raises(DataError):
            list(read_shard(path))


def test_damage_is_told_with_its_place(tmp_path: Path) -> None:
    path = Path(write_shard(tmp_path / "flipped", RECORDS))
    content = bytearray(path.read_bytes())
    content[60] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"flipped: damaged after 2 complete records.*its checksum does not match"):
        list(read_shard(path))
    content[60] ^= 1
    content[22] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"damaged after 1 complete records.*checksum of its length"):
        list(read_shard(path))


def claim(length: int) -> bytes:
    """A frame's header with a valid checksum."""
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", shards.masked_crc(packed))


def test_a_length_beyond_the_file_is_never_trusted(tmp_path: Path) -> None:
    path = tmp_path / "claims"
    path.write_bytes(claim(2**62) + b"abc")
    with pytest.raises(DataError, match="truncated after 0 complete records"):
        list(read_shard(path))
    path.write_bytes(gzip.compress(claim(2**62) + b"abc"))
    with pytest.raises(DataError, match=rf"it claims {2**62} bytes, more than {2**28}"):
        list(read_shard(path))


def test_shards_of_a_folder_a_pattern_and_a_file(tmp_path: Path) -> None:
    shared = ["b.record-00001-of-00002", "b.record-00000-of-00002", "a.tfrecord", "data.gz"]
    beside = ["dataset.json", "quarantine.jsonl", "report.html", ".hidden", "_SUCCESS", "label_map.pbtxt", "LICENSE"]
    for name in [*shared, *beside]:
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    assert find_shards(tmp_path) == [str(tmp_path / name) for name in sorted(shared)]
    assert find_shards(tmp_path / "b.*") == [str(tmp_path / name) for name in sorted(shared[:2])]
    assert find_shards(f"{tmp_path}/*") == [str(tmp_path / name) for name in sorted(shared)]
    assert find_shards(tmp_path / "label_map.pbtxt") == [str(tmp_path / "label_map.pbtxt")]


def test_no_shard_is_told(tmp_path: Path) -> None:
    (tmp_path / "dataset.json").touch()
    for where in (tmp_path, tmp_path / "*.record"):
        with pytest.raises(DataError, match=r"no TFRecord file there.*Name a folder"):
            find_shards(where)


@pytest.mark.parametrize("whole", [True, False])
def test_a_name_that_is_not_utf8_is_told(tmp_path: Path, whole: bool) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.record")
    path.write_bytes(b"")
    with pytest.raises(DataError, match="a name there is not UTF-8, which TensorFlow needs"):
        find_shards(path if whole else tmp_path)
