"""An evaluation divided by category and area range, each part small enough for one worker.

Matching in COCO knows no other category and no other area range, so every metric of
the whole follows from the parts, bit for bit.
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
    """What of an evaluation one accumulator holds.

    category_id: None: all of them, the only choice where categories are not told apart.
    area: name of an area range; None: all of them.
    """

    category_id: int | None = None
    area: str | None = None


WHOLE = Part()


def parts_of(categories: Sequence[Entry], params: Params) -> list[Part]:
    """The smallest parts that an evaluation has: one per category and area range."""
    ids: list[int | None] = sorted(category["id"] for category in categories) if params.use_cats else [None]
    return [Part(category_id, area) for category_id in ids for area in params.area_ranges]


def part_params(part: Part, categories: Sequence[Entry], params: Params) -> Params:
    """The params of a part: those of the whole with one area range, if it has one of its own.

    Raises:
        ConfigError: the evaluation has no such part.
    """
    if part.category_id is not None and not params.use_cats:
        raise ConfigError(f"{part}: categories are not told apart, so the state cannot be divided by them.")
    if part.category_id is not None and part.category_id not in {category["id"] for category in categories}:
        raise ConfigError(f"{part}: no such category. Give one of the data set's ids.")
    if part.area is None:
        return params
    if part.area not in params.area_ranges:
        raise ConfigError(f"{part}: no such area range, only {', '.join(params.area_ranges)}.")
    return replace(params, area_ranges={part.area: params.area_ranges[part.area]})


def metrics_of_parts(arrays: Mapping[Part, Arrays], categories: Sequence[Entry], params: Params) -> CocoMetrics:
    """Puts the whole together.

    Args:
        arrays: each part's `MetricsAccumulator.arrays()`; together they are the whole.
        categories: of the whole data set.
        params: of the whole.

    Raises:
        ConfigError: a part is duplicate, missing or of another evaluation.
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
            f"{Part(category, areas[column])} is there {filled[row, column]} times among {len(arrays)} parts. "
            "Give each part of the evaluation exactly once; one without any image, too."
        )
    return metrics_from_arrays(whole, categories, params)


def _span(position: int) -> tuple[int, int]:
    return position, position + 1


def by_category(checked: Checked) -> dict[int, Checked]:
    """Divides entries by category, each with the images that have some of it; orders are kept."""
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
    # Without rows there is one partition, an empty one.
    return dict(zip(category_ids.astype(int).tolist(), np.split(rows, starts[1:]), strict=False))


def _results_by_category(results: Sequence[Entry]) -> dict[int, list[Entry]]:
    divided: dict[int, list[Entry]] = defaultdict(list)
    for result in results:
        divided[result["category_id"]].append(result)
    return divided
