"""Checks whether training can decode image files, and determines their properties.

All properties refer to the stored pixels: EXIF rotation is not applied.  TensorFlow's decoder, which
training uses, decides.
"""

import hashlib
import io
import re
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from PIL import Image, ImageOps, UnidentifiedImageError

from detection.images.decode import decode_rgb_eagerly
from detection.images.files import EXIF_ORIENTATION, ImageFileError, read_header, swaps_sides
from detection.images.likeness import thumbnail

_LEVELS = 32  # min range, in 0 to 255, of the decoded values of a 16-bit image
_DECODED = ("jpeg", "png", "gif", "bmp")  # formats that TensorFlow decodes
_NODE = re.compile(r"\{\{.*?\}\}|\[Op:.*")  # TensorFlow's names of the op, before and after its reason
# Weights of the sums in a digest; odd, so that every change of a single word changes the digest.
_BLOCK = 4096
_WEIGHTS = np.random.default_rng(2**31 - 1).integers(0, 2**63, _BLOCK, np.uint64) * np.uint64(2) + np.uint64(1)
# Formats that only Pillow decodes by itself: for EPS and others it starts other programs.
_CONVERTED = ("AVIF", "BMP", "ICO", "JPEG2000", "PCX", "PPM", "SGI", "TGA", "TIFF", "WEBP")
# Modes that Pillow converts to RGB without clipping.
_CONVERTIBLE = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")


class ImageFile(NamedTuple):
    """An image that TensorFlow decodes.

    data: the bytes.
    format: "jpeg", "png", "gif" or "bmp", as found in the bytes.
    height, width: pixels, as decoded.
    mode: Pillow's name of the colour type in the file, such as "RGB", "L" or "CMYK".
    orientation: EXIF's, 1..8; 1 if there is none.
    digest: digest of the decoded pixels; equal for equal pixels in any format.
    thumbnail: see `detection.images.likeness`.
    lost: what of its 16 bits is lost for training; "": nothing that matters.
    """

    data: bytes
    format: str
    height: int
    width: int
    mode: str
    orientation: int
    digest: str
    thumbnail: bytes = b""
    lost: str = ""

    @property
    def turned(self) -> bool:
        """True if an EXIF tag makes viewers swap height and width."""
        return swaps_sides(self.orientation)


def inspect_image(data: bytes, *, max_pixels: int) -> ImageFile:
    """Determines an image's properties, and decodes it completely, as training will.

    Args:
        data: the file's bytes.
        max_pixels: larger images are refused before decoding.

    Raises:
        ImageFileError: the image is empty, too large, broken, or of a format that TensorFlow
            does not decode.
    """
    if not data:
        raise ImageFileError("image_broken", "the image file has 0 bytes. Copy it again.")
    header = read_header(data, max_pixels=max_pixels)
    if header.format not in _DECODED:
        raise ImageFileError(
            "image_unsupported",
            f"TensorFlow does not decode {header.format.upper()}. Convert the file to JPEG or PNG.",
            option="Or convert it with --set data.on_fault.image_unsupported=fix.",
        )
    try:
        pixels = decode_rgb_eagerly(data, jpeg=header.format == "jpeg")
    except tf.errors.InvalidArgumentError as error:
        reason = _reason(data, error)
        # Storing the image again fixes everything that Pillow can read.
        kind = "image_unsupported" if reason is None and header.format == "bmp" else "image_broken"
        raise ImageFileError(
            kind, f"the image file cannot be decoded: {reason or _first_words(error)}. Copy or convert it again."
        ) from None
    if pixels.shape[:2] != (header.height, header.width):
        raise ImageFileError(
            "image_broken",
            f"the header declares {header.width}x{header.height} pixels, but {pixels.shape[1]}x{pixels.shape[0]} are "
            "decoded. Convert it again.",
        )
    return ImageFile(
        data,
        header.format,
        header.height,
        header.width,
        header.mode,
        header.orientation,
        _digest(pixels),
        thumbnail(pixels),
        _lost(data, pixels),
    )


def _lost(data: bytes, pixels: np.ndarray) -> str:
    """Says so where a PNG of 16 bits, of which TensorFlow keeps the upper 8, uses a small part of its range."""
    if not data.startswith(b"\x89PNG") or data[24] != 16 or int(pixels.max()) - int(pixels.min()) >= _LEVELS:
        return ""
    values = tf.io.decode_png(data, dtype=tf.uint16).numpy()
    low, high, left = values.min(), values.max(), len(np.unique(pixels))
    if high - low < left:
        return ""
    return (
        f"its 16 bits have values from {low:,} to {high:,}, of which training sees the upper 8 bits: {left} of 256 "
        "levels are left. Scale the values to 8 bits."
    )


def converted(data: bytes) -> ImageFile:
    """Converts an image of a format that only Pillow reads to a PNG with the same pixels.

    Only for images that `inspect_image` has refused as "image_unsupported", after checking their size.

    Raises:
        ImageFileError: Pillow cannot read it either, or would clip its values.
    """
    try:
        with Image.open(io.BytesIO(data), formats=_CONVERTED) as image:
            if image.mode not in _CONVERTIBLE:
                raise ValueError(f"colours of type {image.mode} cannot be converted to 8 bits")
            return _stored(np.asarray(image.convert("RGB")), image.mode)
    except Exception as error:  # Pillow's format plugins raise errors of many types
        reason = "Pillow does not read it" if isinstance(error, UnidentifiedImageError) else error
        raise ImageFileError("image_broken", f"cannot be converted: {reason}. Convert it to PNG.") from None


def turned(file: ImageFile) -> ImageFile:
    """Rotates the image as its EXIF tag says, and stores it as PNG without the tag; no pixel value changes."""
    image = Image.fromarray(decode_rgb_eagerly(file.data, jpeg=file.format == "jpeg"))
    image.getexif()[EXIF_ORIENTATION] = file.orientation
    return _stored(np.asarray(ImageOps.exif_transpose(image)), file.mode)


def _stored(pixels: np.ndarray, mode: str) -> ImageFile:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    height, width = pixels.shape[:2]
    return ImageFile(buffer.getvalue(), "png", height, width, mode, 1, _digest(pixels), thumbnail(pixels))


def _digest(pixels: np.ndarray) -> str:
    """Computes a digest in an eighth of SHA-256's time: sums of the pixels with random weights, modulo 2**64."""
    flat = pixels.reshape(-1)
    words = flat[: flat.size // 8 * 8].view(np.uint64)
    whole = words[: words.size // _BLOCK * _BLOCK].reshape(-1, _BLOCK)
    rest = words[whole.size :]
    digest = hashlib.sha256(repr(pixels.shape).encode())
    digest.update(np.dot(whole, _WEIGHTS).tobytes())
    digest.update(np.dot(rest, _WEIGHTS[: rest.size]).tobytes())
    digest.update(flat[words.size * 8 :].tobytes())
    return digest.hexdigest()[:32]


def _reason(data: bytes, error: tf.errors.InvalidArgumentError) -> str | None:
    """Returns Pillow's reason, which is clearer; None if it decodes the image."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
    except Exception as reason:
        return str(reason) or _first_words(error)
    return None


def _first_words(error: tf.errors.InvalidArgumentError) -> str:
    return " ".join(_NODE.sub("", str(error.message)).split())[:200]
