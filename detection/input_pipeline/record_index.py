"""Index of the records of TFRecord shards: offsets, a scratch file for gzipped shards, and a fingerprint.

One pass over a shard's frame headers (`detection.storage.tfrecord` describes the format) finds
the offset of every record.
"""

import contextlib
import functools
import hashlib
import os
import tempfile
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from detection.storage.files import local_copy
from detection.storage.tfrecord import CHECKSUM, HEADER, is_gzipped, masked_crc, read_shard
from schemas.errors import DataError

_CHUNK = 4096  # bytes: one page, with the headers of many small records; reading a page costs the same as less
_THREADS = 16
_PORTION = 1 << 24


class RecordIndex(NamedTuple):
    """The records of one shard, in order.

    offsets: int64 [N], bytes from the start of the file to the record.
    lengths: uint32 [N], bytes of the record, without its checksum.
    """

    offsets: np.ndarray
    lengths: np.ndarray


Read = Callable[[int, int], bytes]  # (length, offset) -> up to `length` bytes, fewer at the end of the file


class ShardFile:
    """A local file, or the local copy of a remote one, for random reads from any thread.

    The file is opened for each read: thousands of shards must not exceed the limit of open files, and
    opening takes microseconds.

    Args:
        path: path of the file, also for messages.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._local = local_copy(path)
        self.size = os.path.getsize(self._local)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Read]:
        """Opens the file for several reads by one thread."""
        descriptor = os.open(self._local, os.O_RDONLY)
        try:
            yield functools.partial(os.pread, descriptor)
        finally:
            os.close(descriptor)

    def read(self, length: int, offset: int) -> bytes:
        """Reads up to `length` bytes from `offset` on."""
        with self.opened() as read:
            return read(length, offset)


def open_shard(path: str) -> ShardFile:
    """Opens a file for reading.

    Raises:
        DataError: the file cannot be opened.
    """
    try:
        return ShardFile(path)
    except OSError as error:
        raise DataError(f"{path}: cannot read: {error}. Check the path and its permissions.") from None


def is_header(data: bytes) -> bool:
    """Returns whether the data are a length and its checksum."""
    return len(data) == HEADER.size and HEADER.unpack(data)[1] == masked_crc(data[:8])


def index_records(file: ShardFile) -> RecordIndex:
    """Finds every record of an uncompressed shard, without reading the content.

    Raises:
        DataError: the file is not a complete uncompressed TFRecord file.
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
        raise _incomplete(file, f"the length of record {number}, at byte {position}, is invalid")
    length: int = HEADER.unpack(header)[0] if len(header) == HEADER.size else file.size
    end = position + HEADER.size + length + CHECKSUM.size
    if end > file.size:
        raise _incomplete(file, f"record {number} would end at byte {end}, but the file has {file.size} bytes")
    return length


def _incomplete(file: ShardFile, reason: str) -> DataError:
    return DataError(f"{file.path}: not a complete uncompressed TFRecord file: {reason}. Copy or write it again.")


class ScratchFile:
    """A temporary file without a name, which disappears with the process, even after a kill.

    Any thread may write and read it.  Each record has its checksum after it, as in a shard.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as this object)
        self._lock = threading.Lock()
        self.size = 0

    def store(self, path: str) -> RecordIndex:
        """Decompresses a gzipped shard into the file; returns the positions of its records.

        Raises:
            DataError: the shard is damaged, or the disk is full.
        """
        offsets, lengths = array("q"), array("I")
        for record in read_shard(path):
            data = record + CHECKSUM.pack(masked_crc(record))
            offset = self._reserve(len(data))
            try:
                os.pwrite(self._file.fileno(), data, offset)
            except OSError as error:
                raise DataError(
                    f"{path}: gzipped, and cannot be decompressed to {tempfile.gettempdir()}: {error.strerror}. "
                    "Set TMPDIR to a folder with enough space for all shards, or store them uncompressed."
                ) from None
            offsets.append(offset)
            lengths.append(len(record))
        return RecordIndex(np.frombuffer(offsets, np.int64), np.frombuffer(lengths, np.uint32))

    def read(self, length: int, offset: int) -> bytes:
        """Reads up to `length` bytes from `offset` on."""
        return os.pread(self._file.fileno(), length, offset)

    def _reserve(self, length: int) -> int:
        with self._lock:
            offset, self.size = self.size, self.size + length
            return offset


def fingerprint_records(shards: Sequence[str]) -> str:
    """Computes a digest of all records in order, independent of the names and location of the shards.

    Reads only the lengths and checksums in uncompressed shards, but all bytes of gzipped ones.

    Args:
        shards: TFRecord files.

    Returns:
        64 hexadecimal digits.

    Raises:
        DataError: a shard cannot be read, or is not a complete TFRecord file.
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
