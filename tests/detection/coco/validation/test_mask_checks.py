"""Many RLEs decoded at once, against the decoder of single ones and pycocotools' encoder."""

import random
from typing import Any

import numpy as np
from pycocotools import mask as masks

from detection.coco.validation.mask_checks import masks_are_valid, segmentation_issue
from detection.datasets.masks import mask_issue


def _valid(texts: list[Any], sizes: list[tuple[int, int]]) -> bool:
    ids = np.arange(len(texts))
    entries: list[dict[str, Any]] = [
        {"image_id": image, "segmentation": {"size": list(size), "counts": text}}
        for image, text, size in zip(ids.tolist(), texts, sizes, strict=True)
    ]
    return masks_are_valid(entries, ids, np.array(sizes))


def _encoded(rng: np.random.Generator, fraction: float, cell: int) -> tuple[bytes, tuple[int, int]]:
    height, width = (int(side) for side in rng.integers(1, 60, 2))
    blocks = rng.random((-(-height // cell), -(-width // cell))) < fraction
    mask = np.kron(blocks, np.ones((cell, cell)))[:height, :width]
    rle = masks.encode(np.asfortranarray(mask.astype(np.uint8)))
    return rle["counts"], (height, width)


def test_what_pycocotools_encodes_is_valid() -> None:
    rng = np.random.default_rng(0)
    made = [_encoded(rng, fraction, cell) for fraction in (0.5, 0.05, 0, 1) for cell in (1, 10) for _ in range(40)]
    texts, sizes = [list(column) for column in zip(*made, strict=True)]
    assert _valid(texts, sizes)
    assert _valid([text.decode() for text in texts], sizes)
    other_sizes = [*sizes[:-1], (sizes[-1][0], sizes[-1][1] + 1)]
    assert not _valid(texts, other_sizes)


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
        assert _valid([damaged.decode("latin-1")], [(height, width)]) == single, (damaged, height, width)
        refused += not single
    assert 500 < refused < 1300


def test_long_lists_are_decoded_in_portions() -> None:
    rng = np.random.default_rng(2)
    made = [_encoded(rng, 0.5, 1) for _ in range(400)]
    texts, sizes = [list(column) for column in zip(*made, strict=True)]
    texts, sizes = texts * 7, sizes * 7
    assert sum(map(len, texts)) > 1 << 20
    texts = [text.decode() for text in texts]
    assert _valid(texts, sizes)
    texts[-1] = texts[-1][:-1]
    assert not _valid(texts, sizes)


def test_other_alphabets_are_refused() -> None:
    assert _valid(["T3b1Zk2"], [(48, 64)])
    for text in ("T3b1Zk\u4e00", "T3b1Zk\xff", "T3b1Zk~", "T3b1Zk ", ""):
        assert not _valid([text], [(48, 64)]), text


def test_images_of_more_pixels_than_run_lengths_count_are_refused() -> None:
    for size, valid in (((65535, 65537), True), ((65536, 65536), False), ((2**53, 2**53), False)):
        segmentation = {"size": list(size), "counts": [size[0] * size[1]]}
        assert masks_are_valid([{"image_id": 0, "segmentation": segmentation}], np.arange(1), np.array([size])) == valid
        issue = segmentation_issue(segmentation, *size)
        assert (
            issue is None
            if valid
            else issue == f"its image has {size[1]}x{size[0]} pixels, and a mask at most 4294967295"
        )
