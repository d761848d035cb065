"""Boxes to draw for the ground truth and detections of an image, styled by status."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from detection.analysis.analysis_file import ERROR_TYPES, Box, ImageResult
from detection.images.drawing import LineStyle, Skeleton
from detection.reports.html.table import shown_name

_GREY = (176, 176, 176)


class Status(NamedTuple):
    """Status of a ground-truth box or a detection as text, and the style of its box.

    Colours and dashes both differ, so either is sufficient.
    """

    words: str
    style: LineStyle


# By `Box.status`; statuses of ground truth first.
STATUSES: Mapping[str, Status] = {
    "matched": Status("matched", LineStyle((0, 163, 108))),
    "Miss": Status("FN", LineStyle((255, 59, 48), (6, 3))),
    "crowd": Status("crowd, ignored", LineStyle(_GREY, (1, 2))),
    "TP": Status("TP", LineStyle((0, 163, 108))),
    "Cls": Status(ERROR_TYPES["Cls"], LineStyle((192, 76, 255), (8, 3))),
    "Loc": Status(ERROR_TYPES["Loc"], LineStyle((255, 159, 10), (4, 3))),
    "Both": Status(ERROR_TYPES["Both"], LineStyle((255, 94, 168), (8, 3, 2, 3))),
    "Dupe": Status(ERROR_TYPES["Dupe"], LineStyle((50, 173, 230), (2, 2))),
    "Bkg": Status(ERROR_TYPES["Bkg"], LineStyle((255, 221, 51), (6, 2))),
    "ignored": Status("ignored", LineStyle(_GREY, (1, 2))),
}
GROUND_TRUTH_STATUSES = ("matched", "Miss", "crowd")
DETECTION_STATUSES = tuple(status for status in STATUSES if status not in GROUND_TRUTH_STATUSES)


class StyledBox(NamedTuple):
    """A box to draw: x, y, width, height in pixels of the image, status, text of its tag; the rest is that of `Box`."""

    bbox: Sequence[float]
    status: str
    text: str
    mask: Mapping[str, Any] | None
    keypoints: Sequence[float]
    skeleton: Skeleton

    @classmethod
    def of(cls, box: Box, names: Mapping[int, str]) -> "StyledBox":
        """Styles a box of an analysis."""
        return cls(box.bbox, box.status, _text(box, names), box.mask, box.keypoints, box.skeleton)


def ground_truth_boxes(result: ImageResult, names: Mapping[int, str]) -> list[StyledBox]:
    """Returns the boxes of the ground truth, false negatives first."""
    ordered = sorted(result.ground_truth, key=lambda box: box.status != "Miss")
    return [StyledBox.of(box, names) for box in ordered]


def detection_boxes(result: ImageResult, names: Mapping[int, str]) -> list[StyledBox]:
    """Returns the boxes of the detections, false positives first, by descending score within each group."""
    ordered = sorted(result.detections, key=lambda box: (box.status not in ERROR_TYPES, -(box.score or 0.0)))
    return [StyledBox.of(box, names) for box in ordered]


def category_name(category_id: int, names: Mapping[int, str]) -> str:
    """Returns a category's name in a form for display, or its id if it has no name."""
    return shown_name(names.get(category_id) or f"category {category_id}")


def _text(box: Box, names: Mapping[int, str]) -> str:
    name = category_name(box.category_id, names)
    return name if box.score is None else f"{name} {box.score:.2f}"
