"""Encodes an image file and its COCO entries as a `tf.train.Example`."""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from detection.datasets.annotations.annotation_checks import Context, lies_inside, valid_annotations, without_nan
from detection.datasets.annotations.entry_rules import WRITABLE, is_crowd
from detection.datasets.annotations.packed_entries import EntriesTooLargeError, pack_entries
from detection.datasets.issues import ImageIssues, Issue
from detection.datasets.od_api_keys import od_api_values
from detection.images.files import ImageFileError
from detection.images.inspect import ImageFile, converted, inspect_image, turned
from detection.storage.json_files import serialize
from schemas import features
from schemas.config.issues import IssuePolicies
from schemas.quoting import one_line

_SHOWN = 1000  # max characters of a file name in an issue


@dataclass(frozen=True)
class Rules:
    """Rules for turning the images of a data set into records.

    policies: policies for issues.
    max_pixels: max pixels per image; larger images are refused before decoding.
    category_names: category id -> name, for all categories.
    keypoints: category id -> number of keypoints, for categories with keypoints.
    ignored: ids of categories for regions to ignore.
    od_api_keypoints: names of keypoints by category id, to write masks and keypoints under the keys of the TF Object
        Detection API, too; None: they are in the packed entries only.
    """

    policies: IssuePolicies
    max_pixels: int
    category_names: Mapping[int, str]
    keypoints: Mapping[int, int]
    ignored: frozenset[int] = frozenset()
    od_api_keypoints: Mapping[int, Sequence[str]] | None = None

    def context(self, file: ImageFile) -> Context:
        """Returns the values that annotations of an image are checked against."""
        return Context(file.height, file.width, self.keypoints, self.ignored)


class Record(NamedTuple):
    """One image as a record, or the issues why it was dropped.

    example: None: the image was dropped.
    file: the image as stored in the record; None: dropped.
    annotations: annotations in the record.
    issues: issues of the image and its annotations.
    """

    example: tf.train.Example | None
    file: ImageFile | None
    annotations: Sequence[Mapping[str, Any]]
    issues: list[Issue]


def make_record(
    image: Mapping[str, Any],
    annotations: Sequence[Mapping[str, Any]],
    *,
    read: Callable[[], bytes],
    split: str,
    rules: Rules,
) -> Record:
    """Reads and checks one image, and encodes its valid annotations.

    Args:
        image: the image's entry in the COCO file.
        annotations: its annotations.
        read: returns the image file's bytes; may raise `ImageFileError`.
        split: name of the split, for the issues.
        rules: rules for turning images into records.
    """
    where = f"{split}: {one_line(image['file_name'][:_SHOWN])}"
    issues = ImageIssues(rules.policies, where=where, image_id=image["id"])
    file = _usable(image, read, rules.max_pixels, issues)
    fitted = None if file is None else _fit(image, annotations, file, issues)
    if fitted is None:
        return Record(None, None, [], issues.issues)
    image, file = fitted
    valid = valid_annotations(annotations, rules.context(file), issues)
    try:
        try:
            example = _encoded(file, image, valid, rules)
        except ValueError:  # NaN anywhere in the entries
            valid = without_nan(valid, issues)
            example = _encoded(file, image, valid, rules)
    except EntriesTooLargeError as error:
        issues.add("entry", str(error))
        return Record(None, None, [], issues.issues)
    return Record(example, file, valid, issues.issues)


def _encoded(
    file: ImageFile, image: Mapping[str, Any], annotations: Sequence[Mapping[str, Any]], rules: Rules
) -> tf.train.Example:
    example = encode_example(file, image, annotations, category_names=rules.category_names)
    if rules.od_api_keypoints is not None:
        more = od_api_values(annotations, height=file.height, width=file.width, keypoints=rules.od_api_keypoints)
        for key, values in more.items():
            feature = example.features.feature[key]
            kind = {bytes: feature.bytes_list, int: feature.int64_list, float: feature.float_list}[type(values[0])]
            kind.value.extend(values)
    return example


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
        image: the image's entry in the COCO file.
        annotations: its annotations, with valid boxes; boxes that exceed the image are clipped
            in the normalised features, but not in the packed entries.
        category_names: category id -> name.

    Raises:
        EntriesTooLargeError: the entries exceed the JSON size of a record.
        ValueError: NaN or Infinity in an entry.
    """
    boxes = [annotation["bbox"] for annotation in annotations]
    categories = [annotation["category_id"] for annotation in annotations]
    # Filled in place: assigning a message to another one copies it, with the image.
    example = tf.train.Example()
    values = example.features.feature

    def put_bytes(key: str, *texts: bytes | str) -> None:
        values[key].bytes_list.value.extend([text.encode() if isinstance(text, str) else text for text in texts])

    def put_ints(key: str, numbers: Iterable[int]) -> None:
        values[key].int64_list.value.extend(numbers)

    def put_floats(key: str, numbers: Iterable[float]) -> None:
        values[key].float_list.value.extend(numbers)

    put_bytes(features.ENCODED, file.data)
    put_bytes(features.FORMAT, file.format)
    put_bytes(features.FILENAME, image["file_name"])
    put_bytes(features.SOURCE_ID, str(image["id"]))
    put_bytes(features.SHA256, hashlib.sha256(file.data).hexdigest())
    put_ints(features.HEIGHT, [file.height])
    put_ints(features.WIDTH, [file.width])
    put_floats(features.BBOX_XMIN, [_fraction(x, file.width) for x, _, _, _ in boxes])
    put_floats(features.BBOX_XMAX, [_fraction(x + width, file.width) for x, _, width, _ in boxes])
    put_floats(features.BBOX_YMIN, [_fraction(y, file.height) for _, y, _, _ in boxes])
    put_floats(features.BBOX_YMAX, [_fraction(y + height, file.height) for _, y, _, height in boxes])
    put_ints(features.CLASS_LABEL, categories)
    put_bytes(features.CLASS_TEXT, *(category_names[category] for category in categories))
    put_ints(features.IS_CROWD, [int(is_crowd(annotation)) for annotation in annotations])
    put_floats(features.AREA, [_area(annotation) for annotation in annotations])
    if weights := _weights(annotations):
        put_floats(features.WEIGHT, weights)
    put_bytes(features.COCO, pack_entries(image, annotations))
    return example


def _weights(annotations: Sequence[Mapping[str, Any]]) -> list[float]:
    """Returns the annotations' fields `weight`, 1 if absent; [] if none has one, or one is not 0 to 1e9."""
    weights = [annotation.get("weight", 1.0) for annotation in annotations]
    valid = all(type(weight) in (int, float) and 0 <= weight <= 1e9 for weight in weights)
    return weights if valid and any("weight" in annotation for annotation in annotations) else []


def _usable(
    image: Mapping[str, Any], read: Callable[[], bytes], max_pixels: int, issues: ImageIssues
) -> ImageFile | None:
    """Returns the image file, converted if the policy says so; None: drop the image."""
    data = b""
    try:
        serialize(image)
        if image.get("width", 1) * image.get("height", 1) > max_pixels:
            raise ImageFileError(
                "image_huge",
                f"declared as {image['width']}x{image['height']} pixels, more than data.max_pixels = {max_pixels}. "
                "Raise it, or scale the image down.",
            )
        data = read()
        file = inspect_image(data, max_pixels=max_pixels)
        if file.lost and issues.add("image_contrast", file.lost) != "keep":
            return None
        return file
    except ImageFileError as error:
        if issues.add(error.kind, str(error)) != "fix":
            return None
    except ValueError:
        issues.add("entry", f"the image's entry {WRITABLE.issue(image)}")
        return None
    try:
        return converted(data)
    except ImageFileError as error:
        issues.add(error.kind, str(error))
        return None


def _fit(
    image: Mapping[str, Any], annotations: Sequence[Mapping[str, Any]], file: ImageFile, issues: ImageIssues
) -> tuple[Mapping[str, Any], ImageFile] | None:
    """Returns an entry and a file of the same size; None: drop the image.

    The declared size determines whether boxes refer to the stored pixels or to the pixels
    rotated as an EXIF tag says.
    """
    declared = (image.get("width", file.width), image.get("height", file.height))
    if declared == (file.width, file.height):
        if file.orientation == 1 or not annotations:
            return image, file
        message = (
            f"its EXIF tag (orientation {file.orientation}) tells viewers to turn or mirror it; boxes refer to "
            "the stored pixels. If they fit the image as viewers show it: --set data.on_fault.image_tagged=fix."
        )
        policy = issues.add("image_tagged", message)
        if policy != "fix":
            return (image, file) if policy == "keep" else None
        file = turned(file)
        return {**image, "width": file.width, "height": file.height}, file
    if file.turned and declared == (file.height, file.width):
        message = (
            f"declared as {declared[0]}x{declared[1]} pixels, the size of the stored {file.width}x{file.height} image "
            "after the rotation in its EXIF tag. Store the image rotated and without the tag, or rotate it with "
            "--set data.on_fault.image_turned=fix."
        )
        return (image, turned(file)) if issues.add("image_turned", message) == "fix" else None
    inside = all(lies_inside(one["bbox"], width=file.width, height=file.height) for one in annotations)
    message = (
        f"declared as {declared[0]}x{declared[1]} pixels, the file has {file.width}x{file.height}. "
        "Correct the entry or the file."
    )
    if issues.add("image_size", message, fixable=inside) != "fix":
        return None
    return {**image, "width": file.width, "height": file.height}, file


def _fraction(position: float, length: int) -> float:
    return min(max(position / length, 0.0), 1.0)


def _area(annotation: Mapping[str, Any]) -> float:
    area = annotation.get("area")
    if isinstance(area, int | float) and math.isfinite(area):
        return float(area)
    return float(annotation["bbox"][2] * annotation["bbox"][3])
