"""Whether many masks can be compared, their run lengths decoded together."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from detection.coco.columns import Entry, Ids
from detection.coco.record_rules import Known, segmentation_fault

_AT_ONCE = 1 << 20  # characters of run lengths
_LONGEST = 7  # characters of a run: 35 bits


def masks_are_sound(entries: Sequence[Entry], known: Known) -> bool:
    """Whether each entry, of a known image, has a mask that fits its image.

    Where `known` has no sizes, only whether it has one.
    """
    if not all(entry.get("segmentation") for entry in entries):
        return False
    if known.sizes is None:
        return True
    sizes = dict(zip(known.image_ids.tolist(), known.sizes.tolist(), strict=True))
    texts, pixels = [], []
    for entry in entries:
        size = sizes[entry["image_id"]]
        text = _compressed(entry["segmentation"], size)
        if text is not None:
            texts.append(text)
            pixels.append(size[0] * size[1])
        elif segmentation_fault(entry["segmentation"], *size) is not None:
            return False
    return all(_cover(some, np.array(their)) for some, their in _portions(texts, pixels))


def _compressed(segmentation: object, size: Sequence[int]) -> bytes | None:
    """The text of a compressed RLE of this size; None for all else."""
    if not isinstance(segmentation, Mapping) or segmentation.get("size") != size:
        return None
    counts = segmentation.get("counts")
    if isinstance(counts, str):
        return counts.encode("latin-1", "replace")
    return counts if isinstance(counts, bytes) else None


def _portions(texts: Sequence[bytes], pixels: Sequence[int]) -> Iterator[tuple[Sequence[bytes], Sequence[int]]]:
    start = length = 0
    for end, text in enumerate(texts, 1):
        length += len(text)
        if length >= _AT_ONCE or end == len(texts):
            yield texts[start:end], pixels[start:end]
            start, length = end, 0


def _cover(texts: Sequence[bytes], pixels: Ids) -> bool:
    """Whether each text is an RLE's whose runs add up to its image's pixels.

    The encoding is told at `detection.coco.masks.decode_counts`; from the third run on a
    value is the difference to the run two before, so that the runs of even and of odd
    number are sums, each of its own.
    """
    if not all(texts):
        return False
    values = np.frombuffer(b"".join(texts), np.uint8).astype(np.int64) - 48
    text_ends = np.cumsum([len(text) for text in texts])
    ends = np.flatnonzero((values & 0x20) == 0)  # of runs
    if ((values < 0) | (values > 63)).any() or not np.isin(text_ends - 1, ends).all():
        return False
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends + 1 - starts
    if lengths.max() > _LONGEST:
        return False
    shifts = 5 * (np.arange(len(values)) - np.repeat(starts, lengths))
    runs = np.add.reduceat((values & 0x1F) << shifts, starts)
    runs -= ((values[ends] & 0x10) > 0).astype(np.int64) << (5 * lengths)
    text_of = np.searchsorted(text_ends, starts, side="right")
    number = np.arange(len(runs)) - np.searchsorted(text_of, np.arange(len(texts)))[text_of]
    for parity in (0, 1):
        chain = (number % 2 == parity) & (number > 0)
        runs[chain] = _sums(runs[chain], text_of[chain])
    total = np.bincount(text_of, weights=runs, minlength=len(texts))
    return bool((runs >= 0).all() and (total == pixels).all())


def _sums(values: Ids, groups: npt.NDArray[np.int64]) -> Ids:
    """Running sums that begin anew with each group; groups ascend."""
    if not len(values):
        return values
    sums = np.cumsum(values)
    first = np.concatenate([[True], groups[1:] != groups[:-1]])
    before = (sums - values)[first]
    return sums - before[np.cumsum(first) - 1]
