"""A sheet of pictures with what a model found on them."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from detection.datasets.entries import Rows
from detection.images.decode import decode_rgb
from detection.images.drawing import contact_sheet, draw_detections
from detection.inference.restore import read_model_categories
from detection.storage.atomic import write_bytes
from detection.types import EncodedImage
from schemas.errors import ConfigError

MAX_PICTURES = 12
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
_MIN_SCORE = 0.3
_SIDE = 384  # pixels that the longer side of each picture is drawn at


class Found(NamedTuple):
    """One image and its detections, rows [n, 7] as `detection.inference.saved_model` gives them."""

    image: EncodedImage
    rows: Rows


def write_sheet(path: str | Path, found: Sequence[Found], *, model: str | Path) -> None:
    """Draws the first pictures with their better detections into one file.

    Args:
        path: to write; PNG or JPEG by its suffix.
        found: images with their detections; those beyond `MAX_PICTURES` are left out.
        model: SavedModel folder; it names the categories where it is one of ours.

    Raises:
        DataError: the file cannot be written.
    """
    names = _category_names(Path(model))
    pictures = [_draw(one, names) for one in found[:MAX_PICTURES]]
    sheet = Image.fromarray(contact_sheet(pictures, columns=min(4, len(pictures))))
    write_bytes(path, _encoded(sheet, Path(path).suffix))


def _draw(found: Found, names: dict[int, str]) -> np.ndarray:
    categories = found.rows[:, 6].astype(int).tolist()
    return draw_detections(
        decode_rgb(found.image.encoded).numpy(),
        found.rows[:, 1:5],
        [names.get(category, str(category)) for category in categories],
        found.rows[:, 5].tolist(),
        category_ids=categories,
        min_score=_MIN_SCORE,
        scale=_SIDE / max(found.image.height, found.image.width),
    )


def _category_names(model: Path) -> dict[int, str]:
    categories = read_model_categories(model) or ()
    return {int(category["id"]): str(category.get("name", category["id"])) for category in categories}


def check_picture_name(path: str | Path) -> None:
    """Refuses a file name from which no picture format follows.

    Raises:
        ConfigError: the suffix is not one of `FORMATS`.
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise ConfigError(f"--draw {path}: the name tells the format: end it in {', '.join(FORMATS)}.")


def _encoded(image: Image.Image, suffix: str) -> bytes:
    file = io.BytesIO()
    image.save(file, FORMATS[suffix.lower()], optimize=True, quality=85)
    return file.getvalue()
