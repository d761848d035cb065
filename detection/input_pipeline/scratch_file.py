"""Records of gzipped shards, decompressed for random access."""

import os
import tempfile
import threading
from array import array

import numpy as np

from detection.input_pipeline.record_index import RecordIndex
from detection.storage.tfrecord import CHECKSUM, masked_crc, read_shard
from schemas.errors import DataError


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
