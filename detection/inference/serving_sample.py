"""The serving sample: a few evaluated images with the model's outputs, which a served model has to reproduce.

The file is a NumPy archive of plain arrays, so that a process without Cocoflow can read it.
Image n, counted from 0, has the arrays `n/id` (int64), `n/name` (UTF-8 bytes), `n/encoded` (the
file's bytes) and `n/<output>` for each output of `serving_default`: its rows of valid
detections, without the batch dimension.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from detection.storage.atomic import write_bytes
from detection.storage.files import read_bytes
from detection.types import EncodedImage
from schemas import serving
from schemas.errors import DataError

Array = npt.NDArray[Any]

_ID, _NAME, _ENCODED = "id", "name", "encoded"


class ServedImage(NamedTuple):
    """An evaluated image.

    image_id: COCO id.
    name: file name.
    encoded: the encoded image.
    outputs: valid rows [n, ...] of each output of `serving_default`, best first; masks as
        RLE are bytes, pasted masks have the size of the image.
    """

    image_id: int
    name: str
    encoded: bytes
    outputs: Mapping[str, Array]


def served_images(outputs: Mapping[str, Array], images: Sequence[EncodedImage]) -> list[ServedImage]:
    """Splits the outputs of a batch by image.

    Args:
        outputs: see `SignatureDetector.outputs`.
        images: the images of the batch.
    """
    return [
        ServedImage(image.image_id, image.name, image.encoded, _rows(outputs, position, image))
        for position, image in enumerate(images)
    ]


def _rows(outputs: Mapping[str, Array], position: int, image: EncodedImage) -> dict[str, Array]:
    count = int(outputs[serving.COUNT][position])
    rows = {name: value[position, :count] for name, value in outputs.items() if name != serving.COUNT}
    masks = rows.get(serving.MASKS)
    if masks is not None and masks.dtype == np.uint8:
        rows[serving.MASKS] = masks[:, : image.height, : image.width]
    if masks is not None and masks.dtype == object:
        rows[serving.MASKS] = masks.astype(np.bytes_)
    return rows


def serving_sample_bytes(images: Iterable[ServedImage]) -> bytes:
    """Returns the content of a sample's file; the same images give the same bytes."""
    arrays: dict[str, Any] = {}
    for number, image in enumerate(images):
        arrays |= {
            f"{number}/{_ID}": np.array(image.image_id, np.int64),
            f"{number}/{_NAME}": np.frombuffer(image.name.encode(errors="replace"), np.uint8),
            f"{number}/{_ENCODED}": np.frombuffer(image.encoded, np.uint8),
        }
        arrays |= {f"{number}/{name}": rows for name, rows in image.outputs.items()}
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def write_serving_sample(path: str | Path, images: Iterable[ServedImage]) -> None:
    """Writes a sample.

    Raises:
        DataError: the file cannot be written.
    """
    write_bytes(path, serving_sample_bytes(images))


def read_serving_sample(path: str | Path) -> list[ServedImage]:
    """Reads what `write_serving_sample` wrote.

    Raises:
        DataError: the file cannot be read, or is not a sample.
    """
    try:
        with np.load(io.BytesIO(read_bytes(path)), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        count = len({name.partition("/")[0] for name in arrays})
        return [_image(arrays, number) for number in range(count)]
    except (ValueError, KeyError, OSError, EOFError) as error:  # from NumPy's parsers
        raise DataError(f"{path}: not a sample of served images ({error}). Run the evaluator again.") from None


def _image(arrays: Mapping[str, Array], number: int) -> ServedImage:
    own = {name.partition("/")[2]: value for name, value in arrays.items() if name.partition("/")[0] == str(number)}
    return ServedImage(
        image_id=int(own.pop(_ID)),
        name=own.pop(_NAME).tobytes().decode(),
        encoded=own.pop(_ENCODED).tobytes(),
        outputs=own,
    )
