"""What a foreign record holds that COCO has no place for."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from detection.datasets.importers import keys
from detection.datasets.importers.parsing import Record, short_float
from schemas import features

# Read as what they are, or made anew from the image's bytes.
_UNDERSTOOD = {value for name, value in vars(features).items() if name.isupper()} | {
    keys.MASK,
    keys.POLYGON,
    keys.KEYPOINT_X,
    keys.KEYPOINT_Y,
    keys.KEYPOINT_VISIBILITY,
    keys.KEYPOINT_TEXT,
    keys.KEYPOINT_NUM,
}
# Fields of COCO's images and annotations, which nothing else may be taken for.
_TAKEN = {
    "id", "image_id", "category_id", "bbox", "area", "iscrowd", "segmentation", "keypoints", "num_keypoints",
    "file_name", "height", "width", "source_id", "license",
}  # fmt: skip


def extra_names(found: Iterable[str]) -> dict[str, str]:
    """Key -> field name, of the keys of a data set that COCO has no place for.

    The name is the last part of the key, or, where that is taken, all of its parts.
    """
    extras = sorted(set(found) - _UNDERSTOOD)
    count = Counter(_last(key) for key in extras)
    return {
        key: _last(key) if count[_last(key)] == 1 and _last(key) not in _TAKEN else key.replace("/", "_")
        for key in extras
    }


def split_extras(record: Record, count: int, names: Mapping[str, str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The extra fields of an image's entry, and of each of its annotations.

    Values of keys of objects that can be shared out among the objects go to the
    annotations.  Bytes that are no text are left out: JSON has no place for them.

    Args:
        record: the record.
        count: its objects.
        names: what `extra_names` gives for the data set.
    """
    image: dict[str, Any] = {}
    objects: list[dict[str, Any]] = [{} for _ in range(count)]
    for key in sorted(names.keys() & record.keys()):
        values = list(map(_plain, record[key]))
        if key.startswith(keys.OBJECT_PREFIX) and count and len(values) % count == 0:
            size = len(values) // count
            for row, entry in enumerate(objects):
                _put(entry, names[key], values[row * size : (row + 1) * size])
        else:
            _put(image, names[key], values)
    return image, objects


def _put(entry: dict[str, Any], name: str, values: list[Any]) -> None:
    if any(value is not None for value in values):
        entry[name] = values[0] if len(values) == 1 else values


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return short_float(value) if math.isfinite(value) else None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return value


def _last(key: str) -> str:
    return key.rpartition("/")[2]
