"""Pictures from a folder of image files."""

import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from detection.images.files import ImageFileError, read_file
from detection.reports.evaluation.pictures import PictureSource
from schemas.config.issues import MAX_PIXELS
from schemas.errors import DataError

# What Pillow decodes by itself: for EPS and the like it starts other programs.
_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP")


def pictures_in(folder: str | Path, images: Iterable[Mapping[str, Any]]) -> PictureSource:
    """The image files below a folder.

    Args:
        folder: that the file names are relative to.
        images: COCO's, with `id` and `file_name`.

    Returns:
        A source that has no picture where the file is missing, leads out of the folder,
        cannot be decoded, or has more than MAX_PIXELS.

    Raises:
        DataError: there is no such folder.
    """
    root = str(folder)
    if not os.path.isdir(root):
        raise DataError(f"{folder}: no folder of images. Name the one that holds the ground truth's files.")
    names = {image["id"]: str(image.get("file_name", "")) for image in images}

    def picture(image_id: int) -> Image.Image | None:
        try:
            return _decoded(read_file(root, names[image_id], max_pixels=MAX_PIXELS))
        except (KeyError, ImageFileError):
            return None

    return picture


def _decoded(data: bytes) -> Image.Image | None:
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
        if image.width * image.height > MAX_PIXELS:
            return None
        image.load()
    except Exception:  # Pillow raises whatever its format plugins raise
        return None
    return image
