"""From an image file and its COCO entries to a `tf.train.Example`."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from detection.coco.annotations import is_crowd
from detection.coco.packing import pack_entries
from detection.data.image_files import ImageFile, ImageFileError, read_image
from schemas import features

MARGIN = 1.0  # pixels that a box may reach beyond its image: annotation tools round


@dataclass(frozen=True)
class Fault:
    """What is wrong with one image or annotation, and what to do.

    kind: "missing", "empty", "unsupported", "broken" or "size" of an image;
        "box-size" or "box-outside" of an annotation.
    annotation_id: None where the image is at fault.
    """

    kind: str
    split: str
    file_name: str
    image_id: int
    annotation_id: int | None
    message: str

    def __str__(self) -> str:
        annotation = "" if self.annotation_id is None else f", annotation {self.annotation_id}"
        return f"{self.split}: {self.file_name} (image {self.image_id}{annotation}): {self.message}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def make_record(
    image: Mapping[str, Any],
    annotations: Sequence[Mapping[str, Any]],
    *,
    images: str | Path,
    split: str,
    category_names: Mapping[int, str],
) -> tuple[tf.train.Example | None, list[Fault]]:
    """Reads and checks one image, and encodes what is sound.

    Args:
        image: the image's entry of the COCO file.
        annotations: its annotations.
        images: folder that `file_name` is relative to.
        split: name of the split, for the faults.
        category_names: category id -> name, of every category.

    Returns:
        The record, None where the image itself is at fault, and the faults.
        Annotations at fault are left out of the record altogether.
    """
    where = {"split": split, "file_name": image["file_name"], "image_id": image["id"]}
    try:
        file = read_image(Path(images, image["file_name"]))
        _check_size(image, file)
    except ImageFileError as fault:
        return None, [Fault(kind=fault.kind, annotation_id=None, message=str(fault), **where)]
    faults, sound = [], []
    for annotation in annotations:
        fault_found = box_fault(annotation["bbox"], height=file.height, width=file.width)
        if fault_found is None:
            sound.append(annotation)
        else:
            kind, message = fault_found
            faults.append(Fault(kind=kind, annotation_id=annotation["id"], message=message, **where))
    return encode_example(file, image, sound, category_names=category_names), faults


def box_fault(bbox: Sequence[float], *, height: int, width: int) -> tuple[str, str] | None:
    """What is wrong with a COCO box, as (kind, message); None where nothing is.

    Args:
        bbox: (x, y, width, height) in pixels.
        height: of the image, pixels.
        width: of the image, pixels.
    """
    x, y, box_width, box_height = bbox
    if not all(map(math.isfinite, bbox)) or box_width <= 0 or box_height <= 0:
        return "box-size", f"bbox {list(bbox)} has no area. Correct the box or remove the annotation."
    beyond = max(-x, -y, x + box_width - width, y + box_height - height)
    nothing_left = x >= width or y >= height or x + box_width <= 0 or y + box_height <= 0
    if beyond > MARGIN or nothing_left:
        return (
            "box-outside",
            f"bbox {list(bbox)} (x, y, width, height) lies outside the {width}x{height} image. "
            "Correct the box, or remove the annotation.",
        )
    return None


def encode_example(
    file: ImageFile,
    image: Mapping[str, Any],
    annotations: Sequence[Mapping[str, Any]],
    *,
    category_names: Mapping[int, str],
) -> tf.train.Example:
    """Encodes one image with the keys of `schemas.features`.

    Args:
        file: the image file.
        image: the image's entry of the COCO file.
        annotations: its annotations, with sound boxes; those that reach beyond the
            image are clipped in the normalised features, not in the packed entries.
        category_names: category id -> name.
    """
    boxes = [annotation["bbox"] for annotation in annotations]
    categories = [annotation["category_id"] for annotation in annotations]
    values = {
        features.ENCODED: _bytes(file.data),
        features.FORMAT: _bytes(file.format),
        features.FILENAME: _bytes(image["file_name"]),
        features.SOURCE_ID: _bytes(str(image["id"])),
        features.SHA256: _bytes(hashlib.sha256(file.data).hexdigest()),
        features.HEIGHT: _ints([file.height]),
        features.WIDTH: _ints([file.width]),
        features.BBOX_XMIN: _floats([_share(x, file.width) for x, _, _, _ in boxes]),
        features.BBOX_XMAX: _floats([_share(x + width, file.width) for x, _, width, _ in boxes]),
        features.BBOX_YMIN: _floats([_share(y, file.height) for _, y, _, _ in boxes]),
        features.BBOX_YMAX: _floats([_share(y + height, file.height) for _, y, _, height in boxes]),
        features.CLASS_LABEL: _ints(categories),
        features.CLASS_TEXT: _bytes(*(category_names[category] for category in categories)),
        features.IS_CROWD: _ints([int(is_crowd(annotation)) for annotation in annotations]),
        features.AREA: _floats([_area(annotation) for annotation in annotations]),
        features.COCO: _bytes(pack_entries(image, annotations)),
    }
    return tf.train.Example(features=tf.train.Features(feature=values))


def _check_size(image: Mapping[str, Any], file: ImageFile) -> None:
    declared = (image.get("width", file.width), image.get("height", file.height))
    if declared == (file.width, file.height):
        return
    advice = "Correct the entry, or put the right file there."
    if file.turned and declared == (file.height, file.width):
        advice = "An EXIF tag turns the picture: store it turned and without the tag, as the boxes are drawn."
    raise ImageFileError(
        "size", f"declared as {declared[0]}x{declared[1]} pixels, the file has {file.width}x{file.height}. {advice}"
    )


def _share(position: float, length: int) -> float:
    return min(max(position / length, 0.0), 1.0)


def _area(annotation: Mapping[str, Any]) -> float:
    area = annotation.get("area")
    if isinstance(area, int | float) and math.isfinite(area):
        return float(area)
    return float(annotation["bbox"][2] * annotation["bbox"][3])


def _bytes(*values: bytes | str) -> tf.train.Feature:
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=encoded))


def _ints(values: Sequence[int]) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def _floats(values: Sequence[float]) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))
