"""A metrics file, read back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from detection.storage.json_files import not_of_this_version, parse_file


@dataclass(frozen=True)
class CategoryMetrics:
    """AP and AP50 of one category, -1 if undefined."""

    id: int
    name: str
    AP: float
    AP50: float


@dataclass(frozen=True)
class MetricsFile:
    """What `detection.coco.summary.metrics_to_json` writes, as far as it is read back.

    metrics: by name, -1 if undefined.
    per_category: by ascending id; empty if categories were not told apart.
    """

    iou_type: Literal["bbox", "segm", "keypoints"]
    metrics: dict[str, float]
    per_category: list[CategoryMetrics]


_STRUCTURE = TypeAdapter(MetricsFile)


def read_metrics(path: str | Path) -> MetricsFile:
    """Reads a metrics file.

    Raises:
        DataError: the file cannot be read, or is no metrics file; it names the key.
    """
    metrics = parse_file(_STRUCTURE, path, what="a metrics file")
    ids = [entry.id for entry in metrics.per_category]
    if len(set(ids)) < len(ids):
        raise not_of_this_version(path, "a metrics file", "per_category: an id is there more than once")
    return metrics
