"""Where the records of TFRecord shards stand.

One pass over a shard's frame headers (see `detection.storage.tfrecord`) gives every
record's offset.
"""

import contextlib
import functools
import os
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from detection.storage.tfrecord import CHECKSUM, HEADER, masked_crc
from schemas.errors import DataError

_CHUNK = 4096  # bytes: a page; holds the headers of many small records, and costs no more than one of a large one


class RecordIndex(NamedTuple):
    """The records of one shard, in its order.

    offsets: int64 [N], bytes from the file's start to the record.
    lengths: uint32 [N], bytes of the record, its checksum not counted.
    """

    offsets: np.ndarray
    lengths: np.ndarray


Read = Callable[[int, int], bytes]  # (length, offset) to up to `length` bytes: fewer at the file's end


class ShardFile(Protocol):
    """A file that any thread may read anywhere."""

    path: str
    size: int

    def opened(self) -> AbstractContextManager[Read]:
        """Opens the file for several reads by one thread."""

    def read(self, length: int, offset: int) -> bytes:
        """See `Read`."""


class LocalFile:
    """A file of this machine; threads read it at the same time.

    It is opened for each read: thousands of shards must not run into the limit of open
    files, and opening takes microseconds.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = os.path.getsize(path)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Read]:
        """See `ShardFile`."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            yield functools.partial(os.pread, descriptor)
        finally:
            os.close(descriptor)

    def read(self, length: int, offset: int) -> bytes:
        """See `ShardFile`."""
        with self.opened() as read:
            return read(length, offset)


class RemoteFile:
    """A file that only `tf.io.gfile` opens; one thread reads it at a time."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = tf.io.gfile.GFile(path, "rb")
        self._lock = threading.Lock()
        self.size = self._file.size()

    @contextlib.contextmanager
    def opened(self) -> Iterator[Read]:
        """See `ShardFile`."""
        yield self.read

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
    position = chunk_start = 0
    chunk = b""
    with file.opened() as read:
        while position < file.size:
            if position + HEADER.size > chunk_start + len(chunk):
                chunk_start, chunk = position, read(_CHUNK, position)
            header = chunk[position - chunk_start : position - chunk_start + HEADER.size]
            length = _length(header, file, position, len(offsets))
            offsets.append(position + HEADER.size)
            lengths.append(length)
            position += HEADER.size + length + CHECKSUM.size
    return RecordIndex(np.frombuffer(offsets, np.int64), np.frombuffer(lengths, np.uint32))


def _length(header: bytes, file: ShardFile, position: int, number: int) -> int:
    if len(header) == HEADER.size and not is_header(header):
        raise _not_whole(file, f"the length of record {number}, at byte {position}, is no length")
    length: int = HEADER.unpack(header)[0] if len(header) == HEADER.size else file.size
    end = position + HEADER.size + length + CHECKSUM.size
    if end > file.size:
        raise _not_whole(file, f"record {number} would end at byte {end}, the file has {file.size} bytes")
    return length


def _not_whole(file: ShardFile, reason: str) -> DataError:
    return DataError(f"{file.path}: not a whole uncompressed TFRecord file: {reason}. Copy or write the file again.")
