"""Order of the records in a run: a permutation per epoch, or a sample with repeats of images of rare classes."""

import functools
import math
import threading

import numpy as np
import numpy.typing as npt

from detection.input_pipeline.record_classes import RecordClasses

_OFFSETS = 2**20
_ROUNDING = 1e-6  # tolerance of a sum of factors


def epoch_permutation(seed: int, epoch: int, size: int) -> npt.NDArray[np.int64]:
    """Returns the order of the records in an epoch, int64 [size]: a function of the arguments alone."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(size)


def repeat_factors(classes: RecordClasses, *, num_records: int, threshold: float) -> npt.NDArray[np.float64]:
    """Computes the expected repeats of each record per epoch, > 1 for records with rare classes.

    A class c in the fraction f(c) of the records has the factor max(1, sqrt(threshold / f(c)));
    the factor of a record is the max over its classes, 1 without objects.  Source:
    Gupta, Dollar and Girshick, "LVIS: A Dataset for Large Vocabulary Instance
    Segmentation", 2019, appendix B.

    Args:
        classes: classes of the records' objects.
        num_records: N.
        threshold: fraction of the records below which a class is rare, 0 < threshold <= 1.

    Returns:
        float64 [N], >= 1.
    """
    num_classes = int(classes.classes.max(initial=0)) + 1
    records, present = np.divmod(np.unique(classes.records * num_classes + classes.classes), num_classes)
    fractions = np.bincount(present, minlength=num_classes) / num_records
    of_class = np.sqrt(threshold / np.maximum(fractions, 1.0 / num_records)).clip(min=1.0)
    factors = np.ones(num_records)
    np.maximum.at(factors, records, of_class[present])
    return factors


def draw_counts(factors: npt.NDArray[np.float64], order: npt.NDArray[np.int64], offset: float) -> npt.NDArray[np.int64]:
    """Draws the repeats of each record in an epoch: its factor on average, rounded down or up.

    Systematic sampling: the fractional parts are laid end to end on a line, and the records at
    `offset`, `offset` + 1, ... get one more repeat.  So the sum is constant, and averaged over all
    offsets each record gets exactly its factor.

    Args:
        factors: float64 [N], >= 0; their sum is an integer.
        order: int64 [N], order of the records on the line.
        offset: 0 <= offset < 1.

    Returns:
        int64 [N].
    """
    whole = np.floor(factors)
    fractions = factors - whole
    total = round(float(fractions.sum()))
    # Rounding errors must not change the end of the line.
    ends = np.minimum(np.cumsum(fractions[order]), total)
    ends[-1] = total
    passed = np.ceil(ends - offset).astype(np.int64)  # positions offset + n below the end
    counts = whole.astype(np.int64)
    counts[order] += np.diff(passed, prepend=0)
    return counts


class RecordOrder:
    """Order of the records in a run; positions count images, in the order of the batches.

    Each epoch is a new permutation of the records, or with `factors` of a new sample of them.
    Thread-safe.

    Args:
        seed: seed of the run.
        size: number of records.
        factors: float64 [size], result of `repeat_factors`; None: each record once per epoch.

    Attributes:
        epoch_size: number of images per epoch: the sum of the factors, rounded up.
    """

    def __init__(self, seed: int, size: int, factors: npt.NDArray[np.float64] | None = None) -> None:
        self.epoch_size = size
        self._seed = seed
        self._factors = None
        if factors is not None:
            total = float(factors.sum())
            self.epoch_size = math.ceil(total - _ROUNDING)
            # Scales the sum up to an integer number of images per epoch.
            self._factors = factors * max(1.0, self.epoch_size / total)
        self._lock = threading.Lock()
        # Two epochs are in use around the end of an epoch.
        self._records = functools.lru_cache(maxsize=2)(self._records_of)

    def record(self, position: int) -> int:
        """Returns the index of the record, 0 <= index < size, at a position >= 0."""
        epoch, place = divmod(position, self.epoch_size)
        with self._lock:  # or many threads would draw the same epoch at its start
            return int(self._records(epoch)[place])

    def _records_of(self, epoch: int) -> npt.NDArray[np.int64]:
        if self._factors is None:
            return epoch_permutation(self._seed, epoch, self.epoch_size)
        generator = np.random.Generator(np.random.Philox(key=[self._seed, epoch]))
        size = len(self._factors)
        offset = float(generator.integers(_OFFSETS)) / _OFFSETS
        counts = draw_counts(self._factors, generator.permutation(size), offset)
        return generator.permutation(np.repeat(np.arange(size), counts))
