"""The figures of a COCO evaluation: their names and how each follows from the arrays.

Source: `summarize` of pycocotools' cocoeval.py, with one slip of it mended: its AP
is -1 whenever the largest `max_dets` is not 100 (20 for keypoints); and of LVIS'
eval.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from detection.coco.params import KEYPOINT_MAX_DETS, MAX_DETS, Params

FloatArray = npt.NDArray[np.float64]

_OWN: tuple[tuple[str, Literal["precision", "recall"]], ...] = (("AP", "precision"), ("AR", "recall"))
FREQUENCIES = {"r": "rare", "c": "common", "f": "frequent"}  # of LVIS' categories
UNDEFINED = -1.0  # a figure without any ground truth to measure it on


@dataclass(frozen=True)
class Figure:
    """One figure: the mean over the defined values of a part of an array.

    name: as it appears in files, tables and thresholds.
    array: precision gives an AP, recall an AR.
    area: name of the range of object areas.
    iou: the only IoU threshold counted; None: the mean over all.
    max_dets: which of the `max_dets`, by position.
    frequency: LVIS' rare (`r`), common or frequent categories only; None: all.
    standard: whether it is one of COCOeval's, or LVISEval's, `stats`.
    """

    name: str
    array: Literal["precision", "recall"]
    area: str = "all"
    iou: float | None = None
    max_dets: int = -1
    frequency: str | None = None
    standard: bool = True


_PRECISIONS = (
    Figure("AP", "precision"),
    Figure("AP50", "precision", iou=0.5),
    Figure("AP75", "precision", iou=0.75),
    Figure("APs", "precision", area="small"),
    Figure("APm", "precision", area="medium"),
    Figure("APl", "precision", area="large"),
)
_KEYPOINT_FIGURES = (
    *(figure for figure in _PRECISIONS if figure.area != "small"),
    Figure("AR", "recall"),
    Figure("AR50", "recall", iou=0.5),
    Figure("AR75", "recall", iou=0.75),
    Figure("ARm", "recall", area="medium"),
    Figure("ARl", "recall", area="large"),
)


def _coco_figures(iou_type: str, max_dets: Sequence[int]) -> tuple[Figure, ...]:
    if iou_type == "keypoints":
        return _KEYPOINT_FIGURES
    return (
        *_PRECISIONS,
        *(Figure(f"AR{most}", "recall", max_dets=position) for position, most in enumerate(max_dets)),
        Figure("ARs", "recall", area="small"),
        Figure("ARm", "recall", area="medium"),
        Figure("ARl", "recall", area="large"),
    )


def _lvis_figures(most: int) -> tuple[Figure, ...]:
    return (
        *_PRECISIONS,
        *(Figure(f"AP{frequency}", "precision", frequency=frequency) for frequency in FREQUENCIES),
        Figure(f"AR@{most}", "recall"),
        Figure(f"ARs@{most}", "recall", area="small"),
        Figure(f"ARm@{most}", "recall", area="medium"),
        Figure(f"ARl@{most}", "recall", area="large"),
    )


# With COCO's own `max_dets` and area ranges, by IoU type, in the order of COCOeval's `stats`.
FIGURES: Mapping[str, tuple[Figure, ...]] = {
    "bbox": _coco_figures("bbox", MAX_DETS),
    "segm": _coco_figures("segm", MAX_DETS),
    "keypoints": _coco_figures("keypoints", KEYPOINT_MAX_DETS),
}


def figures_of(params: Params) -> tuple[Figure, ...]:
    """The figures of an evaluation: COCO's or LVIS', then those of area ranges that they do not know."""
    known = _lvis_figures(params.max_dets[-1]) if params.lvis else _coco_figures(params.iou_type, params.max_dets)
    others = [name for name in params.area_ranges if name not in {figure.area for figure in known}]
    own = [Figure(f"{prefix}_{name}", array, area=name, standard=False) for name in others for prefix, array in _OWN]
    return (*known, *own)


def figure_value(
    figure: Figure,
    precision: FloatArray,
    recall: FloatArray,
    *,
    iou_thresholds: Sequence[float],
    area_names: Sequence[str],
    frequencies: Sequence[str] = (),
) -> float:
    """Value of one figure.

    Args:
        figure: which one.
        precision: float64 [T, R, K, A, M], -1 where there is no ground truth.
        recall: float64 [T, K, A, M], likewise.
        iou_thresholds: the T thresholds.
        area_names: the names of the A area ranges.
        frequencies: of the K categories, for figures that ask for one.

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
    if figure.frequency is not None:
        values = values[..., np.array(frequencies) == figure.frequency]
    return mean_of_defined(values)


def mean_of_defined(values: FloatArray) -> float:
    """Mean of the values that are defined (above -1); -1 where none is."""
    defined = values[values > UNDEFINED]
    return float(np.mean(defined)) if defined.size else UNDEFINED
