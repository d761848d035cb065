"""Second pass over shards: converts records to images and COCO entries."""

import math
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from detection.datasets.annotations.packed_entries import unpack_entries
from detection.datasets.importers.classes import Named
from detection.datasets.importers.coco_geometry import (
    MaskError,
    coco_box,
    coco_keypoints,
    object_keypoints,
    object_masks,
    segmentation_of,
)
from detection.datasets.importers.keypoint_places import KeypointError
from detection.datasets.importers.merging import Survey
from detection.datasets.importers.source_format import (
    COCOFLOW,
    Record,
    as_text,
    corners,
    extra_fields,
    first_bytes,
    numeric_source_id,
    object_classes,
    object_count,
    parse_record,
    short_float,
    source_id,
)
from detection.datasets.importers.survey import record_name
from detection.datasets.issues import ImageIssues, Issue
from detection.images.files import Header, ImageFileError, has_image_suffix, read_header, suffix_of
from detection.storage.tfrecord import read_shard
from schemas import features
from schemas.config.issues import IssuePolicies
from schemas.errors import DataError


@dataclass(frozen=True)
class ImportedImage:
    """A record converted to COCO.

    where: the shard and the index of the record in it, for messages.
    encoded: bytes of the image file, b"" if missing.
    format: format of these bytes, such as "jpeg"; "" if they are not an image.
    entry: entry of COCO's `images`.
    annotations: entries of COCO's `annotations`.
    issues: unreadable or inconsistent values; empty for our records.
    """

    where: str
    encoded: bytes
    format: str
    entry: dict[str, Any]
    annotations: list[dict[str, Any]]
    issues: list[Issue] = field(default_factory=list)


def read_images(path: str | Path, survey: Survey, policies: IssuePolicies | None = None) -> Iterator[ImportedImage]:
    """Yields the images of a shard, in order.

    Args:
        path: one of the survey's shards.
        survey: survey of the data set.
        policies: policies for issues; None: the defaults.

    Raises:
        DataError: the shard has changed since the survey, or its packed entries are damaged.
    """
    if survey.source_format == COCOFLOW:
        yield from read_own_images(path, {category["id"] for category in survey.categories})
        return
    number, annotation = survey.first_image[str(path)], survey.first_annotation[str(path)]
    for place, data in enumerate(read_shard(path)):
        where = record_name(path, place)
        record = parse_record(data, where)
        identity = numeric_source_id(record) if survey.image_ids == "source" else None
        image_id = number + place if identity is None else identity
        issues = ImageIssues(policies or IssuePolicies({}), where=where, image_id=image_id)
        reading = _Reading(record, where, survey, image_id, annotation, issues)
        yield reading.image()
        annotation += reading.count


def read_own_images(path: str | Path, category_ids: Container[int]) -> Iterator[ImportedImage]:
    """Yields the images of one of Cocoflow's own shards, with the packed entries unchanged.

    Args:
        path: the shard.
        category_ids: category ids of the data set.

    Raises:
        DataError: the shard cannot be read, or a record has no packed entries or an unknown
            category.
    """
    for place, data in enumerate(read_shard(path)):
        where = record_name(path, place)
        record = parse_record(data, where)
        try:
            entry, annotations = unpack_entries(first_bytes(record, features.COCO))
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        for annotation in annotations:
            if annotation["category_id"] not in category_ids:
                raise DataError(
                    f"{where}: annotation {annotation['id']} has the category {annotation['category_id']}, not in the "
                    "data set. Pass the label map or dataset.json of this data."
                )
        image_format = as_text(first_bytes(record, features.FORMAT))
        yield ImportedImage(where, first_bytes(record, features.ENCODED), image_format, entry, annotations)


@dataclass(frozen=True)
class _Reading:
    """Converts one record of another tool to COCO entries."""

    _record: Record
    _where: str
    _survey: Survey
    _image_id: int
    _first_annotation: int
    _issues: ImageIssues

    @cached_property
    def count(self) -> int:
        """Number of objects."""
        return object_count(self._record)

    @cached_property
    def _classes(self) -> list[Named]:
        return object_classes(self._record)

    def image(self) -> ImportedImage:
        encoded = first_bytes(self._record, features.ENCODED)
        header = self._header(encoded)
        extras, object_extras = extra_fields(self._record, self.count, self._survey.extras)
        entry = {
            "id": self._image_id,
            "file_name": self._file_name(header.format),
            "height": header.height,
            "width": header.width,
        }
        text = source_id(self._record)
        if text not in ("", str(self._image_id)):
            entry["source_id"] = text
        annotations = self._annotations(header, object_extras) if header.height > 0 and header.width > 0 else []
        return ImportedImage(self._where, encoded, header.format, entry | extras, annotations, self._issues.issues)

    def _header(self, encoded: bytes) -> Header:
        """Returns the image's header; with the record's size without a header, or if that is the rotated size."""
        height, width = (int(self._record.get(key, [0])[0]) for key in (features.HEIGHT, features.WIDTH))
        try:
            header = read_header(encoded)
        except ImageFileError as error:
            self._add_issue(error.kind, f"{features.ENCODED}: {error.message}")
            return Header("", "", height, width)
        if header.turned and (height, width) == (header.width, header.height) != (header.height, header.width):
            return header._replace(height=height, width=width)
        if (height or header.height, width or header.width) != (header.height, header.width):
            self._add_issue(
                "image_size",
                f"the record declares {width}x{height} pixels, the image's header {header.width}x{header.height}; "
                "using the header",
            )
        return header

    def _file_name(self, image_format: str) -> str:
        text = source_id(self._record)
        own = text if numeric_source_id(self._record) is None else ""
        name = as_text(first_bytes(self._record, features.FILENAME)) or own or str(self._image_id)
        return name if has_image_suffix(name) or not image_format else name + suffix_of(image_format)

    def _annotations(self, header: Header, extras: list[dict[str, Any]]) -> list[dict[str, Any]]:
        boxes = corners(self._record)
        if any(len(values) != self.count for values in boxes):
            counts = ", ".join(str(len(values)) for values in boxes)
            self._add_issue("entry", f"different numbers of box corners ({counts}); its objects are dropped")
            return []
        annotations = []
        fields = [self._masks(header), self._keypoints(header), extras]
        for row, corner in enumerate(zip(*boxes, strict=True)):
            category = self._category(self._classes[row])
            if category is None:
                continue
            box = coco_box(*corner, height=header.height, width=header.width)
            if box is None:
                self._add_issue("entry", f"the box {list(corner)} is not finite or far outside; it is dropped", row)
                continue
            annotation = self._annotation(row, category, box)
            for each in fields:
                annotation |= each[row]
            annotations.append(annotation)
        return annotations

    def _annotation(self, row: int, category: int, box: list[float]) -> dict[str, Any]:
        areas, crowds = self._record.get(features.AREA, []), self._record.get(features.IS_CROWD, [])
        area = float(areas[row]) if row < len(areas) else math.nan
        return {
            "id": self._first_annotation + row,
            "image_id": self._image_id,
            "category_id": category,
            "bbox": box,
            "area": short_float(area) if math.isfinite(area) else box[2] * box[3],
            "iscrowd": int(row < len(crowds) and bool(crowds[row])),
        }

    def _masks(self, header: Header) -> list[dict[str, Any]]:
        fields: list[dict[str, Any]] = [{} for _ in range(self.count)]
        try:
            stored = object_masks(self._record, self.count)
        except MaskError as error:
            self._add_issue("mask_broken", f"{error}; they are dropped")
            return fields
        for row, mask in enumerate(stored):
            try:
                segmentation = segmentation_of(mask, height=header.height, width=header.width)
            except MaskError as error:
                self._add_issue("mask_broken", f"{error}; it is dropped", row)
                continue
            if segmentation is not None:
                fields[row]["segmentation"] = segmentation
        return fields

    def _keypoints(self, header: Header) -> list[dict[str, Any]]:
        fields: list[dict[str, Any]] = [{} for _ in range(self.count)]
        points = object_keypoints(self._record, self.count)
        if points is None:
            self._add_issue("keypoints_broken", "keypoints cannot be assigned to the objects, and are dropped")
        for row, (named, each) in enumerate(zip(self._classes, points or [], strict=False)):
            category = self._category(named)
            places = None if category is None else self._survey.keypoints.get(category)
            if places is None:
                continue
            try:
                placed = places.placed(each)
            except KeypointError as error:
                self._add_issue("keypoints_broken", f"{error}; they are dropped", row)
                continue
            values = coco_keypoints(placed, height=header.height, width=header.width)
            fields[row] = {"keypoints": values, "num_keypoints": sum(value > 0 for value in values[2::3])}
        return fields

    def _category(self, named: Named) -> int | None:
        try:
            return self._survey.category_ids[named]
        except KeyError:
            raise DataError(
                f"{self._where}: an object of class {named} was not in the first pass over the records. "
                "Do not change the shards meanwhile, and rerun."
            ) from None

    def _add_issue(self, kind: str, message: str, row: int | None = None) -> None:
        identity = None if row is None else self._first_annotation + row
        self._issues.add(kind, message, annotation_id=identity)
