"""Detections of any number of images, sorted by image in bounded memory.

They are collected in files of blocks, each file sorted: a block is an image's id, the
length of what follows, and its detections as the lines of a COCO results file.
Sorted files are merged into one.
"""

import contextlib
import heapq
import struct
from collections.abc import Generator, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from detection.coco.io.results import BETWEEN, result_lines
from detection.datasets.entries import Entry, Rows

_HEAD = struct.Struct("<qq")
_FILES = 256  # opened at once


class Block(NamedTuple):
    """What was found on an image: its id, and the lines of a results file."""

    image_id: int
    text: bytes


def blocks_of(detections: Rows | Sequence[Entry]) -> list[Block]:
    """Detections, rows or COCO results, image by image; the order within an image is kept.

    Raises:
        ValueError: NaN or infinity, which JSON does not have.
    """
    image_ids = (
        detections[:, 0].astype(int).tolist()
        if isinstance(detections, np.ndarray)
        else [detection["image_id"] for detection in detections]
    )
    lines: dict[int, list[bytes]] = {}
    for image_id, line in zip(image_ids, result_lines(detections), strict=True):
        lines.setdefault(image_id, []).append(line)
    return [Block(image_id, BETWEEN.join(found)) for image_id, found in lines.items()]


def write_blocks(path: str | Path, blocks: Iterable[Block]) -> None:
    """Writes a file of blocks, which come by ascending image id."""
    with open(path, "wb") as file:
        for block in blocks:
            file.write(_HEAD.pack(block.image_id, len(block.text)) + block.text)


def merge_blocks(paths: Sequence[str], work: Path) -> Iterator[Block]:
    """Yields the blocks of several files by ascending image id.

    Args:
        paths: from `write_blocks`.
        work: existing folder for further such files, where there are too many to be
            open at once.
    """
    while len(paths) > _FILES:
        groups = [paths[start : start + _FILES] for start in range(0, len(paths), _FILES)]
        paths = [_merge_into(work / f"{len(paths)}-{number}", group) for number, group in enumerate(groups)]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(contextlib.closing(_read_blocks(path))) for path in paths]
        yield from heapq.merge(*files, key=itemgetter(0))


def _merge_into(goal: Path, paths: Sequence[str]) -> str:
    write_blocks(goal, merge_blocks(paths, goal.parent))
    return str(goal)


def _read_blocks(path: str) -> Generator[Block, None, None]:
    with open(path, "rb") as file:
        while head := file.read(_HEAD.size):
            image_id, length = _HEAD.unpack(head)
            yield Block(image_id, file.read(length))
