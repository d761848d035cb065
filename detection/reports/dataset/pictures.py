"""Small pictures of the data report: images with an issue, and a sample of images with their ground truth."""

import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image

from detection.datasets.annotations.entries import Entry, skeleton_of
from detection.datasets.issues import Issue
from detection.datasets.masks import compressed_rle
from detection.images.drawing import draw_detections, eight_bit_rgb

LONGEST_SIDE = 320  # pixels
SAMPLES = 12  # pictures of ground truth on a page

_COLOR_ID = 0  # index of red in `category_color`
_MARGIN = 0.5  # fraction of the image's sides: boxes are shown up to this far outside the image
_GROUND = (128, 128, 128)  # background beyond the image
_COLORS = 256  # size of the palette, which needs a quarter of the bytes of full colour
_JPEG_QUALITY = 80

Rectangle = tuple[float, float, float, float]  # x, y, width, height


@dataclass(frozen=True)
class IssuePicture:
    """An image with an issue, as a small PNG.

    issue: issue of the image.
    png: the encoded picture, neither side longer than LONGEST_SIDE.
    """

    issue: Issue
    png: bytes


class SamplePicture(NamedTuple):
    """An image with its ground truth, as a small JPEG, and a line of text below it."""

    caption: str
    jpeg: bytes


def picture_of(encoded: bytes, issue: Issue, bbox: Sequence[float] | None, *, max_pixels: int) -> IssuePicture | None:
    """Renders an image with an issue.  Never raises, for any bytes.

    Args:
        encoded: the image file's content.
        issue: issue of the image.
        bbox: box to draw, (x, y, width, height) in pixels of the stored image; a box that
            exceeds the image is shown on a grey background.
        max_pixels: images with more pixels in their header are not decoded.

    Returns:
        None if the image cannot be decoded or is too large.
    """
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            width, height = image.size
            if not 0 < width * height <= max_pixels:
                return None
            return IssuePicture(issue, _png(image, _usable(bbox)))
    except Exception:  # Pillow's format plugins raise errors of many types
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

    small = _resize(image, scale)
    canvas = Image.new("RGB", (_scale(right - left, scale), _scale(bottom - top, scale)), _GROUND)
    canvas.paste(small, (round(-left * scale), round(-top * scale)))
    if bbox is not None:
        x, y, w, h = bbox
        shown = [(x - left) * scale, (y - top) * scale, w * scale, h * scale]
        canvas = Image.fromarray(draw_detections(np.asarray(canvas), [shown], [""], category_ids=[_COLOR_ID]))
    stream = io.BytesIO()
    canvas.quantize(_COLORS, Image.Quantize.FASTOCTREE).save(stream, "PNG")
    return stream.getvalue()


def _reach(interval: tuple[float, float] | None, side: int) -> tuple[float, float]:
    """Returns the range shown along one side: the image and, within the margin, an interval (start, length)."""
    start, length = interval or (0.0, 0.0)
    low, high = -_MARGIN * side, (1 + _MARGIN) * side
    return min(0.0, max(start, low)), max(float(side), min(start + length, high))


def _scale(side: float, scale: float) -> int:
    return max(1, round(side * scale))


def spread_over_categories(images: Sequence[tuple[int, Sequence[int]]]) -> list[int]:
    """Chooses images so that each category is shown before any is shown twice, as far as possible.

    Args:
        images: image id and category ids of each image, in random order.

    Returns:
        Ids of up to SAMPLES of the images.
    """
    shown: Counter[int] = Counter()
    left = list(images)
    chosen: list[int] = []
    while left and len(chosen) < SAMPLES:
        best = min(left, key=lambda image: min(shown[category_id] for category_id in image[1]))
        left.remove(best)
        chosen.append(best[0])
        shown.update(best[1])
    return chosen


def sample_picture(
    encoded: bytes, annotations: Sequence[Entry], categories: Mapping[int, Entry], *, caption: str
) -> SamplePicture:
    """Draws an image with the boxes, masks and keypoints of its annotations.

    Args:
        encoded: content of a valid image file.
        annotations: valid COCO annotations.
        categories: category id -> COCO category.
        caption: text below the picture.
    """
    with Image.open(io.BytesIO(encoded)) as image:
        width, height = image.size
        scale = LONGEST_SIDE / max(width, height)  # a small image is enlarged: tags have the same size on all
        small = np.asarray(_resize(image, scale))
    picture = draw_detections(
        small,
        [[scale * value for value in annotation["bbox"]] for annotation in annotations],
        [categories[annotation["category_id"]]["name"] for annotation in annotations],
        category_ids=[annotation["category_id"] for annotation in annotations],
        masks=[compressed_rle(one.get("segmentation"), height=height, width=width) for one in annotations],
        keypoints=[np.reshape(one.get("keypoints", ()), (-1, 3)) * [scale, scale, 1.0] for one in annotations],
        skeletons=[skeleton_of(categories[one["category_id"]]) for one in annotations],
    )
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "JPEG", quality=_JPEG_QUALITY)
    return SamplePicture(caption, stream.getvalue())


def _resize(image: Image.Image, scale: float) -> Image.Image:
    """Returns an opened image in RGB, resized."""
    width, height = image.size
    # JPEGs decode faster at a fraction of their size.
    image.draft("RGB", (math.ceil(width * scale), math.ceil(height * scale)))
    return eight_bit_rgb(image).resize((_scale(width, scale), _scale(height, scale)), Image.Resampling.LANCZOS)
