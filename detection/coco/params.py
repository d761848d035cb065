"""Parameters of COCOeval with their validation, detections as rows and columns, and their limit by `max_dets`."""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from detection.datasets.annotations.entries import Entry, Ids, Rows
from detection.datasets.annotations.entry_rules import are_among, column
from schemas.errors import ConfigError, DataError
from schemas.metrics import IOU_TYPES, KEYPOINT_MAX_DETS, LVIS_MAX_DETS, MAX_DETS, parse_metric
from schemas.quoting import quoted

AreaRanges = Mapping[str, tuple[float, float]]
# One per keypoint, or by category name, in order or by keypoint name.
OksSigmas = Sequence[float] | Mapping[str, Sequence[float] | Mapping[str, float]]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

IOU_THRESHOLDS: tuple[float, ...] = tuple(np.linspace(0.5, 0.95, 10).tolist())
MOST_DETS = 10**9  # more than in any file; the engine counts in machine integers
_NO_AREA = -1.0  # in no area range, so the annotation is ignored in all ranges
_ROW = struct.Struct("=7d").pack
RECALLS = 101  # recall thresholds 0, 0.01, ... 1
_HUGE = 1e5**2
# Square pixels of the annotation's `area`; both limits are inclusive.
AREA_RANGES: AreaRanges = {
    "all": (0.0, _HUGE),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, _HUGE),
}
_KEYPOINT_AREA_RANGES: AreaRanges = {name: AREA_RANGES[name] for name in ("all", "medium", "large")}


@dataclass(frozen=True)
class Params:
    """Parameters of COCOeval.

    iou_type: `bbox`, `segm` or `keypoints`.
    max_dets: ascending numbers of detections counted per image, best first.
    use_cats: False: evaluate as if there were one category.
    iou_thresholds: min IoU values of a match.
    area_ranges: name -> (min, max) area, square pixels.
    oks_sigmas: the specified sigmas, for `fit_keypoints`.
    sigmas_of: per category id, the spread of each keypoint, as a fraction of the square root of the annotation's area.
    lvis: LVIS' federated evaluation (Gupta et al., CVPR 2019): images list the categories that
        were annotated, and the best `max_dets` are selected over all categories of the image.
    metrics: further metrics of boxes or masks, such as `pascal_voc_AP50`.
    """

    iou_type: str
    max_dets: tuple[int, ...]
    use_cats: bool
    iou_thresholds: tuple[float, ...]
    area_ranges: AreaRanges
    oks_sigmas: OksSigmas | None = None
    sigmas_of: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    lvis: bool = False
    metrics: tuple[str, ...] = ()


def make_params(
    iou_type: str = "bbox",
    *,
    max_dets: Sequence[int] | None = None,
    use_cats: bool = True,
    iou_thresholds: Sequence[float] | None = None,
    area_ranges: AreaRanges | None = None,
    oks_sigmas: OksSigmas | None = None,
    lvis: bool = False,
    metrics: Sequence[str] = (),
) -> Params:
    """Validates the parameters and fills in COCO's defaults.

    Args:
        iou_type: `bbox`, `segm` or `keypoints`.
        max_dets: three ascending numbers, default 1, 10, 100; for keypoints and LVIS
            one, default COCO's 20, LVIS' 300.
        use_cats: False: evaluate as if there were one category.
        iou_thresholds: default 0.50, 0.55, ... 0.95.
        area_ranges: name -> (min, max) area in square pixels; default `all`,
            `small` (to 32²), `medium` (to 96²), `large`; keypoints have no `small`.
        oks_sigmas: see `detection.coco.keypoint_sigmas`.
        lvis: evaluate boxes or masks as LVIS does.
        metrics: further metrics of boxes or masks, such as `pascal_voc_AP50`.

    Raises:
        ConfigError: an invalid value.
    """
    if iou_type not in IOU_TYPES:
        raise ConfigError(f"iou_type {iou_type!r}: choose one of {', '.join(IOU_TYPES)}.")
    if lvis and (iou_type == "keypoints" or not use_cats):
        raise ConfigError("lvis: LVIS compares boxes or masks, category by category: iou_type bbox or segm, use_cats.")
    thresholds = tuple(IOU_THRESHOLDS if iou_thresholds is None else iou_thresholds)
    if not thresholds or not all(0.0 < threshold <= 1.0 for threshold in thresholds):
        raise ConfigError(f"iou_thresholds {thresholds}: specify at least one number above 0 and up to 1.")
    return Params(
        iou_type=iou_type,
        max_dets=_max_dets(max_dets, iou_type, lvis=lvis),
        use_cats=use_cats,
        iou_thresholds=thresholds,
        area_ranges=_area_ranges(area_ranges, iou_type),
        oks_sigmas=_oks_sigmas(oks_sigmas, iou_type),
        lvis=lvis,
        metrics=_metrics(metrics, use_cats=use_cats and iou_type != "keypoints", lvis=lvis),
    )


def _metrics(metrics: Sequence[str], *, use_cats: bool, lvis: bool) -> tuple[str, ...]:
    if metrics and (lvis or not use_cats):
        # LVIS has other rules for ignored annotations, and for the number of detections.
        raise ConfigError(f"metrics {', '.join(metrics)}: only of boxes or masks, with use_cats, without lvis.")
    for name in metrics:
        try:
            parse_metric(name)
        except ValueError as error:
            raise ConfigError(f"metrics: {error}.") from None
    return tuple(dict.fromkeys(metrics))


def _max_dets(max_dets: Sequence[int] | None, iou_type: str, *, lvis: bool) -> tuple[int, ...]:
    default = LVIS_MAX_DETS if lvis else KEYPOINT_MAX_DETS if iou_type == "keypoints" else MAX_DETS
    if max_dets is None:
        return default
    ascending = sorted(set(max_dets)) == list(max_dets)
    allowed = all(isinstance(number, int) and 1 <= number <= MOST_DETS for number in max_dets)
    if len(max_dets) != len(default) or not allowed or not ascending:
        raise ConfigError(
            f"max_dets {quoted(tuple(max_dets))}: {'lvis' if lvis else iou_type} takes {len(default)} ascending "
            f"positive number(s), such as {default}, up to {MOST_DETS}."
        )
    return tuple(max_dets)


def _area_ranges(area_ranges: AreaRanges | None, iou_type: str) -> AreaRanges:
    if area_ranges is None:
        return dict(_KEYPOINT_AREA_RANGES if iou_type == "keypoints" else AREA_RANGES)
    if "all" not in area_ranges:
        raise ConfigError(f"area_ranges {sorted(area_ranges)}: add a range named 'all', such as (0, 1e10).")
    area_ranges = {name: (low, high) for name, (low, high) in area_ranges.items()}
    for name, (low, high) in area_ranges.items():
        if not (0 <= low <= high < math.inf):
            raise ConfigError(f"area_ranges: {name} is from {low} to {high}; specify 0 <= min <= max, square pixels.")
    if len(set(area_ranges.values())) < len(area_ranges):
        # The engine identifies ranges by their limits, and would return metrics of neither.
        raise ConfigError(f"area_ranges {area_ranges}: two have the same limits. Remove one of them.")
    return area_ranges


def _oks_sigmas(oks_sigmas: OksSigmas | None, iou_type: str) -> OksSigmas | None:
    if oks_sigmas is not None and iou_type != "keypoints":
        raise ConfigError(f"oks_sigmas: only for keypoints, but the IoU type is {iou_type}. Omit them.")
    lists = oks_sigmas.values() if isinstance(oks_sigmas, Mapping) else [] if oks_sigmas is None else [oks_sigmas]
    for sigmas in lists:
        numbers = tuple(sigmas.values() if isinstance(sigmas, Mapping) else sigmas)
        if not numbers or not all(0 < sigma < math.inf for sigma in numbers):
            raise ConfigError(f"oks_sigmas {numbers}: specify a positive number per keypoint.")
    return oks_sigmas


def counted_detections(detections: Sequence[Entry] | Rows, params: Params) -> IntArray | None:
    """Finds the detections that COCOeval evaluates, selected before matching.

    These are the best ones, up to the largest of `max_dets`, per category and image; without
    categories, per image.  Detections are ranked by score; equal scores are ranked by category
    (without categories) and position: source `computeIoU` of pycocotools' cocoeval.py, which
    sorts stably.

    Args:
        detections: COCO results, or rows float64 [N, 7] (image_id, x, y, width, height,
            score, category_id).
        params: parameters of the evaluation.

    Returns:
        Their positions, int64 [M], ascending; None: all detections.
    """
    most = params.max_dets[-1]
    if len(detections) <= most:
        return None
    images, scores, categories = (column(detections, key) for key in ("image_id", "score", "category_id"))
    if params.use_cats:
        counted = best_positions(images, scores, most, categories=categories)
    else:
        order = np.argsort(categories, kind="stable")
        counted = np.sort(order[best_positions(images[order], scores[order], most)])
    return None if len(counted) == len(detections) else counted


def lvis_annotations(annotations: Sequence[Entry]) -> list[Entry]:
    """Converts annotations for LVIS: `ignore` is respected, crowds are ordinary annotations.

    Source: lvis-api, eval.py and results.py.
    """
    return [
        {**annotation, "iscrowd": 0, "area": _NO_AREA if annotation.get("ignore") else annotation["area"]}
        for annotation in annotations
    ]


def best_of_images(detections: list[Entry] | Rows, most: int) -> list[Entry] | Rows:
    """Returns the `most` detections with the highest scores per image, in order; ties go to the first.

    Args:
        detections: detections of images, COCO results or rows [N, 7] (image_id, x, y, width,
            height, score, category_id).
        most: max detections per image, >= 1.
    """
    return chosen(detections, best_positions(column(detections, "image_id"), column(detections, "score"), most))


def best_positions(
    images: npt.NDArray[np.generic], scores: Rows, most: int, *, categories: npt.NDArray[np.generic] | None = None
) -> IntArray:
    """Finds the `most` detections with the highest scores per image; ties go to the first.

    Args:
        images: image ids [N].
        scores: float64 [N].
        most: max detections per image, >= 1.
        categories: category ids [N], to select per category and image; None: per image.

    Returns:
        Positions, int64 [M], ascending.
    """
    # Ranking takes most of the time, and few images have more than `most` detections.
    many = _repeated(images, most)
    groups = [images[many]]
    if categories is not None:
        groups.append(categories[many])
        values = [np.unique(group) for group in groups]
        image, category = (np.searchsorted(some, group) for some, group in zip(values, groups, strict=True))
        cells = _repeated(image * len(values[1]) + category, most)
        many, groups = many[cells], [group[cells] for group in groups]
    if not many.size:
        return np.arange(len(scores))
    order = np.lexsort((-scores[many], *groups))  # stable
    starts = np.zeros(len(order), bool)
    starts[:1] = True
    for group in groups:
        starts[1:] |= group[order[1:]] != group[order[:-1]]
    first = np.flatnonzero(starts)
    rank = np.arange(len(order)) - np.repeat(first, np.diff(first, append=len(order)))
    kept = np.ones(len(scores), bool)
    kept[many[order[rank >= most]]] = False
    return np.flatnonzero(kept)


def rows_of(detections: Sequence[Any]) -> Rows:
    """Converts `BoxDetection`s to rows float64 [N, 7] (image_id, x, y, width, height, score, category_id)."""
    # Twice as fast as np.array.
    packed = bytearray().join([_ROW(one.image_id, *one.bbox, one.score, one.category_id) for one in detections])
    return np.frombuffer(packed, np.float64).reshape(-1, 7)


def chosen(entries: Sequence[Any] | Rows, positions: npt.NDArray[np.int64]) -> list[Any] | Rows:
    """Returns the entries or rows at some positions."""
    if isinstance(entries, np.ndarray):
        return entries[positions]
    return [entries[position] for position in positions.tolist()]


def require_rows(rows: npt.NDArray[np.generic], iou_type: str, where: str) -> None:
    """Requires a numeric array [N, 7] (image_id, x, y, width, height, score, category_id), and boxes.

    Raises:
        DataError: another shape, type or IoU type.
    """
    if iou_type != "bbox" or rows.ndim != 2 or rows.shape[1] != 7 or rows.dtype.kind not in "iuf":
        raise DataError(
            f"{where}: an array of shape {list(rows.shape)} and type {rows.dtype} for {iou_type}. Pass boxes "
            "as numbers [N, 7] (image_id, x, y, width, height, score, category_id), masks and keypoints as "
            "COCO results."
        )


def rows_are_valid(rows: Rows, image_ids: Ids, category_ids: Ids) -> npt.NDArray[np.bool_]:
    """Returns whether each row has known ids, finite values, and a box without negative sides, bool [N]."""
    return np.logical_and.reduce(
        [
            are_among(rows[:, 0], image_ids),
            are_among(rows[:, 6], category_ids),
            # Column by column: NumPy is ten times slower along a short axis.
            *(np.isfinite(rows[:, position]) for position in range(1, 6)),
            rows[:, 3] >= 0,
            rows[:, 4] >= 0,
        ]
    )


def _repeated(values: npt.NDArray[np.generic], most: int) -> IntArray:
    """Returns the positions of values that occur more than `most` times."""
    # Detections usually come image by image: sorting one value per run of equal values takes no time.
    changes = np.ones(len(values), bool)
    changes[1:] = values[1:] != values[:-1]
    starts = np.flatnonzero(changes)
    some, places = np.unique(values[starts], return_inverse=True)
    counts = np.bincount(places, weights=np.diff(starts, append=len(values)))
    return np.flatnonzero(are_among(values, some[counts > most]))
