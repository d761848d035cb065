"""Divides an evaluation by category and area range into parts that fit one worker.

COCO matches each category and each area range independently, so every metric can be computed from
the parts, bit for bit.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from detection.coco.engine import Arrays
from detection.coco.engine.streaming import blank_arrays
from detection.coco.metrics import CocoMetrics, metrics_from_arrays
from detection.coco.params import Params, column
from detection.coco.validation.checks import Checked
from detection.datasets.entries import Entry, Rows
from schemas.errors import ConfigError


class Part(NamedTuple):
    """Part of an evaluation for one accumulator.

    category_id: None: all categories, required with `use_cats` False.
    area: name of an area range; None: all ranges.
    """

    category_id: int | None = None
    area: str | None = None


WHOLE = Part()


def parts_of(categories: Sequence[Entry], params: Params) -> list[Part]:
    """Lists the smallest parts of an evaluation: one per category and area range."""
    ids: list[int | None] = sorted(category["id"] for category in categories) if params.use_cats else [None]
    return [Part(category_id, area) for category_id in ids for area in params.area_ranges]


def part_params(part: Part, categories: Sequence[Entry], params: Params) -> Params:
    """Returns the params of a part: with one area range, if the part has one.

    Raises:
        ConfigError: the evaluation has no such part.
    """
    if part.category_id is not None and not params.use_cats:
        raise ConfigError(f"{part}: use_cats is False, so the state cannot be divided by category.")
    if part.category_id is not None and part.category_id not in {category["id"] for category in categories}:
        raise ConfigError(f"{part}: no such category. Specify one of the data set's ids.")
    if part.area is None:
        return params
    if part.area not in params.area_ranges:
        raise ConfigError(f"{part}: no such area range; ranges are {', '.join(params.area_ranges)}.")
    return replace(params, area_ranges={part.area: params.area_ranges[part.area]})


def metrics_of_parts(arrays: Mapping[Part, Arrays], categories: Sequence[Entry], params: Params) -> CocoMetrics:
    """Combines the parts of an evaluation.

    Args:
        arrays: `MetricsAccumulator.arrays()` of each part; the parts must be complete.
        categories: categories of the data set.
        params: parameters of the evaluation.

    Raises:
        ConfigError: a part is duplicate, missing or from another evaluation.
    """
    ids = tuple(sorted(category["id"] for category in categories))
    areas = list(params.area_ranges)
    filled = np.zeros((len(ids) if params.use_cats else 1, len(areas)), np.int64)
    whole = blank_arrays(ids, params)
    for part, piece in arrays.items():
        part_params(part, categories, params)
        at_categories = slice(None) if part.category_id is None else slice(*_span(ids.index(part.category_id)))
        at_areas = slice(None) if part.area is None else slice(*_span(areas.index(part.area)))
        whole.precision[:, :, at_categories, at_areas] = piece.precision
        whole.recall[:, at_categories, at_areas] = piece.recall
        whole.scores[:, :, at_categories, at_areas] = piece.scores
        filled[at_categories, at_areas] += 1
    if (filled != 1).any():
        row, column = np.argwhere(filled != 1)[0]
        category = ids[row] if params.use_cats else None
        raise ConfigError(
            f"{Part(category, areas[column])} is in {filled[row, column]} of {len(arrays)} parts. "
            "Pass each part of the evaluation exactly once, also parts without images."
        )
    return metrics_from_arrays(whole, categories, params)


def _span(position: int) -> tuple[int, int]:
    return position, position + 1


def by_category(checked: Checked) -> dict[int, Checked]:
    """Divides entries by category, each with the images that have entries of it; keeps the order."""
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
        mine, theirs = annotations.get(category_id, []), divided.get(category_id, detections[:0])
        ids = {annotation["image_id"] for annotation in mine} | set(column(theirs, "image_id").astype(int).tolist())
        partitions[category_id] = Checked([images[image_id] for image_id in sorted(ids)], mine, theirs)
    return partitions


def _rows_by_category(rows: Rows) -> dict[int, Rows]:
    rows = rows[np.argsort(rows[:, 6], kind="stable")]
    category_ids, starts = np.unique(rows[:, 6], return_index=True)
    # Without rows there is one partition, which is empty.
    return dict(zip(category_ids.astype(int).tolist(), np.split(rows, starts[1:]), strict=False))


def _results_by_category(results: Sequence[Entry]) -> dict[int, list[Entry]]:
    divided: dict[int, list[Entry]] = defaultdict(list)
    for result in results:
        divided[result["category_id"]].append(result)
    return divided
