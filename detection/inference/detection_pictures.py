"""Pictures of the detections of `predict`: a contact sheet of the first images, or a full-size picture per image."""

import io
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from detection.datasets.annotations.entries import Entry, skeleton_of
from detection.images.decode import decode_rgb
from detection.images.drawing import Picture, contact_sheet, draw_detections
from detection.images.files import has_image_suffix, read_header
from detection.images.orientation import upright_boxes, upright_mask, upright_pixels, upright_points
from detection.inference.results import Results
from detection.storage.atomic import write_bytes
from detection.storage.files import is_dir, is_file
from detection.storage.paths import absolute, join, suffix
from detection.types import EncodedImage
from schemas.errors import ConfigError
from schemas.quoting import one_line

_SHEET_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
_FORMATS = {**_SHEET_FORMATS, ".gif": "GIF", ".bmp": "BMP"}
_IMAGES = 12  # on a sheet
_SIDE = 384  # pixels of the longer side of each image on a sheet
MIN_DRAWN_SCORE = 0.3  # unless the user sets another


def is_sheet(destination: str | Path) -> bool:
    """Returns whether `--draw` is the file of a contact sheet; otherwise it is a folder.

    Raises:
        ConfigError: a file in another format, or an existing file instead of a folder.
    """
    if is_dir(destination):
        return False
    if suffix(destination).lower() in _SHEET_FORMATS:
        return True
    if has_image_suffix(str(destination)):
        raise ConfigError(
            f"--draw {one_line(destination)}: a picture of the first images is PNG or JPEG: use a name that ends in "
            f"{', '.join(_SHEET_FORMATS)}, or pass a folder for a picture of each image."
        )
    if is_file(destination):
        raise ConfigError(f"--draw {one_line(destination)}: this is a file. Pass a folder, or a .png or .jpg file.")
    return False


def picture_files(paths: Sequence[str], folder: str | Path) -> dict[str, str]:
    """Returns the file in `folder` for the picture of each image.

    Images keep their names, with as many parent folders as make them unique.  Formats other than
    JPEG, PNG, GIF and BMP get the suffix `.png`.

    Args:
        paths: image files, local or remote.
        folder: destination.

    Raises:
        ConfigError: two images would have the same file.
    """
    parts = {path: _parts(path) for path in paths}
    columns = zip(*(names[:-1] for names in parts.values()), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda names: len(set(names)) == 1, columns))
    files: dict[str, str] = {}
    for path, names in parts.items():
        more = "" if suffix(path).lower() in _FORMATS else ".png"
        files[path] = join(folder, *names[shared:-1], names[-1] + more)
    if len(set(files.values())) < len(files):
        raise ConfigError(
            f"--draw {one_line(folder)}: two of --images would have the same file. Pass only one of them."
        )
    return files


def _parts(path: str) -> list[str]:
    return [name for name in os.path.normpath(absolute(path)).split("/") if name]


class DetectionPictures:
    """Draws detections on upright images and writes the pictures.

    Args:
        destination: file of a contact sheet, or folder (see `is_sheet`), into which each picture is
            written as soon as its image is added.
        paths: all images, by the names passed to `add`.
        categories: COCO categories of the model; a category without a name is shown by its id.
        min_score: min score of drawn detections.

    Raises:
        ConfigError: `destination` or a picture is invalid; see `is_sheet` and `picture_files`.
    """

    def __init__(
        self, destination: str | Path, paths: Sequence[str], *, categories: Sequence[Entry], min_score: float
    ) -> None:
        self._destination = destination
        self._files = None if is_sheet(destination) else picture_files(paths, destination)
        self._categories = categories
        self._min_score = min_score
        self._sheet: list[Picture] = []

    def add(self, image: EncodedImage, results: Results) -> None:
        """Draws an image with its detections.

        Raises:
            DataError: the picture cannot be written.
        """
        if self._files is None and len(self._sheet) == _IMAGES:
            return
        if self._files is None:
            self._sheet.append(self._draw(image, results, scale=_SIDE / max(image.height, image.width)))
        else:
            _write(self._files[image.name], self._draw(image, results), quality=95)

    def finish(self) -> str:
        """Writes the sheet, if any, and returns the destination.

        Raises:
            DataError: the sheet cannot be written.
        """
        if self._files is None:
            sheet = contact_sheet(self._sheet, columns=min(4, len(self._sheet)))
            _write(str(self._destination), sheet, quality=85, optimize=True)
        return str(self._destination)

    def _draw(self, image: EncodedImage, results: Results, *, scale: float = 1.0) -> Picture:
        return draw_results(image, results, self._categories, min_score=self._min_score, scale=scale)


def draw_results(
    image: EncodedImage,
    results: Results,
    categories: Sequence[Entry],
    *,
    min_score: float = MIN_DRAWN_SCORE,
    scale: float = 1.0,
) -> Picture:
    """Draws the detections of an image on its upright pixels.

    Args:
        image: the image.
        results: its detections.
        categories: COCO categories of the model; a category without a name is shown by its id.
        min_score: min score of drawn detections.
        scale: as for `draw_detections`.

    Returns:
        As for `draw_detections`.
    """
    exif, size = read_header(image.encoded).orientation, {"height": image.height, "width": image.width}
    by_id = {category["id"]: category for category in categories}
    ids = results.category_ids.tolist()
    drawn = [by_id.get(category_id, {}) for category_id in ids]
    keypoints = results.keypoints
    if keypoints is not None:
        keypoints = np.concatenate([upright_points(keypoints[..., :2], exif, **size), keypoints[..., 2:]], axis=-1)
    return draw_detections(
        upright_pixels(decode_rgb(image.encoded).numpy(), exif),
        upright_boxes(results.boxes_xywh, exif, **size),
        [str(category.get("name", category_id)) for category, category_id in zip(drawn, ids, strict=True)],
        results.scores.tolist(),
        category_ids=ids,
        masks=None if results.masks is None else [upright_mask(rle, exif) for rle in results.masks],
        keypoints=keypoints,
        skeletons=[skeleton_of(category) for category in drawn],
        min_score=min_score,
        scale=scale,
    )


def _write(path: str, picture: Picture, **options: Any) -> None:
    """Writes a picture in the format of its suffix; Pillow ignores options of other formats."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, _FORMATS[suffix(path).lower()], **options)
    write_bytes(path, file.getvalue(), durable=False)
