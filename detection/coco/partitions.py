"""An evaluation divided by category and area range, each partition small enough for one worker.

Matching in COCO knows no other category and no other area range, so every metric of
the evaluation follows from the partitions, bit for bit.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from detection.coco.engine import Arrays
from detection.coco.engine.streaming import blank_arrays
from detection.coco.metrics import CocoMetrics, metrics_from_arrays
from detection.coco.params import Params
from detection.coco.validation.checks import Checked
from detection.datasets.annotations.entries import Entry, Rows
from detection.datasets.annotations.entry_rules import column
from schemas.errors import ConfigError


class Partition(NamedTuple):
    """The part of an evaluation that one accumulator holds.

    category_id: None: all of them; required without `use_cats`.
    area: name of an area range; None: all of them.
    """

    category_id: int | None = None
    area: str | None = None


WHOLE = Partition()


def partitions_of(categories: Sequence[Entry], params: Params) -> list[Partition]:
    """Returns the smallest partitions of an evaluation: one per category and area range."""
    ids: list[int | None] = sorted(category["id"] for category in categories) if params.use_cats else [None]
    return [Partition(category_id, area) for category_id in ids for area in params.area_ranges]


def partition_params(partition: Partition, categories: Sequence[Entry], params: Params) -> Params:
    """Returns the params of a partition: those of the evaluation, with its area range only.

    Raises:
        ConfigError: the evaluation has no such partition.
    """
    if partition.category_id is not None and not params.use_cats:
        raise ConfigError(f"{partition}: use_cats is false, so the evaluation cannot be divided by category.")
    if partition.category_id is not None and partition.category_id not in {category["id"] for category in categories}:
        raise ConfigError(f"{partition}: no such category. Give one of the data set's ids.")
    if partition.area is None:
        return params
    if partition.area not in params.area_ranges:
        raise ConfigError(f"{partition}: no such area range, only {', '.join(params.area_ranges)}.")
    return replace(params, area_ranges={partition.area: params.area_ranges[partition.area]})


def metrics_of_partitions(
    arrays: Mapping[Partition, Arrays], categories: Sequence[Entry], params: Params
) -> CocoMetrics:
    """Computes the metrics of the evaluation.

    Args:
        arrays: `MetricsAccumulator.arrays()` of each partition.
        categories: COCO `categories` of the data set.
        params: params of the evaluation.

    Raises:
        ConfigError: a partition is duplicate, missing or of another evaluation.
    """
    ids = tuple(sorted(category["id"] for category in categories))
    areas = list(params.area_ranges)
    filled = np.zeros((len(ids) if params.use_cats else 1, len(areas)), np.int64)
    joined = blank_arrays(ids, params)
    for partition, piece in arrays.items():
        partition_params(partition, categories, params)
        at_categories = (
            slice(None) if partition.category_id is None else slice(*_span(ids.index(partition.category_id)))
        )
        at_areas = slice(None) if partition.area is None else slice(*_span(areas.index(partition.area)))
        joined.precision[:, :, at_categories, at_areas] = piece.precision
        joined.recall[:, at_categories, at_areas] = piece.recall
        joined.scores[:, :, at_categories, at_areas] = piece.scores
        filled[at_categories, at_areas] += 1
    if (filled != 1).any():
        row, column = np.argwhere(filled != 1)[0]
        category = ids[row] if params.use_cats else None
        raise ConfigError(
            f"got {Partition(category, areas[column])} {filled[row, column]} times among {len(arrays)} partitions, "
            "expected once. Pass each partition of the evaluation, also one without images."
        )
    return metrics_from_arrays(joined, categories, params)


def _span(position: int) -> tuple[int, int]:
    return position, position + 1


def by_category(checked: Checked) -> dict[int, Checked]:
    """Divides entries by category, each with the images that contain it, in the original order."""
    annotations: dict[int, list[Entry]] = defaultdict(list)
    for annotation in checked.annotations:
        annotations[annotation["category_id"]].append(annotation)
    detections = checked.detections
    divided: Mapping[int, Any] = (
        _rows_by_category(detections) if isinstance(detections, np.ndarray) else _results_by_category(detections)
    )
    images = {image["id"]: image for image in checked.images}
    partitions = {}
    for category_id in sorted({*annotations, *divided}):
        own, results = annotations.get(category_id, []), divided.get(category_id, detections[:0])
        ids = {annotation["image_id"] for annotation in own} | set(column(results, "image_id").astype(int).tolist())
        partitions[category_id] = Checked([images[image_id] for image_id in sorted(ids)], own, results)
    return partitions


def _rows_by_category(rows: Rows) -> dict[int, Rows]:
    rows = rows[np.argsort(rows[:, 6], kind="stable")]
    category_ids, starts = np.unique(rows[:, 6], return_index=True)
    # Without rows there is one partition, an empty one.
    return dict(zip(category_ids.astype(int).tolist(), np.split(rows, starts[1:]), strict=False))


def _results_by_category(results: Sequence[Entry]) -> dict[int, list[Entry]]:
    divided: dict[int, list[Entry]] = defaultdict(list)
    for result in results:
        divided[result["category_id"]].append(result)
    return divided
