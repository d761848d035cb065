"""In which order a run sees the records."""

import functools
import threading

import numpy as np


def epoch_permutation(seed: int, epoch: int, size: int) -> np.ndarray:
    """The order of the records in one epoch: int64 [size], a function of its arguments alone."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(size)


class RecordOrder:
    """Which record stands at each position of a run; positions count images, batch after batch.

    Each epoch is a permutation of its own.  Any thread may ask.

    Args:
        seed: of the run.
        size: number of records.
    """

    def __init__(self, seed: int, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        # Two epochs are open at once around an epoch's end.
        self._permutation = functools.lru_cache(maxsize=2)(lambda epoch: epoch_permutation(seed, epoch, size))

    def record(self, position: int) -> int:
        """The record's number, 0 <= number < size, at a position from 0 on."""
        epoch, place = divmod(position, self._size)
        with self._lock:  # otherwise many threads would permute the same epoch at its start
            return int(self._permutation(epoch)[place])
