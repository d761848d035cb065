"""Pages with pictures: sources of images, and as many small encoded pictures as fit into the file."""

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup
from PIL import Image

from detection.analysis.analysis_file import ImageResult
from detection.images.drawing import eight_bit_rgb
from detection.images.files import ImageFileError, read_file
from detection.images.tags import Rectangle, text_color
from detection.reports.box_styles import STATUSES
from detection.reports.evaluation.panels import Figure, Region
from detection.reports.html.render import render_page
from detection.storage.atomic import write_text
from detection.storage.files import is_dir
from schemas.config.issues import MAX_PIXELS
from schemas.errors import DataError

LONGEST_SIDE = 512  # pixels
CROP_SIDE = 256  # pixels

_QUALITY = 68

# Image id -> the decoded image as stored (no EXIF rotation); None if not available.
PictureSource = Callable[[int], Image.Image | None]

# Formats that Pillow decodes by itself: for EPS and others it starts other programs.
_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")

MOST_BYTES = 5_000_000

_SLACK = 20_000  # bytes
_NONE = "This page has no pictures: there were no image files."

Galleries = Mapping[str, Sequence[Figure]]


class Picture(NamedTuple):
    """An encoded picture, and its region of the image in pixels."""

    webp: bytes
    region: Region


class Encoded(NamedTuple):
    """Pictures to show, and numbers of the others.

    pictures: pictures by key.
    shown: the figures with a picture.
    unreadable: number of pictures missing in the source.
    left_out: number of pictures beyond the budget.
    """

    pictures: Mapping[str, Picture]
    shown: Sequence[Figure]
    unreadable: int
    left_out: int


def encode_pictures(figures: Sequence[Figure], source: PictureSource, *, budget: int) -> Encoded:
    """Encodes the pictures of figures until the budget is spent.

    Args:
        figures: figures, the most interesting first.
        source: source of the images.
        budget: max bytes of the page for all of them, with their markup.
    """
    pictures: dict[str, Picture | None] = {}
    shown: list[Figure] = []
    unreadable = 0
    for figure in figures:
        known = figure.key in pictures
        picture = pictures[figure.key] if known else _encoded(source(figure.image_id), figure.region)
        pictures[figure.key] = picture
        if picture is None:
            unreadable += 1
            continue
        budget -= figure.markup + (0 if known else len(picture.webp) * 4 // 3 + 4)  # base 64
        if budget < 0:
            break
        shown.append(figure)
    readable = {figure.key: picture for figure in shown if (picture := pictures[figure.key]) is not None}
    return Encoded(readable, shown, unreadable, len(figures) - len(shown) - unreadable)


def measured(image: ImageResult, source: PictureSource | None) -> ImageResult:
    """Returns the result with the image's size if the ground truth does not have it."""
    if not source or (image.width > 0 and image.height > 0):
        return image
    picture = source(image.image_id)
    return replace(image, width=picture.width, height=picture.height) if picture else image


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


def pictures_in(folder: str | Path, images: Iterable[Mapping[str, Any]]) -> PictureSource:
    """Reads the image files below a folder.

    Args:
        folder: folder that the file names are relative to.
        images: COCO `images`, with `id` and `file_name`.

    Returns:
        A source that returns None if a file is missing, is outside of the folder, cannot be
        decoded, or has more than MAX_PIXELS; raises DataError if Cloud Storage does not respond.

    Raises:
        DataError: there is no such folder.
    """
    root = str(folder)
    if not is_dir(root):
        raise DataError(f"{folder}: no such folder of images. Specify the folder of the ground truth's images.")
    names = {image["id"]: str(image.get("file_name", "")) for image in images}

    def picture(image_id: int) -> Image.Image | None:
        try:
            return _decode(read_file(root, names[image_id], max_pixels=MAX_PIXELS))
        except (KeyError, ImageFileError):
            return None

    return picture


def _decode(data: bytes) -> Image.Image | None:
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
        if image.width * image.height > MAX_PIXELS:
            return None
        image.load()
    except Exception:  # Pillow's format plugins raise errors of many types
        return None
    return image


class Shown(NamedTuple):
    """Figures and pictures on the page.

    galleries: name -> figures.
    pictures: pictures by the figures' keys.
    note: a sentence on pictures that are not shown; "" if all are.
    """

    galleries: Galleries
    pictures: Mapping[str, Picture]
    note: str


def write_illustrated_page(
    path: str | Path,
    template: str,
    *,
    scripts: Sequence[str],
    galleries: Galleries,
    source: PictureSource | None,
    content: Callable[[Shown], Mapping[str, Any]],
) -> None:
    """Writes a page atomically.

    The file has at most MOST_BYTES: the least interesting pictures are dropped.  The first pictures
    of all galleries come before the second ones, and so on.

    Args:
        path: path of the HTML file.
        template: file name in this package; it gets `shown`, `statuses` and the content.
        scripts: names of JavaScript files, as in `render_page`.
        galleries: name -> figures, the most interesting first.
        source: source of the images; None: no image files.
        content: returns the content of the template for the figures shown.

    Raises:
        DataError: the file cannot be written.
    """
    # Without pictures first: pictures get the remaining bytes.
    shown = Shown({name: [] for name in galleries}, {}, _NONE)
    page = _render(template, scripts, shown, content)
    if source:
        wanted = [figure for rank in zip_longest(*galleries.values()) for figure in rank if figure is not None]
        encoded = encode_pictures(wanted, source, budget=MOST_BYTES - _SLACK - len(page.encode()))
        kept = set(map(id, encoded.shown))
        figures = {name: [one for one in gallery if id(one) in kept] for name, gallery in galleries.items()}
        page = _render(template, scripts, Shown(figures, _stored(encoded), _note(encoded)), content)
    write_text(path, page)


def _render(template: str, scripts: Sequence[str], shown: Shown, content: Callable[[Shown], Mapping[str, Any]]) -> str:
    return render_page(
        __package__,
        template,
        scripts=scripts,
        filters={"pixels": _pixels, "rectangle": _rectangle, "text_color": text_color, "dashes": _dashes},
        shown=shown,
        statuses=STATUSES,
        **content(shown),
    )


def _stored(encoded: Encoded) -> dict[str, Picture]:
    """Returns pictures by key: complete images fill their figures' view, crops keep their region."""
    pictures = encoded.pictures
    return {
        figure.key: pictures[figure.key] if figure.region else pictures[figure.key]._replace(region=figure.view)
        for figure in encoded.shown
    }


def _note(encoded: Encoded) -> str:
    notes = []
    if encoded.unreadable:
        notes.append(f"{encoded.unreadable:,} pictures are not shown: their images could not be read.")
    if encoded.left_out:
        notes.append(f"{encoded.left_out:,} pictures, the least interesting, were left out to keep this file small.")
    return " ".join(notes)


def _pixels(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def _rectangle(rectangle: Rectangle) -> Markup:
    left, top, right, bottom = rectangle
    values = {"x": left, "y": top, "width": right - left, "height": bottom - top}
    return Markup(" ".join(f'{name}="{_pixels(value)}"' for name, value in values.items()))


def _dashes(dash: Sequence[float]) -> str:
    """Returns a dash pattern in pixels: lines are two pixels wide."""
    return " ".join(f"{2 * length:g}" for length in dash)
