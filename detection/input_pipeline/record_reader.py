"""Random access to the records of TFRecord shards.

Any record can be read by itself, so a resumed run can continue in mid-epoch.  Uncompressed shards
are indexed in one pass over their frame headers.  Gzipped ones have no offsets: at each start they
are decompressed once into a temporary file.
"""

import copy
import logging
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import numpy as np
import numpy.typing as npt

from detection.input_pipeline.record_index import (
    RecordIndex,
    ScratchFile,
    ShardFile,
    index_records,
    is_header,
    open_shard,
)
from detection.storage.tfrecord import CHECKSUM, HEADER, is_gzipped, masked_crc
from schemas.errors import DataError

_LOGGER = logging.getLogger("cocoflow.trainer")
_THREADS = 16  # they mostly wait for storage, or decompress


class RecordReader:
    """All records of some shards, numbered in the order of the shards; needs 12 bytes of memory per record.

    Args:
        shards: TFRecord files, gzipped or not; remote files are copied to this machine.

    Raises:
        DataError: no shards, no records, or a shard that is not a complete TFRecord file.
    """

    def __init__(self, shards: Sequence[str]) -> None:
        self._paths = list(shards)
        with ThreadPoolExecutor(_THREADS) as pool:
            plain = list(pool.map(open_shard, shards))
            gzipped = list(pool.map(_is_gzipped, plain))
            scratch = ScratchFile() if any(gzipped) else None
            self._files = [scratch if scratch and zipped else file for file, zipped in zip(plain, gzipped, strict=True)]
            started = time.monotonic()
            indexes = list(pool.map(_index, self._files, shards))
        if scratch is not None:
            _log_cost(sum(gzipped), len(shards), size=scratch.size, seconds=time.monotonic() - started)
        self._ends = np.cumsum([len(index.offsets) for index in indexes], dtype=np.int64)
        if not indexes or not self._ends[-1]:
            raise DataError(
                f"no training records in {', '.join(shards) or 'an empty list of shards'}. "
                "Check that the data set's train split has images."
            )
        self._offsets = np.concatenate([index.offsets for index in indexes])
        self._lengths = np.concatenate([index.lengths for index in indexes])
        self._numbers: Sequence[int] | npt.NDArray[np.int64] = range(int(self._ends[-1]))

    def __len__(self) -> int:
        return len(self._numbers)

    def select(self, indices: Sequence[int]) -> Self:
        """Returns a reader of some of the records, with the same open files."""
        selected = copy.copy(self)
        selected._numbers = np.asarray(self._numbers)[indices]
        return selected

    def read(self, index: int) -> bytes:
        """Reads the record at `0 <= index < len(self)`; thread-safe.

        Raises:
            DataError: the record is damaged, or can no longer be read.
        """
        number = self._numbers[index]
        shard = int(np.searchsorted(self._ends, number, side="right"))
        length = int(self._lengths[number])
        try:
            data = self._files[shard].read(length + CHECKSUM.size, int(self._offsets[number]))
        except OSError as error:
            raise DataError(f"{self.name(index)}: can no longer be read: {error}. Do not change the shards.") from None
        record, checksum = data[:length], data[length:]
        if len(checksum) < CHECKSUM.size or CHECKSUM.unpack(checksum)[0] != masked_crc(record):
            raise DataError(
                f"{self.name(index)}: damaged, its checksum does not match. Copy or write the file again, "
                "and do not change the shards while training reads them."
            )
        return record

    def name(self, index: int) -> str:
        """Returns the name of a record for messages: its shard, and its index in it from 0."""
        number = self._numbers[index]
        shard = int(np.searchsorted(self._ends, number, side="right"))
        first = int(self._ends[shard - 1]) if shard else 0
        return f"{self._paths[shard]}: record {number - first}"


def _is_gzipped(file: ShardFile) -> bool:
    start = file.read(HEADER.size, 0)
    # An uncompressed record of a certain length starts with the same bytes.
    return is_gzipped(start) and not is_header(start)


def _index(file: ShardFile | ScratchFile, path: str) -> RecordIndex:
    return file.store(path) if isinstance(file, ScratchFile) else index_records(file)


def _log_cost(gzipped: int, shards: int, *, size: int, seconds: float) -> None:
    _LOGGER.info(
        "%d of %d shards are gzipped: %.2f GB decompressed to %s in %.1f s, at every start; "
        "uncompressed shards save this time and disk space",
        gzipped,
        shards,
        size / 1e9,
        tempfile.gettempdir(),
        seconds,
    )
