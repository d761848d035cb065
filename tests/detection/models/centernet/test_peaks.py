"""The best peaks of heat-maps, beside a search in plain numpy."""

from functools import partial
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from detection.models.centernet import peaks as module
from detection.models.centernet.peaks import best_peaks

COUNT = 100


def _plain(logits: np.ndarray) -> list[dict[tuple[int, int], float]]:
    """The score of each image's peaks by (cell, channel)."""
    images = []
    for scores in tf.sigmoid(logits).numpy():
        height, width, channels = scores.shape
        padded = np.pad(scores, [(1, 1), (1, 1), (0, 0)])
        around = [padded[i : i + height, j : j + width] for i in range(3) for j in range(3)]
        rows = np.argwhere(np.max(around, axis=0) - scores < np.float32(1e-6))
        images.append({(int(y * width + x), int(c)): float(scores[y, x, c]) for y, x, c in rows})
        assert channels > rows[:, 2].max()
    return images


def _noise(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(-3.0, 1.5, shape).astype(np.float32)


def _blobs(shape: tuple[int, ...], seed: int, *, floor: float) -> np.ndarray:
    """Smooth objects on a background of which no cell is higher than `floor`."""
    random = np.random.default_rng(seed)
    logits = np.full(shape, floor, np.float32) - random.random(shape).astype(np.float32)
    y, x = np.mgrid[: shape[1], : shape[2]]
    for image, channel in np.ndindex(shape[0], shape[3]):
        for _ in range(3):
            row, column, sigma = random.random() * shape[1], random.random() * shape[2], 1.0 + 3.0 * random.random()
            blob = 12.0 * np.exp(-((y - row) ** 2 + (x - column) ** 2) / (2.0 * sigma**2)) - 9.0
            logits[image, :, :, channel] = np.maximum(logits[image, :, :, channel], blob)
    return logits


def _require_best(logits: np.ndarray, *, floor: float = 0.0, windowed: bool = True, share: float = 1.0) -> int:
    """Requires the best peaks that count and are above the floor; returns how often all cells were looked at."""
    cells = logits.shape[1] * logits.shape[2]
    counts = np.random.default_rng(0).random((len(logits), cells)) < share
    with mock.patch.object(module, "peaks", wraps=module.peaks) as all_cells:
        found = best_peaks(tf.constant(logits), COUNT, counts=counts, floor=floor, windowed=windowed)
    for image, everywhere in enumerate(_plain(logits)):
        peaks = {place: score for place, score in everywhere.items() if counts[image, place[0]]}
        best = sorted(peaks.values(), reverse=True)[:COUNT]
        scores = found.scores[image].numpy()
        assert (np.diff(scores) <= 0).all()
        needed = np.array(best) > floor
        np.testing.assert_allclose(scores[: len(best)][needed], np.array(best)[needed], rtol=1e-5)
        rows = zip(found.cells[image].numpy(), found.classes[image].numpy(), scores, strict=True)
        above = {(int(cell), int(channel)): score for cell, channel, score in rows if score > floor}
        assert len(above) == (scores > floor).sum(), "no peak is there twice"
        assert {place: peaks.get(place) for place in above} == pytest.approx(above, rel=1e-5)
    return sum(call.args[0].shape[1] == logits.shape[1] for call in all_cells.call_args_list)


@pytest.mark.parametrize("shape", [(2, 48, 48, 7), (1, 64, 49, 3), (1, 50, 64, 90), (2, 95, 97, 1)])
def test_of_noise_the_blocks_have_all(shape: tuple[int, int, int, int]) -> None:
    for seed in range(3):
        assert _require_best(_noise(shape, seed)) == 0
        assert _require_best(_noise(shape, seed), windowed=False) == 1
        _require_best(_noise(shape, seed), share=0.4)


def test_of_objects_the_blocks_have_all_above_the_threshold() -> None:
    for seed in range(3):
        assert _require_best(_blobs((2, 64, 62, 8), seed, floor=-9.0), floor=1e-3) == 0


def test_where_the_blocks_may_not_have_all_every_cell_is_looked_at() -> None:
    assert _require_best(_blobs((2, 64, 62, 8), 0, floor=-9.0)) == 1
    slope = np.linspace(-2.0, 2.0, 60, dtype=np.float32)
    assert (
        _require_best(np.broadcast_to(slope[:, np.newaxis, np.newaxis], (1, 60, 60, 2)) + _noise((1, 1, 60, 2), 0)) == 1
    )


def test_cells_that_are_nearly_equal_are_peaks_and_small_maps_are_looked_at_whole() -> None:
    logits = _noise((1, 48, 48, 3), 0)
    for row in range(0, 48, 5):
        logits[0, row, 10:12, 0] = 6.0
        logits[0, row, 11, 0] += 1e-5  # 3e-8 as a probability
    assert _require_best(logits) == 0
    assert _require_best(_noise((2, 13, 16, 3), 1)) == 1


def test_one_graph_takes_either_branch_also_under_xla() -> None:
    counts = np.arange(48 * 48)[np.newaxis].repeat(2, axis=0) % 5 > 0
    find = partial(best_peaks, count=COUNT, counts=tf.constant(counts))
    compiled = tf.function(find, jit_compile=True, autograph=False)
    for logits in (_noise((2, 48, 48, 7), 0), np.full((2, 48, 48, 7), -1.0, np.float32)):
        for ours, expected in zip(compiled(logits), find(tf.constant(logits), windowed=False), strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-5)
