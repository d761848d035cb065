"""Records for evaluation: the encoded image, and its COCO entries."""

import io
from typing import Any, NamedTuple

import tensorflow as tf
from google.protobuf.message import DecodeError
from PIL import Image

from detection.datasets.annotations.packed_entries import unpack_entries
from detection.types import EncodedImage
from schemas import features
from schemas.errors import DataError


class EvaluationRecord(NamedTuple):
    """One image with its ground truth.

    image: input of the model.
    entry: entry of the image in the COCO file's `images`.
    annotations: entries of the image in the COCO file's `annotations`.
    example: the parsed record.
    """

    image: EncodedImage
    entry: dict[str, Any]
    annotations: list[dict[str, Any]]
    example: tf.train.Example


def parse_record(serialized: bytes) -> EvaluationRecord:
    """Reads a serialized `tf.train.Example` with the keys of `schemas.features`.

    Raises:
        DataError: not an Example, or a required key is missing.
    """
    try:
        example = tf.train.Example.FromString(serialized)
    except DecodeError:
        raise DataError("a record is not a tf.train.Example. Write the examples with CocoExampleGen.") from None
    values = example.features.feature
    name = _text(values, features.FILENAME) or _text(values, features.SOURCE_ID) or "record without a name"
    needed = {
        features.ENCODED: values[features.ENCODED].bytes_list.value,
        features.COCO: values[features.COCO].bytes_list.value,
        features.HEIGHT: values[features.HEIGHT].int64_list.value,
        features.WIDTH: values[features.WIDTH].int64_list.value,
    }
    missing = [key for key, value in needed.items() if len(value) != 1]
    if missing:
        raise DataError(f"{name}: the record has no {', '.join(missing)}. Write the examples with CocoExampleGen.")
    entry, annotations = unpack_entries(needed[features.COCO][0])
    image = EncodedImage(
        image_id=entry["id"],
        name=name,
        encoded=needed[features.ENCODED][0],
        height=needed[features.HEIGHT][0],
        width=needed[features.WIDTH][0],
    )
    return EvaluationRecord(image, entry, annotations, example)


def stored_picture(record: EvaluationRecord) -> Image.Image | None:
    """Decodes the stored image; None if Pillow cannot read it."""
    try:
        image = Image.open(io.BytesIO(record.image.encoded))
        image.load()
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
    return image


def _text(values: Any, key: str) -> str:
    return b"".join(values[key].bytes_list.value[:1]).decode(errors="replace")
