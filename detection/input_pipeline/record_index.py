"""Index of the records of TFRecord shards: offsets, a scratch file for gzipped shards, and a fingerprint.

One pass over a shard's frame headers (see `detection.storage.tfrecord`) gives every
record's offset.
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

from detection.storage.staging import local_copy
from detection.storage.tfrecord import CHECKSUM, HEADER, is_gzipped, masked_crc, read_shard
from schemas.errors import DataError

_CHUNK = 4096  # bytes: a page; holds the headers of many small records, and costs no more than one of a large one
_THREADS = 16
_PORTION = 1 << 24


class RecordIndex(NamedTuple):
    """The records of one shard, in its order.

    offsets: int64 [N], bytes from the file's start to the record.
    lengths: uint32 [N], bytes of the record, its checksum not counted.
    """

    offsets: np.ndarray
    lengths: np.ndarray


Read = Callable[[int, int], bytes]  # (length, offset) to up to `length` bytes: fewer at the file's end


class ShardFile:
    """A file that any thread may read anywhere; of a remote one, a local copy.

    It is opened for each read: thousands of shards must not run into the limit of open
    files, and opening takes microseconds.

    Args:
        path: names the file in messages.
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
        """See `Read`."""
        with self.opened() as read:
            return read(length, offset)


def open_shard(path: str) -> ShardFile:
    """Opens a file for reading.

    Raises:
        DataError: it cannot be opened.
    """
    try:
        return ShardFile(path)
    except OSError as error:
        raise DataError(f"{path}: cannot read: {error}. Check the path and its permissions.") from None


def is_header(data: bytes) -> bool:
    """Returns whether these are a length and its checksum."""
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


class ScratchFile:
    """A temporary file without a name, so that it vanishes with the process however that ends.

    Any thread may write and read it.  Each record is followed by its checksum, as in a shard.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as this object)
        self._lock = threading.Lock()
        self.size = 0

    def store(self, path: str) -> RecordIndex:
        """Decompresses a gzipped shard into the file; returns where its records stand.

        Raises:
            DataError: the shard is damaged, or there is no room for it.
        """
        offsets, lengths = array("q"), array("I")
        for record in read_shard(path):
            data = record + CHECKSUM.pack(masked_crc(record))
            offset = self._reserve(len(data))
            try:
                os.pwrite(self._file.fileno(), data, offset)
            except OSError as error:
                raise DataError(
                    f"{path}: gzipped, and cannot be decompressed into {tempfile.gettempdir()}: {error.strerror}. "
                    "Point TMPDIR at a folder with room for all shards, or store them uncompressed."
                ) from None
            offsets.append(offset)
            lengths.append(len(record))
        return RecordIndex(np.frombuffer(offsets, np.int64), np.frombuffer(lengths, np.uint32))

    def read(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes from `offset` on."""
        return os.pread(self._file.fileno(), length, offset)

    def _reserve(self, length: int) -> int:
        with self._lock:
            offset, self.size = self.size, self.size + length
            return offset


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
