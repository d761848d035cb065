"""The figures of a COCO evaluation: their names and how each follows from the arrays.

Source: `summarize` of pycocotools' cocoeval.py, with one slip of it mended: its AP
is -1 whenever the largest `max_dets` is not 100 (20 for keypoints).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

UNDEFINED = -1.0  # a figure without any ground truth to measure it on


@dataclass(frozen=True)
class Figure:
    """One figure: the mean over the defined values of a part of an array.

    name: as it appears in files, tables and thresholds.
    array: precision gives an AP, recall an AR.
    area: name of the range of object areas.
    iou: the only IoU threshold counted; None: the mean over all.
    max_dets: which of the `max_dets`, by position.
    """

    name: str
    array: Literal["precision", "recall"]
    area: str = "all"
    iou: float | None = None
    max_dets: int = -1


_BOX_FIGURES = (
    Figure("AP", "precision"),
    Figure("AP50", "precision", iou=0.5),
    Figure("AP75", "precision", iou=0.75),
    Figure("APs", "precision", area="small"),
    Figure("APm", "precision", area="medium"),
    Figure("APl", "precision", area="large"),
    Figure("AR1", "recall", max_dets=0),
    Figure("AR10", "recall", max_dets=1),
    Figure("AR100", "recall"),
    Figure("ARs", "recall", area="small"),
    Figure("ARm", "recall", area="medium"),
    Figure("ARl", "recall", area="large"),
)
_KEYPOINT_FIGURES = (
    Figure("AP", "precision"),
    Figure("AP50", "precision", iou=0.5),
    Figure("AP75", "precision", iou=0.75),
    Figure("APm", "precision", area="medium"),
    Figure("APl", "precision", area="large"),
    Figure("AR", "recall"),
    Figure("AR50", "recall", iou=0.5),
    Figure("AR75", "recall", iou=0.75),
    Figure("ARm", "recall", area="medium"),
    Figure("ARl", "recall", area="large"),
)

# By IoU type, in the order of COCOeval's `stats`.
FIGURES: Mapping[str, tuple[Figure, ...]] = {
    "bbox": _BOX_FIGURES,
    "segm": _BOX_FIGURES,
    "keypoints": _KEYPOINT_FIGURES,
}


def figure_value(
    figure: Figure,
    precision: FloatArray,
    recall: FloatArray,
    *,
    iou_thresholds: Sequence[float],
    area_names: Sequence[str],
) -> float:
    """Value of one figure.

    Args:
        figure: which one.
        precision: float64 [T, R, K, A, M], -1 where there is no ground truth.
        recall: float64 [T, K, A, M], likewise.
        iou_thresholds: the T thresholds.
        area_names: the names of the A area ranges.

    Returns:
        0 <= value <= 1, or -1 where it is undefined: no ground truth, or an IoU
        threshold or area range that was not evaluated.
    """
    if figure.area not in area_names:
        return UNDEFINED
    values = precision if figure.array == "precision" else recall
    values = values[..., list(area_names).index(figure.area), figure.max_dets]
    if figure.iou is not None:
        values = values[np.isclose(iou_thresholds, figure.iou, rtol=0.0, atol=1e-9)]
    return mean_of_defined(values)


def mean_of_defined(values: FloatArray) -> float:
    """Mean of the values that are defined (above -1); -1 where none is."""
    defined = values[values > UNDEFINED]
    return float(np.mean(defined)) if defined.size else UNDEFINED
