"""Image files: whether training can decode them, and what they are."""

import io
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf
from PIL import Image

from detection.data.decode_image import decode_rgb

# Pillow's name -> ours, of what TensorFlow decodes.  MPO: several JPEGs in one
# file, as phones write under .jpg; decoders take the first.
_FORMATS = {"JPEG": "jpeg", "MPO": "jpeg", "PNG": "png", "GIF": "gif", "BMP": "bmp"}
_ORIENTATION = 0x0112  # EXIF tag
_ROTATED = (5, 6, 7, 8)  # its values that swap width and height


class ImageFile(NamedTuple):
    """An image file that TensorFlow decodes.

    data: the file's bytes.
    format: "jpeg", "png", "gif" or "bmp", as found in the bytes.
    height, width: pixels, as decoded: EXIF rotation is not applied.
    turned: an EXIF tag asks viewers to swap height and width.
    """

    data: bytes
    format: str
    height: int
    width: int
    turned: bool


class ImageFileError(Exception):
    """Why an image cannot be used.

    kind: "missing", "empty", "unsupported" or "broken".
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def read_image(path: str | Path) -> ImageFile:
    """Reads an image file and decodes it in full, as training will.

    Raises:
        ImageFileError: it is missing or empty, of a format that TensorFlow does not
            decode, or broken.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ImageFileError(
            "missing", f"cannot read the image file: {error.strerror}. Put it there or correct file_name."
        ) from None
    if not data:
        raise ImageFileError("empty", "the image file has 0 bytes. Copy it again.")
    found = _header(data)
    try:
        shape = decode_rgb(tf.constant(data)).shape
    except tf.errors.InvalidArgumentError as error:
        raise ImageFileError(
            "broken", f"the image file does not decode: {_reason(data, error)}. Copy it again or convert it anew."
        ) from None
    if tuple(shape[:2]) != (found.height, found.width):
        raise ImageFileError(
            "broken",
            f"the header says {found.width}x{found.height} pixels, decoded are {shape[1]}x{shape[0]}. Convert it anew.",
        )
    return found


def _header(data: bytes) -> ImageFile:
    """What the header says; refuses early what must not be decoded, such as gigapixel claims."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            name, (width, height) = str(image.format), image.size
            turned = _is_turned(image)
    except Exception as error:  # Pillow raises whatever its format plugins raise
        reason = "no known format" if isinstance(error, Image.UnidentifiedImageError) else str(error)
        raise ImageFileError(
            "broken", f"not an image that can be read ({reason}). Copy the file again or convert it anew."
        ) from None
    if name not in _FORMATS:
        raise ImageFileError("unsupported", f"{name} is not decoded by TensorFlow. Convert the file to JPEG or PNG.")
    return ImageFile(data, _FORMATS[name], height, width, turned)


def _is_turned(image: Image.Image) -> bool:
    try:
        return image.getexif().get(_ORIENTATION) in _ROTATED
    except Exception:  # damaged EXIF data must not reject pixels that decode
        return False


def _reason(data: bytes, error: tf.errors.InvalidArgumentError) -> str:
    """Pillow's reason, which is clearer, where it has one."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
    except Exception as reason:
        return str(reason)
    return " ".join(str(error.message).split())[:200]
