"""COCO results files: a list of detections."""

import json
from pathlib import Path
from typing import Any

from detection.atomic_files import write_text
from detection.coco.columns import Rows


def results_from_rows(rows: Rows) -> list[dict[str, Any]]:
    """COCO results of rows [N, 7] (image_id, x, y, width, height, score, category_id); floats keep every bit."""
    return [
        {"image_id": int(image_id), "category_id": int(category_id), "bbox": box, "score": score}
        for image_id, *box, score, category_id in rows.tolist()
    ]


def write_results(path: str | Path, rows: Rows) -> None:
    """Writes a COCO results file, one detection a line, whole or not at all.

    Args:
        path: the file.
        rows: float64 [N, 7]: image_id, x, y, width, height (pixels), score, category_id.

    Raises:
        DataError: the file cannot be written.
        ValueError: NaN or infinity, which JSON does not have.
    """
    lines = [json.dumps(result, allow_nan=False) for result in results_from_rows(rows)]
    write_text(path, "[" + ",".join(f"\n{line}" for line in lines) + "\n]\n")
