"""Figures of the page: ground truth and detections as shapes over an image."""

import functools
import math
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import escape
from PIL import ImageFont

from detection.analysis.analysis_file import ERROR_TYPES, ImageResult, LabelError, MaskMatch
from detection.analysis.comparison import ImageChange
from detection.images.drawing import visible_edges
from detection.images.tags import Rectangle, frame_of, place_tags, shorten
from detection.reports.box_styles import STATUSES, StyledBox, detection_boxes, ground_truth_boxes
from detection.reports.evaluation.error_tables import label_error_text, mask_match_text
from detection.reports.evaluation.overlays import Overlay, mask_overlay, outline_overlay
from detection.reports.html.table import shown_name

# CSS pixels that an image is shown at, a little more than on a phone: a wide screen shows texts a fifth larger.
_SHOWN_WIDTH, _SHOWN_HEIGHT = 385, 344
_FONT = 11  # CSS pixels
_LINE = 1.35  # heights of the font
_TAG_EDGE = 0.3  # heights of the font
_FONT_SIDE, _LETTERS = 100, 1.1  # pixels; widths of a browser's letters, in those of Pillow's font
_WIDE = ("W", "F")  # East Asian letters as wide as high
_WIDEST_TAG = 17  # heights of the font
_CROWD = 12  # boxes; above, only errors have tags
_LONGEST_OVERLAY = 512  # pixels
_NAMED = 3  # max boxes per status in an alternative text

LOOK = "look"  # status of a label-error candidate's box

_LABEL_MARGIN, _MASK_MARGIN = 0.75, 0.1  # fractions of the longer side of the box: label errors, matched masks
_LEAST_LABEL_MARGIN, _LEAST_MASK_MARGIN = 24, 6  # pixels

# Approximate bytes of the markup of a figure and of one of its boxes, without texts; upper bounds.
_FIGURE_BYTES, _SHAPE_BYTES = 1500, 350


class Region(NamedTuple):
    """A part of an image: left, top, width, height in integer pixels."""

    left: int
    top: int
    width: int
    height: int

    @property
    def corners(self) -> tuple[int, int, int, int]:
        """Left, top, right, bottom; the last two are exclusive."""
        return self.left, self.top, self.left + self.width, self.top + self.height


class Shape(NamedTuple):
    """A box in pixels of the image: its frame, status, full text and, if there is space, the position of its tag.

    edges, points: visible edges of the skeleton, and visible keypoints, as the data of SVG paths.
    """

    frame: Rectangle
    status: str
    text: str
    tag: Rectangle | None
    tag_text: str
    edges: str = ""
    points: str = ""


class Panel(NamedTuple):
    """An image with shapes, its heading and alternative text, and masks below the shapes."""

    heading: str
    alt: str
    shapes: Sequence[Shape]
    overlays: Sequence[Overlay] = ()


class Figure(NamedTuple):
    """Panels of one image below each other or side by side.

    key: key of the picture; equal for the same region of the same image.
    region: region of the image; None: the complete image.
    view: region shown, in pixels of the image.
    font: font size of the tags, pixels of the image.
    caption: counts of TP, FP and FN, or the label-error candidate.
    """

    key: str
    image_id: int
    region: Region | None
    view: Region
    font: float
    panels: Sequence[Panel]
    file_name: str
    caption: str

    def anchor(self, gallery: str) -> str:
        """Returns the id of the figure in a gallery, for links."""
        return f"{gallery}-{self.key}"

    @property
    def tag_edge(self) -> float:
        """Space on both sides of a tag's text, pixels of the image."""
        return _TAG_EDGE * self.font

    @property
    def markup(self) -> int:
        """Returns the approximate bytes in the page, without the picture."""
        shapes = [shape for panel in self.panels for shape in panel.shapes]
        texts = [text for shape in shapes for text in (shape.text, shape.tag_text, shape.edges, shape.points)]
        texts += [self.file_name, self.caption, *(panel.alt for panel in self.panels)]
        overlays = [overlay for panel in self.panels for overlay in panel.overlays]
        masks = sum(_SHAPE_BYTES + len(overlay.png) * 4 // 3 for overlay in overlays)
        return _FIGURE_BYTES + _SHAPE_BYTES * len(shapes) + sum(len(escape(text).encode()) for text in texts) + masks


def side_by_side(image: ImageResult, names: Mapping[int, str]) -> Figure:
    """Returns a figure with ground truth on the left and detections on the right."""
    boxes = {"Ground truth": ground_truth_boxes(image, names), "Detections": detection_boxes(image, names)}
    return _whole_image(image, boxes, f"{_counts(image)}, {image.tp:,} TP")


def compared(change: ImageChange, names: Mapping[int, str]) -> Figure:
    """Returns a figure with the detections and false negatives of models A and B."""
    boxes = {
        model: [box for box in ground_truth_boxes(image, names) if box.status == "Miss"] + detection_boxes(image, names)
        for model, image in (("A", change.a), ("B", change.b))
    }
    number = abs(change.errors)
    errors = f"{number:,} {'fewer' if change.errors < 0 else 'more'} error{'s' * (number != 1)}"
    return _whole_image(change.b, boxes, f"{errors} (A: {_counts(change.a)}; B: {_counts(change.b)})")


def _whole_image(image: ImageResult, panels: Mapping[str, Sequence[StyledBox]], caption: str) -> Figure:
    view = Region(0, 0, max(1, image.width), max(1, image.height))
    font = _FONT / min(_SHOWN_WIDTH / view.width, _SHOWN_HEIGHT / view.height)  # pixels of the image
    return Figure(
        key=f"image-{image.image_id}",
        image_id=image.image_id,
        region=None,
        view=view,
        font=font,
        panels=[
            Panel(name, _alt(name, boxes), _shapes(boxes, view, font), _overlays(image, boxes, view))
            for name, boxes in panels.items()
        ],
        file_name=shown_name(image.file_name),
        caption=caption,
    )


def _counts(image: ImageResult) -> str:
    return f"{image.fp:,} FP, {image.fn:,} FN"


def label_crop(error: LabelError, number: int, names: Mapping[int, str]) -> Figure:
    """Returns a figure of a label-error candidate with its surroundings; `number` is its position in the list."""
    region = _surroundings(error.bbox, _LABEL_MARGIN, _LEAST_LABEL_MARGIN)
    text = label_error_text(error, names)
    x, y, width, height = error.bbox
    shape = Shape(Rectangle(x, y, x + width, y + height), LOOK, text, None, "")
    panels = [Panel("", f"{text}.", [shape])]
    return Figure(f"label-{number}", error.image_id, region, region, 0.0, panels, shown_name(error.file_name), text)


def mask_crop(match: MaskMatch, number: int, names: Mapping[int, str]) -> Figure:
    """Returns a figure with the detection's mask filled and the ground truth's outline; `number` is its position."""
    truth, detection = match.ground_truth, match.detection
    region = _surroundings(_around(truth.bbox, detection.bbox), _MASK_MARGIN, _LEAST_MASK_MARGIN)
    scale = _overlay_scale(region)
    overlays = [] if detection.mask is None else [mask_overlay(detection.mask, STATUSES["TP"].style.color, scale=scale)]
    overlays += [] if truth.mask is None else [outline_overlay(truth.mask, scale=scale)]
    text = mask_match_text(match, names)
    panels = [Panel("", f"{text}.", [], [overlay for overlay in overlays if overlay is not None])]
    return Figure(f"mask-{number}", match.image_id, region, region, 0.0, panels, shown_name(match.file_name), text)


def _around(*boxes: Sequence[float]) -> list[float]:
    """Returns the bounding box of boxes, x, y, width, height."""
    left, top = (min(box[axis] for box in boxes) for axis in (0, 1))
    right, bottom = (max(box[axis] + box[axis + 2] for box in boxes) for axis in (0, 1))
    return [left, top, right - left, bottom - top]


def _surroundings(bbox: Sequence[float], fraction: float, pixels: int) -> Region:
    """Adds a margin to a box, a fraction of its longer side or some pixels; clips to the image's left and top."""
    x, y, width, height = bbox
    margin = max(pixels, fraction * max(width, height))
    left, top = max(0, math.floor(x - margin)), max(0, math.floor(y - margin))
    return Region(left, top, max(1, math.ceil(x + width + margin) - left), max(1, math.ceil(y + height + margin) - top))


def _shapes(boxes: Sequence[StyledBox], view: Region, font: float) -> list[Shape]:
    frames = [frame_of(box.bbox, view.width, view.height) for box in boxes]
    crowded = len(boxes) > _CROWD
    widest = min(_WIDEST_TAG, view.width / font)
    texts = [
        "" if crowded and box.status not in ERROR_TYPES else shorten(box.text, widest, _text_width) for box in boxes
    ]
    widths = [_text_width(text) * font if text else 0.0 for text in texts]
    places = place_tags(frames, widths, _LINE * font, (view.width, view.height))
    return [
        Shape(frame, box.status, f"{box.text}: {STATUSES[box.status].words}", place, text, *_paths(box))
        for frame, box, place, text in zip(frames, boxes, places, texts, strict=True)
    ]


def _paths(box: StyledBox) -> tuple[str, str]:
    points = np.reshape(box.keypoints, (-1, 3)).tolist()
    edges = [f"M{x0:.5g} {y0:.5g}L{x1:.5g} {y1:.5g}" for x0, y0, x1, y1 in visible_edges(points, box.skeleton)]
    return "".join(edges), "".join(f"M{x:.5g} {y:.5g}h0" for x, y, score in points if score > 0)


def _overlays(image: ImageResult, boxes: Sequence[StyledBox], view: Region) -> list[Overlay]:
    """Returns the masks of the boxes, the first on top, and outlines of the ground truth."""
    scale = _overlay_scale(view)
    masks = [
        mask_overlay(box.mask, STATUSES[box.status].style.color, scale=scale)
        for box in reversed(boxes)
        if box.mask is not None
    ]
    outlines = [outline_overlay(box.mask, scale=scale) for box in image.ground_truth if box.mask is not None]
    return [overlay for overlay in (*masks, *outlines) if overlay is not None]


def _overlay_scale(view: Region) -> float:
    return min(1.0, _LONGEST_OVERLAY / max(view.width, view.height))


def _text_width(text: str) -> float:
    """Estimates the width of a tag, in font heights; the page fits the text to it, whatever the reader's font."""
    wide = sum(unicodedata.east_asian_width(letter) in _WIDE for letter in text)
    narrow = "".join(letter for letter in text if unicodedata.east_asian_width(letter) not in _WIDE)
    return 2 * _TAG_EDGE + _LETTERS * _font().getlength(narrow) / _FONT_SIDE + wide


@functools.cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(_FONT_SIDE)


def _alt(heading: str, boxes: Sequence[StyledBox]) -> str:
    """Returns an alternative text: counts by status, with some errors named."""
    counts = Counter(box.status for box in boxes)
    parts = []
    for status, count in sorted(counts.items(), key=lambda item: list(STATUSES).index(item[0])):
        which = [box.text for box in boxes if box.status == status][:_NAMED]
        named = f" ({', '.join(which)}{', …' if count > len(which) else ''})" if status in ERROR_TYPES else ""
        parts.append(f"{count:,} {STATUSES[status].words}{named}")
    return f"{heading}: {', '.join(parts) or 'nothing'}."
