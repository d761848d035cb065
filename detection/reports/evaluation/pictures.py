"""Images of the report: encoded small and once each, as many as the page has bytes for."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from PIL import Image

from detection.analysis.analysis_file import ImageFindings
from detection.images.drawing import eight_bit_rgb
from detection.reports.evaluation.panels import Region

LONGEST_SIDE = 512  # pixels
CROP_SIDE = 256  # pixels
MEDIA_TYPE = "image/webp"

_QUALITY = 68

# Image id -> the decoded image as stored (no EXIF rotation); None where it cannot be had.
PictureSource = Callable[[int], Image.Image | None]


class Wanted(NamedTuple):
    """A picture that the page would show.

    key: equal for equal pictures.
    image_id: of the image.
    region: part of it, pixels; None: all of it.
    markup: bytes that the page needs for it beside the picture itself.
    """

    key: str
    image_id: int
    region: Region | None
    markup: int


class Picture(NamedTuple):
    """An encoded picture, and the part of its image that it shows: all, or what lies inside it of what was wanted."""

    webp: bytes
    region: Region


class Encoded(NamedTuple):
    """Pictures that are shown, and why others are not.

    pictures: by key.
    shown: positions in what was wanted.
    unreadable: number that the source did not have.
    left_out: number that the page had no bytes left for.
    """

    pictures: Mapping[str, Picture]
    shown: frozenset[int]
    unreadable: int
    left_out: int


def encode_pictures(wanted: Sequence[Wanted], source: PictureSource, *, budget: int) -> Encoded:
    """Encodes pictures until the budget is spent.

    Args:
        wanted: the most interesting first.
        source: of the images.
        budget: bytes of the page for all of them.
    """
    pictures: dict[str, Picture | None] = {}
    shown: set[int] = set()
    done = 0
    for want in wanted:
        known = want.key in pictures
        picture = pictures[want.key] if known else _encoded(source(want.image_id), want.region)
        cost = want.markup + (0 if known or picture is None else _page_bytes(picture.webp))
        if picture is not None and cost > budget:
            break
        pictures[want.key] = picture
        if picture is not None:
            budget -= cost
            shown.add(done)
        done += 1
    readable = {key: picture for key, picture in pictures.items() if picture is not None}
    return Encoded(readable, frozenset(shown), done - len(shown), len(wanted) - done)


def measured(found: ImageFindings, source: PictureSource | None) -> ImageFindings:
    """The findings with the image's own size where the ground truth does not tell it."""
    if not source or (found.width > 0 and found.height > 0):
        return found
    image = source(found.image_id)
    return replace(found, width=image.width, height=image.height) if image else found


def _encoded(image: Image.Image | None, wanted: Region | None) -> Picture | None:
    if image is None:
        return None
    region = _inside(wanted or Region(0, 0, *image.size), *image.size)
    if not (region.width > 0 and region.height > 0):
        return None
    scale = min(1.0, (CROP_SIDE if wanted else LONGEST_SIDE) / max(region.width, region.height))
    size = max(1, round(region.width * scale)), max(1, round(region.height * scale))
    small = eight_bit_rgb(image.crop(region.corners)).resize(size, Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    small.save(stream, "WEBP", quality=_QUALITY)
    return Picture(stream.getvalue(), region)


def _inside(region: Region, width: int, height: int) -> Region:
    left, top, right, bottom = region.corners
    return Region(left, top, min(right, width) - left, min(bottom, height) - top)


def _page_bytes(encoded: bytes) -> int:
    """In base 64."""
    return len(encoded) * 4 // 3 + 4
