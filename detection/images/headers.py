"""What an encoded image's header says, without decoding it."""

import io
from typing import NamedTuple

from PIL import Image

_ORIENTATION = 0x0112  # EXIF tag
_TURNED = (5, 6, 7, 8)  # its values that swap width and height
_SUFFIXES = {"jpeg": ".jpg", "tiff": ".tif"}


class Header(NamedTuple):
    """An image's header.

    format: Pillow's name in lower case; "jpeg" also for several JPEGs in one file.
    height, width: pixels, as stored.
    turned: an EXIF tag asks viewers to swap height and width.
    """

    format: str
    height: int
    width: int
    turned: bool


class HeaderError(Exception):
    """Why there is no header to be read.

    kind: a field of `schemas.config.faults.FaultPolicies`.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def read_header(encoded: bytes) -> Header:
    """Reads an image's header.

    Raises:
        HeaderError: it cannot be read, or claims more pixels than Pillow allows.
    """
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            name = str(image.format).lower()
            return Header("jpeg" if name == "mpo" else name, image.height, image.width, _is_turned(image))
    except Image.DecompressionBombError as error:
        raise HeaderError("image_huge", str(error)) from None
    except Exception as error:  # Pillow raises whatever its format plugins raise
        known = not isinstance(error, Image.UnidentifiedImageError)
        reason = str(error) if known else "no known format"
        raise HeaderError("image_broken", f"image/encoded is no image that can be read ({reason})") from None


def suffix_of(image_format: str) -> str:
    """The suffix of files in a format, such as ".jpg"."""
    return _SUFFIXES.get(image_format, f".{image_format}")


def has_image_suffix(name: str) -> bool:
    """Whether a file name ends as image files do."""
    return f".{name.rpartition('.')[2].lower()}" in Image.registered_extensions()


def _is_turned(image: Image.Image) -> bool:
    try:
        return image.getexif().get(_ORIENTATION) in _TURNED
    except Exception:  # damaged EXIF data must not hide the size
        return False
