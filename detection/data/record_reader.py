"""Random access to the records of uncompressed TFRecord shards.

A shard is a sequence of frames: length (uint64, little endian), masked CRC-32C
of the length (uint32), the record, masked CRC-32C of the record (uint32).  One
pass over the frame headers gives every record's offset; after that any record
can be read alone, which is what lets a resumed run continue in mid-epoch.
"""

import struct
import threading
from collections.abc import Sequence

import tensorflow as tf

from schemas.errors import DataError

_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4


class RecordReader:
    """All records of some shards, numbered in the order of the shards.

    Args:
        shards: paths of uncompressed TFRecord files.

    Raises:
        DataError: no shard, no record, or a shard that is not a whole TFRecord file.
    """

    def __init__(self, shards: Sequence[str]) -> None:
        self._files = [tf.io.gfile.GFile(path, "rb") for path in shards]
        self._locks = [threading.Lock() for _ in shards]
        self._where: list[tuple[int, int, int]] = []
        for number, path in enumerate(shards):
            self._where += [(number, offset, length) for offset, length in _scan(self._files[number], path)]
        if not self._where:
            raise DataError(
                f"no training record in {', '.join(shards) or 'an empty list of shards'}. "
                "Check that the data set's train split holds images."
            )

    def __len__(self) -> int:
        return len(self._where)

    def read(self, index: int) -> bytes:
        """The record at `0 <= index < len(self)`; may be called from many threads."""
        number, offset, length = self._where[index]
        with self._locks[number]:
            self._files[number].seek(offset)
            return bytes(self._files[number].read(length))


def _scan(file: tf.io.gfile.GFile, path: str) -> list[tuple[int, int]]:
    """Offset and length of every record in one shard."""
    size = file.size()
    records: list[tuple[int, int]] = []
    position = 0
    while position < size:
        header = file.read(_HEADER.size)
        start = position + _HEADER.size
        length = _HEADER.unpack(header)[0] if len(header) == _HEADER.size else size
        position = start + length + _FOOTER_BYTES
        if position > size:
            raise DataError(
                f"{path}: not a whole uncompressed TFRecord file: record {len(records)} would end at byte {position}, "
                f"the file has {size}. Write the file again."
            )
        records.append((start, length))
        file.seek(position)
    return records
