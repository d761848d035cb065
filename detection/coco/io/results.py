"""COCO results files: lists of detections, written at once or sorted by image in bounded memory.

For sorting, detections are collected in files of blocks, each file sorted: a block is an
image's id, the length of what follows, and its detections as the lines of a COCO results
file. Sorted files are merged into one.
"""

import contextlib
import heapq
import json
import struct
from collections.abc import Generator, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from detection.datasets.entries import Entry, Rows
from detection.storage.atomic import new_file

BETWEEN = b",\n"  # of two lines
_HEAD = struct.Struct("<qq")
_FILES = 256  # opened at once


def results_from_rows(rows: Rows) -> list[dict[str, Any]]:
    """COCO results of rows [N, 7] (image_id, x, y, width, height, score, category_id); floats keep every bit."""
    return [
        {"image_id": int(image_id), "category_id": int(category_id), "bbox": box, "score": score}
        for image_id, *box, score, category_id in rows.tolist()
    ]


def write_results(path: str | Path, detections: Rows | Sequence[Entry]) -> None:
    """Writes a COCO results file, one detection a line, whole or not at all.

    Args:
        path: the file.
        detections: COCO results, or rows float64 [N, 7]: image_id, x, y, width, height (pixels), score,
            category_id.

    Raises:
        DataError: the file cannot be written.
        ValueError: NaN or infinity, which JSON does not have.
    """
    with new_file(path) as file:
        write_list(file, result_lines(detections))


def result_lines(detections: Rows | Sequence[Entry]) -> list[bytes]:
    """Detections, rows or COCO results, as the lines of a results file, without what stands between them.

    Raises:
        ValueError: NaN or infinity, which JSON does not have.
    """
    results = results_from_rows(detections) if isinstance(detections, np.ndarray) else detections
    encode = json.JSONEncoder(allow_nan=False).encode
    return [encode(result).encode() for result in results]


def write_list(file: BinaryIO, texts: Iterable[bytes]) -> None:
    """Writes a results file of `result_lines`, or of several of them joined by `BETWEEN`."""
    separator = b"[\n"
    for text in texts:
        file.write(separator + text)
        separator = BETWEEN
    file.write(b"[\n]\n" if separator == b"[\n" else b"\n]\n")


class Block(NamedTuple):
    """Detections of one image: its id, and the lines of a results file."""

    image_id: int
    text: bytes


def blocks_of(detections: Rows | Sequence[Entry]) -> list[Block]:
    """Groups detections, rows or COCO results, by image; the order within an image is kept.

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
    return [Block(image_id, BETWEEN.join(texts)) for image_id, texts in lines.items()]


def write_blocks(path: str | Path, blocks: Iterable[Block]) -> None:
    """Writes a file of blocks, which come by ascending image id."""
    with open(path, "wb") as file:
        for block in blocks:
            file.write(_HEAD.pack(block.image_id, len(block.text)) + block.text)


def merge_blocks(paths: Sequence[str], work: Path) -> Iterator[Block]:
    """Yields the blocks of several files by ascending image id.

    Args:
        paths: from `write_blocks`.
        work: existing folder for further such files, if there are too many to be open
            at once.
    """
    while len(paths) > _FILES:
        groups = [paths[start : start + _FILES] for start in range(0, len(paths), _FILES)]
        paths = [_merge_into(work / f"{len(paths)}-{number}", group) for number, group in enumerate(groups)]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(contextlib.closing(_read_blocks(path))) for path in paths]
        yield from heapq.merge(*files, key=itemgetter(0))


def _merge_into(destination: Path, paths: Sequence[str]) -> str:
    write_blocks(destination, merge_blocks(paths, destination.parent))
    return str(destination)


def _read_blocks(path: str) -> Generator[Block, None, None]:
    with open(path, "rb") as file:
        while head := file.read(_HEAD.size):
            image_id, length = _HEAD.unpack(head)
            yield Block(image_id, file.read(length))
