"""Where the records of TFRecord shards stand.

One pass over a shard's frame headers (see `detection.data.foreign.shards`) gives every
record's offset.
"""

import os
import threading
from array import array
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from detection.data.foreign.shards import CHECKSUM, HEADER, masked_crc
from schemas.errors import DataError


class RecordIndex(NamedTuple):
    """The records of one shard, in its order.

    offsets: int64 [N], bytes from the file's start to the record.
    lengths: uint32 [N], bytes of the record, its checksum not counted.
    """

    offsets: np.ndarray
    lengths: np.ndarray


class ShardFile(Protocol):
    """A file that any thread may read anywhere."""

    path: str
    size: int

    def read(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes from `offset` on; fewer at the file's end."""


class LocalFile:
    """A file of this machine; threads read it at the same time.

    It is opened for each read: thousands of shards must not run into the limit of open
    files, and opening takes microseconds.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = os.path.getsize(path)

    def read(self, length: int, offset: int) -> bytes:
        """See `ShardFile`."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            return os.pread(descriptor, length, offset)
        finally:
            os.close(descriptor)


class RemoteFile:
    """A file that only `tf.io.gfile` opens; one thread reads it at a time."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = tf.io.gfile.GFile(path, "rb")
        self._lock = threading.Lock()
        self.size = self._file.size()

    def read(self, length: int, offset: int) -> bytes:
        """See `ShardFile`."""
        with self._lock:
            self._file.seek(offset)
            return bytes(self._file.read(length))


def open_shard(path: str) -> ShardFile:
    """Opens a file for reading.

    Raises:
        DataError: it cannot be opened.
    """
    try:
        return LocalFile(path) if os.path.isfile(path) else RemoteFile(path)
    except (OSError, tf.errors.OpError) as error:
        raise DataError(f"{path}: cannot read: {error}. Check the path and its permissions.") from None


def is_header(data: bytes) -> bool:
    """Whether these are a length and its checksum."""
    return len(data) == HEADER.size and HEADER.unpack(data)[1] == masked_crc(data[:8])


def index_records(file: ShardFile) -> RecordIndex:
    """Finds every record of an uncompressed shard; their content is not read.

    Raises:
        DataError: it is not a whole uncompressed TFRecord file.
    """
    offsets, lengths = array("q"), array("I")
    position = 0
    while position < file.size:
        header = file.read(HEADER.size, position)
        start = position + HEADER.size
        if len(header) == HEADER.size and not is_header(header):
            raise _not_whole(file, f"the length of record {len(offsets)}, at byte {position}, is no length")
        length = HEADER.unpack(header)[0] if len(header) == HEADER.size else file.size
        position = start + length + CHECKSUM.size
        if position > file.size:
            raise _not_whole(
                file, f"record {len(offsets)} would end at byte {position}, the file has {file.size} bytes"
            )
        offsets.append(start)
        lengths.append(length)
    return RecordIndex(np.frombuffer(offsets, np.int64), np.frombuffer(lengths, np.uint32))


def _not_whole(file: ShardFile, reason: str) -> DataError:
    return DataError(f"{file.path}: not a whole uncompressed TFRecord file: {reason}. Copy or write the file again.")
