"""The quick check of masks against the decoder and pycocotools' encoder."""

import itertools
import random

import numpy as np
import pytest
from pycocotools import mask as masks

from detection.coco.engine.masks import is_valid_mask, segmentation_issue
from detection.datasets.masks import decode_counts, mask_issue


def _encoded(rng: np.random.Generator, fraction: float, cell: int) -> tuple[bytes, tuple[int, int]]:
    height, width = (int(side) for side in rng.integers(1, 60, 2))
    blocks = rng.random((-(-height // cell), -(-width // cell))) < fraction
    mask = np.kron(blocks, np.ones((cell, cell)))[:height, :width]
    rle = masks.encode(np.asfortranarray(mask.astype(np.uint8)))
    return rle["counts"], (height, width)


def test_what_pycocotools_encodes_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is known to be without being decoded here."""
    monkeypatch.setattr("detection.coco.engine.masks.segmentation_issue", lambda *_: "slow")
    rng = np.random.default_rng(0)
    for fraction, cell in itertools.product((0.5, 0.05, 0, 1), (1, 10)):
        for _ in range(40):
            text, (height, width) = _encoded(rng, fraction, cell)
            for counts in (text, text.decode()):
                rle = {"size": [height, width], "counts": counts}
                assert is_valid_mask(rle, height, width)
                assert not is_valid_mask(rle, height, width + 1)
                assert not is_valid_mask({**rle, "size": [height, width + 1]}, height, width + 1)


def test_damage_is_seen_as_in_single_masks() -> None:
    rng, chance = np.random.default_rng(1), random.Random(1)
    refused = 0
    for _ in range(1500):
        text, (height, width) = _encoded(rng, 0.3, chance.choice([1, 5, 20]))
        damaged = bytearray(text)
        match chance.randrange(4):
            case 0:
                damaged[chance.randrange(len(damaged))] = chance.randrange(40, 120)
            case 1:
                damaged = damaged[: chance.randrange(len(damaged))]
            case 2:
                damaged += bytes([chance.randrange(48, 112)])
        segmentation = {"size": [height, width], "counts": damaged.decode("latin-1")}
        single = mask_issue(segmentation, height=height, width=width) is None
        assert is_valid_mask(segmentation, height, width) == single, (damaged, height, width)
        refused += not single
    assert 500 < refused < 1300


def test_runs_that_encoders_do_not_write_are_valid() -> None:
    """Empty runs within, as a mask of two parts that meet has."""
    runs = [2, 3, 0, 3, 8]
    assert decode_counts("23008") == runs
    for counts in ("23008", runs):
        assert is_valid_mask({"size": [4, 4], "counts": counts}, 4, 4)


def test_other_alphabets_and_sizes_are_refused() -> None:
    for text in ("T3b1Zk\u4e00", "T3b1Zk\xff", "T3b1Zk~", "T3b1Zk ", "T3b1Zk\ud800", ""):
        assert not is_valid_mask({"size": [48, 64], "counts": text}, 48, 64), text
    assert is_valid_mask({"size": [48, 64], "counts": "T3b1Zk2"}, 48, 64)
    for size in ([48.0, 64], [True, 64], [64, 48], [48, 64, 1], None, "48"):
        height = 1 if size == [True, 64] else 48
        assert not is_valid_mask({"size": size, "counts": "T3b1Zk2"}, height, 64), size


def test_images_of_more_pixels_than_run_lengths_count_are_refused() -> None:
    for size, valid in (((65535, 65537), True), ((65536, 65536), False), ((2**53, 2**53), False)):
        segmentation = {"size": list(size), "counts": [size[0] * size[1]]}
        assert is_valid_mask(segmentation, *size) == valid
        issue = segmentation_issue(segmentation, *size)
        assert (
            issue is None
            if valid
            else issue == f"its image has {size[1]}x{size[0]} pixels, more than 4294967295 in total"
        )
