"""What records hold, as one short text."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from detection.input_pipeline.record_index import ShardFile, index_records, is_header, open_shard
from detection.storage.tfrecord import CHECKSUM, HEADER, is_gzipped

_THREADS = 16
_PORTION = 1 << 24


def fingerprint_records(shards: Sequence[str]) -> str:
    """Digest of all records in their order, whatever the shards are called and wherever they lie.

    Of plain shards only lengths and checksums are read, as they stand in the files;
    gzipped ones are read whole.

    Args:
        shards: TFRecord files.

    Returns:
        64 hexadecimal digits.

    Raises:
        DataError: a shard cannot be read, or is no whole TFRecord file.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        parts = list(pool.map(lambda path: _of_shard(open_shard(path)), shards))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _of_shard(shard: ShardFile) -> bytes:
    start = shard.read(HEADER.size, 0)
    if is_gzipped(start) and not is_header(start):
        return _of_file(shard)
    index = index_records(shard)
    ends = index.offsets + index.lengths
    checksums = b"".join(shard.read(CHECKSUM.size, int(end)) for end in ends)
    return hashlib.sha256(np.asarray(index.lengths, "<u4").tobytes() + checksums).digest()


def _of_file(shard: ShardFile) -> bytes:
    digest = hashlib.sha256()
    for offset in range(0, shard.size, _PORTION):
        digest.update(shard.read(_PORTION, offset))
    return digest.digest()
