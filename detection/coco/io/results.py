"""COCO results files: lists of detections, written at once, or block by block (see `blocks`)."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from detection.coco.io.blocks import Block
from detection.coco.params import column
from detection.datasets.entries import Entry, Rows
from detection.storage.atomic import new_file

BETWEEN = b",\n"  # of two lines


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


def blocks_of(detections: Rows | Sequence[Entry]) -> list[Block]:
    """Groups detections, rows or COCO results, by image; the order within an image is kept.

    Returns:
        Blocks whose content is the lines of a results file.

    Raises:
        ValueError: NaN or infinity, which JSON does not have.
    """
    lines: dict[int, list[bytes]] = {}
    for image_id, line in zip(
        column(detections, "image_id").astype(int).tolist(), result_lines(detections), strict=True
    ):
        lines.setdefault(image_id, []).append(line)
    return [Block(image_id, BETWEEN.join(texts)) for image_id, texts in lines.items()]
