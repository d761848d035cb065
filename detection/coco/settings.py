"""What is fixed before an evaluation starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from detection.coco.figures import FIGURES
from schemas.errors import ConfigError

AreaRanges = Mapping[str, tuple[float, float]]

IOU_THRESHOLDS: tuple[float, ...] = tuple(np.linspace(0.5, 0.95, 10).tolist())
MAX_DETS = (1, 10, 100)
KEYPOINT_MAX_DETS = (20,)
RECALLS = 101  # recall thresholds 0, 0.01, ... 1
_HUGE = 1e5**2
# Square pixels of the object's `area`; both ends belong to the range.
_AREA_RANGES: AreaRanges = {
    "all": (0.0, _HUGE),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, _HUGE),
}
_KEYPOINT_AREA_RANGES: AreaRanges = {name: _AREA_RANGES[name] for name in ("all", "medium", "large")}


@dataclass(frozen=True)
class Settings:
    """Parameters of COCOeval.

    iou_type: `bbox`, `segm` or `keypoints`.
    max_dets: ascending numbers of best detections an image that are counted.
    use_cats: False evaluates as if there were one category.
    iou_thresholds: matches count from these IoU values on.
    area_ranges: name -> (least, greatest) area, square pixels.
    """

    iou_type: str
    max_dets: tuple[int, ...]
    use_cats: bool
    iou_thresholds: tuple[float, ...]
    area_ranges: AreaRanges


def make_settings(
    iou_type: str = "bbox",
    *,
    max_dets: Sequence[int] = MAX_DETS,
    use_cats: bool = True,
    iou_thresholds: Sequence[float] | None = None,
    area_ranges: AreaRanges | None = None,
) -> Settings:
    """Checks the parameters and fills COCO's own defaults in.

    Args:
        iou_type: `bbox`, `segm` or `keypoints`.
        max_dets: three ascending numbers; for keypoints one, and the default then
            means COCO's 20.
        use_cats: False evaluates as if there were one category.
        iou_thresholds: default 0.50, 0.55, ... 0.95.
        area_ranges: name -> (least, greatest) area in square pixels; default `all`,
            `small` (to 32²), `medium` (to 96²), `large`; keypoints have no `small`.

    Raises:
        ConfigError: a value that COCOeval has no meaning for.
    """
    if iou_type not in FIGURES:
        raise ConfigError(f"iou_type {iou_type!r}: choose one of {', '.join(FIGURES)}.")
    keypoints = iou_type == "keypoints"
    if keypoints and tuple(max_dets) == MAX_DETS:
        max_dets = KEYPOINT_MAX_DETS
    count = len(KEYPOINT_MAX_DETS if keypoints else MAX_DETS)
    if len(max_dets) != count or any(number < 1 for number in max_dets) or sorted(set(max_dets)) != list(max_dets):
        raise ConfigError(
            f"max_dets {tuple(max_dets)}: {iou_type} takes {count} ascending positive number(s), "
            f"such as {KEYPOINT_MAX_DETS if keypoints else MAX_DETS}."
        )
    thresholds = tuple(IOU_THRESHOLDS if iou_thresholds is None else iou_thresholds)
    if not thresholds or not all(0.0 < threshold <= 1.0 for threshold in thresholds):
        raise ConfigError(f"iou_thresholds {thresholds}: give at least one number above 0 and up to 1.")
    default_ranges = _KEYPOINT_AREA_RANGES if keypoints else _AREA_RANGES
    ranges = dict(default_ranges if area_ranges is None else area_ranges)
    if "all" not in ranges:
        raise ConfigError(f"area_ranges {sorted(ranges)}: a range named 'all' is needed, such as (0, 1e10).")
    return Settings(iou_type, tuple(max_dets), use_cats, thresholds, ranges)
