"""Checks of the masks of an evaluation: one by one with the reason, or many together."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from detection.datasets.entries import Entry, Ids
from detection.datasets.masks import has_degenerate_polygon, mask_issue

_AT_ONCE = 1 << 16  # characters of run lengths; what they are made into stays in the processor's cache
_LONGEST = 7  # characters of a run: 35 bits
_LEAST, _GREATEST = 48, 111  # of a character's code
_MOST_PIXELS = 2**32 - 1  # run lengths have 32 bits


def segmentation_issue(segmentation: Any, height: int, width: int) -> str | None:
    """Explains why `segmentation` cannot be compared in an image of this size in pixels; None if it can."""
    if height * width > _MOST_PIXELS:
        return f"its image has {width}x{height} pixels, and a mask at most {_MOST_PIXELS}"
    if isinstance(segmentation, Mapping) and isinstance(segmentation.get("counts"), bytes):
        segmentation = {**segmentation, "counts": segmentation["counts"].decode("latin-1")}
    issue = mask_issue(segmentation, height=height, width=width)
    if issue is None and has_degenerate_polygon(segmentation):
        return "a polygon has fewer than three points"
    return issue


def masks_are_valid(entries: Sequence[Entry], image_ids: Ids, sizes: Ids | None) -> bool:
    """Returns whether each entry has a mask that fits its image.

    Args:
        entries: annotations or detections of these images.
        image_ids: int64 [N].
        sizes: int64 [N, 2], height and width of the images; None: only whether each
            entry has a mask is checked.
    """
    shapes = [entry.get("segmentation") for entry in entries]
    if not all(shapes):
        return False
    if sizes is None:
        return True
    order = np.argsort(image_ids)
    images = np.array([entry["image_id"] for entry in entries], np.int64)
    sizes = sizes[order[np.searchsorted(image_ids, images, sorter=order)]]
    if (sizes[:, 0] > _MOST_PIXELS // sizes[:, 1]).any():
        return False
    compressed = np.array([type(shape) is dict and type(shape.get("counts")) in (str, bytes) for shape in shapes], bool)
    for position in np.flatnonzero(~compressed).tolist():
        if segmentation_issue(shapes[position], *sizes[position].tolist()) is not None:
            return False
    return _are_valid([shapes[position] for position in np.flatnonzero(compressed)], sizes[compressed])


def _are_valid(rles: Sequence[Any], sizes: Ids) -> bool:
    """Whether compressed RLEs are masks of these heights and widths, [N, 2]."""
    given = [rle.get("size") for rle in rles]
    if not rles:
        return True
    if set(map(type, given)) != {list} or set(map(len, given)) != {2}:
        return False
    if set(map(type, itertools.chain.from_iterable(given))) != {int}:
        return False
    try:
        if (np.fromiter(itertools.chain.from_iterable(given), np.int64).reshape(-1, 2) != sizes).any():
            return False
    except OverflowError:
        return False
    texts = [rle["counts"] if type(rle["counts"]) is str else rle["counts"].decode("latin-1") for rle in rles]
    return all(_cover(some, pixels) for some, pixels in _portions(texts, sizes[:, 0] * sizes[:, 1]))


def _portions(texts: Sequence[str], pixels: Ids) -> Iterator[tuple[Sequence[str], Ids]]:
    read = np.cumsum(list(map(len, texts)))
    starts = np.flatnonzero(np.diff(read // _AT_ONCE, prepend=-1))
    for start, end in itertools.pairwise([*starts.tolist(), len(texts)]):
        yield texts[start:end], pixels[start:end]


def _cover(texts: Sequence[str], pixels: Ids) -> bool:
    """Whether each text is an RLE's whose runs add up to its image's pixels.

    The encoding is described at `detection.datasets.masks.decode_counts`; from the third run on a
    value is the difference to the run two before, so that the runs of even and of odd
    number are sums, each of its own.
    """
    whole = "".join(texts)
    if not all(texts) or not whole.isascii():
        return False
    codes = np.frombuffer(whole.encode(), np.uint8)
    if codes.min() < _LEAST or codes.max() > _GREATEST:
        return False
    values = codes - np.uint8(_LEAST)
    is_end = values < 0x20  # of a run
    text_ends = np.cumsum(list(map(len, texts))) - 1
    if not is_end[text_ends].all():
        return False
    ends = np.flatnonzero(is_end)
    lengths = np.diff(ends, prepend=-1)
    if lengths.max() > _LONGEST:
        return False
    stops = np.searchsorted(ends, text_ends, side="right")
    starts = np.concatenate([[0], stops[:-1]])  # of each text's runs
    # Up to two more, so that there are pairs, one of them behind the last text.
    runs = np.zeros(len(ends) + len(ends) % 2 + 2, np.int64)
    runs[: len(ends)] = _runs(values, ends, lengths)
    backgrounds = runs[starts]
    runs[starts] = 0  # the third run is not stored as the difference to the first
    chains = np.cumsum(runs.reshape(-1, 2), axis=0)
    totals = backgrounds
    for parity, chain in enumerate(chains.T):
        rows, after = (starts - parity + 1) // 2, (stops - parity + 1) // 2
        there = rows < after  # otherwise a single run
        before = np.where(rows > 0, chain[rows - 1], 0)  # from which a text's own chain starts
        spans = np.stack([rows, after], axis=1).ravel()
        if (np.minimum.reduceat(chain, spans)[::2] < before)[there].any():
            return False
        totals = totals + np.where(there, np.add.reduceat(chain, spans)[::2] - (after - rows) * before, 0)
    return bool(backgrounds.min() >= 0 and (totals == pixels).all())


def _runs(values: npt.NDArray[np.uint8], ends: Ids, lengths: Ids) -> Ids:
    """What each run's characters, five bits each, low bits first, and the last one's sign bit, add up to."""
    last = (values[ends] & 0x1F).astype(np.int64)
    runs = last - ((last & 0x10) << 1)
    long = np.flatnonzero(lengths > 1)
    place = ends[long]
    for ahead in range(1, _LONGEST):
        rest = lengths[long] > ahead
        long, place = long[rest], place[rest]
        # Every character further ahead is five bits lower.
        runs[long] = (runs[long] << 5) + (values[place - ahead] & 0x1F)
    return runs
