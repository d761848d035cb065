"""The page itself: everything put into the template, and written."""

import io
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from detection.datasets.issues import Issue
from detection.images.drawing import draw_detections, eight_bit_rgb
from detection.reports.dataset.sections import summary_sections
from detection.reports.dataset.summary import category_table, image_table, kinds_of, verdict
from detection.reports.dataset.tables import IssueCounts, Splits, issue_counts, issue_table, split_table
from detection.reports.html.render import render_page
from detection.storage.atomic import write_text
from schemas.artifacts import QUARANTINE_JSONL
from schemas.config.issues import IssuePolicies

LISTED_ISSUES = 200
PICTURES_OF_A_KIND = 4

_TEMPLATE = "report.html.j2"
LONGEST_SIDE = 320  # pixels

_COLOR_ID = 0  # red, of drawing's colours
_MARGIN = 0.5  # of the image's sides: how far beyond the image a box is shown
_GROUND = (128, 128, 128)  # beyond the image
_COLORS = 256  # of the palette: a quarter of the bytes of full colour


Rectangle = tuple[float, float, float, float]  # x, y, width, height


@dataclass(frozen=True)
class IssuePicture:
    """An image with an issue, as a small PNG.

    issue: of the image.
    png: the encoded picture, neither side longer than LONGEST_SIDE.
    """

    issue: Issue
    png: bytes


def write_report(
    path: str | Path,
    *,
    title: str,
    splits: Splits,
    categories: Sequence[Mapping[str, Any]],
    issues: Sequence[Issue],
    examples: Sequence[IssuePicture] = (),
    omitted: IssueCounts | None = None,
    concerned: Mapping[int, int] | None = None,
) -> None:
    """Writes the report: one HTML file that needs nothing else, whole or not at all.

    Args:
        path: of the file.
        title: heading, such as the data set's folder.
        splits: name -> its summary, in the order of the columns; may be empty.
        categories: COCO's of the whole data set, with `id` and `name`.
        issues: the issues; the first LISTED_ISSUES are listed.
        examples: pictures; PICTURES_OF_A_KIND of each kind are shown.
        omitted: (kind, policy) -> number of issues that are not in `issues`, if a
            caller does not keep all; they are counted, too.
        concerned: category id -> number of annotations that have an issue, or whose
            image has one.

    Raises:
        DataError: the file cannot be written.
    """
    counts = issue_counts(issues, omitted or {})
    gallery = _gallery(examples)
    anchors = {example.issue: _anchor(kind, at) for kind, shown in gallery for at, example in enumerate(shown)}
    sections = summary_sections(splits, categories) if any(part.images for part in splits.values()) else []
    page = render_page(
        __package__,
        _TEMPLATE,
        title=title,
        verdict=verdict(splits, counts),
        tiles=_tiles(splits, categories, counts),
        images=image_table(issues, anchors),
        categories=category_table(concerned or {}, categories),
        kinds=kinds_of(issues, counts),
        splits=split_table(splits, categories),
        gallery=gallery,
        anchor=_anchor,
        listed=issue_table(issues[:LISTED_ISSUES]),
        more=sum(counts.values()) - len(issues[:LISTED_ISSUES]),
        more_in=QUARANTINE_JSONL,
        sections=sections,
    )
    write_text(path, page)


def _tiles(splits: Splits, categories: Sequence[Mapping[str, Any]], counts: IssueCounts) -> dict[str, int]:
    """The numbers of the first screen, by name."""
    return {
        "valid images": sum(part.images for part in splits.values()),
        "valid annotations": sum(part.annotations for part in splits.values()),
        "categories": len(categories),
        "issues": sum(counts.values()),
    }


def _anchor(kind: str, number: int) -> str:
    """The id of a picture on the page."""
    return f"picture-{kind}-{number}"


def _gallery(examples: Sequence[IssuePicture]) -> list[tuple[str, list[IssuePicture]]]:
    """Kind -> the first pictures of it, in the order of `IssuePolicies`."""
    by_kind: dict[str, list[IssuePicture]] = defaultdict(list)
    for example in examples:
        if len(by_kind[example.issue.kind]) < PICTURES_OF_A_KIND:
            by_kind[example.issue.kind].append(example)
    return [(kind, by_kind[kind]) for kind in IssuePolicies.model_fields if kind in by_kind]


def picture_of(encoded: bytes, issue: Issue, bbox: Sequence[float] | None, *, max_pixels: int) -> IssuePicture | None:
    """Renders an image with an issue.  Never raises, whatever the bytes are.

    Args:
        encoded: the image file's content.
        issue: of the image.
        bbox: box to draw, (x, y, width, height) in pixels of the image as stored; a
            box that reaches beyond the image is shown on grey around it.
        max_pixels: images with more, by their header, are not decoded.

    Returns:
        None if the image cannot be decoded or is too large.
    """
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            width, height = image.size
            if not 0 < width * height <= max_pixels:
                return None
            return IssuePicture(issue, _png(image, _usable(bbox)))
    except Exception:  # Pillow raises whatever its format plugins raise
        return None


def _usable(bbox: Sequence[float] | None) -> Rectangle | None:
    try:
        x, y, width, height = (float(value) for value in bbox or ())
    except (TypeError, ValueError, OverflowError):
        return None
    return (x, y, width, height) if all(map(math.isfinite, (x, y, width, height))) else None


def _png(image: Image.Image, bbox: Rectangle | None) -> bytes:
    width, height = image.size
    left, right = _reach(bbox and (bbox[0], bbox[2]), width)
    top, bottom = _reach(bbox and (bbox[1], bbox[3]), height)
    scale = min(1.0, LONGEST_SIDE / max(right - left, bottom - top))

    # JPEGs decode at a fraction of the size where that is enough.
    image.draft("RGB", (math.ceil(width * scale), math.ceil(height * scale)))
    small = eight_bit_rgb(image).resize((_scaled(width, scale), _scaled(height, scale)), Image.Resampling.LANCZOS)
    canvas = Image.new("RGB", (_scaled(right - left, scale), _scaled(bottom - top, scale)), _GROUND)
    canvas.paste(small, (round(-left * scale), round(-top * scale)))
    if bbox is not None:
        x, y, w, h = bbox
        shown = [(x - left) * scale, (y - top) * scale, w * scale, h * scale]
        canvas = Image.fromarray(draw_detections(np.asarray(canvas), [shown], [""], category_ids=[_COLOR_ID]))
    stream = io.BytesIO()
    canvas.quantize(_COLORS, Image.Quantize.FASTOCTREE).save(stream, "PNG")
    return stream.getvalue()


def _reach(interval: tuple[float, float] | None, side: int) -> tuple[float, float]:
    """Computes the range shown along one side: the image and, within the margin, an interval (start, length)."""
    start, length = interval or (0.0, 0.0)
    low, high = -_MARGIN * side, (1 + _MARGIN) * side
    return min(0.0, max(start, low)), max(float(side), min(start + length, high))


def _scaled(side: float, scale: float) -> int:
    return max(1, round(side * scale))
