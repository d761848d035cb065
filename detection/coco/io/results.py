"""COCO results files: lists of detections, written at once or in blocks."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from detection.coco.io.blocks import Block
from detection.datasets.annotations.entries import Entry, Rows
from detection.datasets.annotations.entry_rules import column
from detection.storage.atomic import new_file

BETWEEN = b",\n"  # separator of lines


def results_from_rows(rows: Rows) -> list[dict[str, Any]]:
    """Converts rows [N, 7] (image_id, x, y, width, height, score, category_id) to COCO results, bit for bit."""
    return [
        {"image_id": int(image_id), "category_id": int(category_id), "bbox": box, "score": score}
        for image_id, *box, score, category_id in rows.tolist()
    ]


def write_results(path: str | Path, detections: Rows | Sequence[Entry]) -> None:
    """Writes a COCO results file atomically, one detection per line.

    Args:
        path: the file.
        detections: COCO results, or rows float64 [N, 7]: image_id, x, y, width, height (pixels), score,
            category_id.

    Raises:
        DataError: the file cannot be written.
        ValueError: NaN or infinity, which JSON does not support.
    """
    with new_file(path) as file:
        write_list(file, result_lines(detections))


def result_lines(detections: Rows | Sequence[Entry]) -> list[bytes]:
    """Formats detections, rows or COCO results, as the lines of a results file, without separators.

    Raises:
        ValueError: NaN or infinity, which JSON does not support.
    """
    results = results_from_rows(detections) if isinstance(detections, np.ndarray) else detections
    encode = json.JSONEncoder(allow_nan=False).encode
    return [encode(result).encode() for result in results]


def write_list(file: BinaryIO, texts: Iterable[bytes]) -> None:
    """Writes a results file of `result_lines`, or of several lines joined by `BETWEEN`."""
    separator = b"[\n"
    for text in texts:
        file.write(separator + text)
        separator = BETWEEN
    file.write(b"[\n]\n" if separator == b"[\n" else b"\n]\n")


def blocks_of(detections: Rows | Sequence[Entry]) -> list[Block]:
    """Groups detections, rows or COCO results, by image, keeping the order within an image.

    Returns:
        Blocks with lines of a results file as content.

    Raises:
        ValueError: NaN or infinity, which JSON does not support.
    """
    lines: dict[int, list[bytes]] = {}
    for image_id, line in zip(
        column(detections, "image_id").astype(int).tolist(), result_lines(detections), strict=True
    ):
        lines.setdefault(image_id, []).append(line)
    return [Block(image_id, BETWEEN.join(texts)) for image_id, texts in lines.items()]
