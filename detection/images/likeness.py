"""Finds pictures that are copies of one another: mirrored, turned by right angles, darker, blurred or stored again.

Each picture is reduced to 16 x 16 means of its brightness.  Candidates agree in some of the signs of their low
frequencies, as in a perceptual hash (Zauner, Implementation and Benchmarking of Perceptual Image Hash Functions, 2010),
found by locality-sensitive hashing; then the means themselves are compared.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from PIL import Image

SIDE = 16
_SAMPLED = 16 * SIDE  # pixels of a side that the means are taken of
_FLAT = 4.0  # standard deviation of grey values, of 256, below which a picture is like any other flat one
_UNIT = 24.0  # stored steps in a standard deviation
_FREQUENCIES = 8  # number in each direction
_TABLES = 24
_ALIKE = 0.97  # correlation of the means of copies
_LARGEST = 1.2  # largest difference of two means of copies, in standard deviations: an object may have moved
_BLOCK = 1 << 15  # candidates compared at once

Thumbnails = npt.NDArray[np.float32]  # [N, 256]: means row by row, of mean 0 and standard deviation 1


def thumbnail(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Reduces a picture [height, width, 3] to SIDE * SIDE bytes; b"": it is too flat to be compared."""
    step = max(1, min(pixels.shape[:2]) // _SAMPLED)
    grey = Image.fromarray(pixels[::step, ::step]).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    values = np.asarray(grey, np.float32)
    spread = float(values.std())
    if spread < _FLAT:
        return b""
    return np.clip((values - values.mean()) / spread * _UNIT + 128, 0, 255).round().astype(np.uint8).tobytes()


def copies(thumbnails: list[bytes]) -> set[tuple[int, int]]:
    """Returns the pairs of pictures that are copies of one another, the lower number first.

    Args:
        thumbnails: of `thumbnail`; flat pictures are like none.
    """
    numbers = np.array([number for number, one in enumerate(thumbnails) if one], np.int64)
    if len(numbers) < 2:
        return set()
    stored = np.frombuffer(b"".join(filter(None, thumbnails)), np.uint8).reshape(-1, SIDE * SIDE)
    means = (stored.astype(np.float32) - 128) / _UNIT
    signs = means @ _waves()
    found: set[tuple[int, int]] = set()
    bits = int(np.clip(np.log2(len(numbers)) + 4, 8, 22))
    for turned in _views(means):
        other = turned @ _waves()
        for chosen in _tables(bits):
            for pairs in _equal(signs[:, chosen] > 0, other[:, chosen] > 0):
                left, right = pairs[:, pairs[0] < pairs[1]]
                difference = means[left] - turned[right]
                alike = (difference**2).mean(axis=1) <= 2 * (1 - _ALIKE)
                alike &= np.abs(difference).max(axis=1) <= _LARGEST
                found.update(zip(numbers[left[alike]].tolist(), numbers[right[alike]].tolist(), strict=True))
    return found


def _waves() -> npt.NDArray[np.float32]:
    """The lowest frequencies of the cosine transform but for the mean [256, 63]."""
    places = (np.arange(SIDE) + 0.5) * np.pi / SIDE
    waves = np.cos(np.arange(_FREQUENCIES)[:, None] * places)
    products = np.einsum("iy,jx->yxij", waves, waves).reshape(SIDE * SIDE, -1)
    return products[:, 1:].astype(np.float32)


def _views(means: Thumbnails) -> Iterator[Thumbnails]:
    """Yields the pictures turned by right angles, as they are and mirrored."""
    grid = means.reshape(-1, SIDE, SIDE)
    for mirrored in (grid, grid[:, :, ::-1]):
        for turns in range(4):
            yield np.ascontiguousarray(np.rot90(mirrored, turns, axes=(1, 2))).reshape(len(means), -1)


def _tables(bits: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yields the frequencies whose signs make the key of each table; always the same ones."""
    random = np.random.default_rng(0)
    for _ in range(_TABLES):
        yield random.choice(_FREQUENCIES**2 - 1, bits, replace=False)


def _equal(some: npt.NDArray[np.bool_], others: npt.NDArray[np.bool_]) -> Iterator[npt.NDArray[np.int64]]:
    """Yields blocks of pairs of equal rows [2, N]."""
    weights = 1 << np.arange(some.shape[1], dtype=np.int64)
    keys, wanted = some @ weights, others @ weights
    order = np.argsort(keys, kind="stable")
    first, last = (np.searchsorted(keys[order], wanted, side) for side in ("left", "right"))
    counts = last - first
    ends = np.cumsum(counts)
    for block in range(0, int(ends[-1]), _BLOCK):
        places = np.arange(block, min(block + _BLOCK, int(ends[-1])))
        right = np.searchsorted(ends, places, "right")
        yield np.stack([order[first[right] + places - (ends - counts)[right]], right])
