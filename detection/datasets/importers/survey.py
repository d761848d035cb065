"""First pass over TFRecord shards: counts keys, classes, keypoints and image formats."""

from dataclasses import field
from pathlib import Path

from pydantic.dataclasses import dataclass

from detection.datasets.importers.classes import Named
from detection.datasets.importers.coco_geometry import object_keypoints
from detection.datasets.importers.source_format import (
    Record,
    as_text,
    corners,
    first_bytes,
    numeric_source_id,
    object_classes,
    parse_record,
)
from detection.images.files import ImageFileError, read_header
from detection.storage.tfrecord import read_shard
from schemas import features

_JPEG_NAMES = {"jpg", "jpe", "jfif"}


@dataclass
class ShardSurvey:
    """Counts of one shard; `ShardSurvey(**json)` restores it from the JSON of `dataclasses.asdict`.

    path: the shard.
    records: number of records.
    objects: number of objects in all records.
    keys: key -> number of records with a value for it.
    classes: each (label, text) of the objects; None for missing values.
    keypoints: (label, text, names, points) for each kind of object with labelled
        keypoints; () if the records have no names.
    source_ids: numeric source ids of the records; None if one is missing.
    formats: image format of the bytes -> number of records; "" if unknown.
    claimed: "format, claimed format" -> number of records with another `image/format`.
    issues: message -> (number of records, name of the first).
    """

    path: str
    records: int = 0
    objects: int = 0
    keys: dict[str, int] = field(default_factory=dict)
    classes: list[Named] = field(default_factory=list)
    keypoints: list[tuple[int | None, str | None, tuple[str, ...], int]] = field(default_factory=list)
    source_ids: list[int] | None = field(default_factory=list)
    formats: dict[str, int] = field(default_factory=dict)
    claimed: dict[str, int] = field(default_factory=dict)
    issues: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add_format(self, record: Record, where: str) -> None:
        """Counts the image format of a record, and compares the record with the image's header."""
        try:
            header = read_header(first_bytes(record, features.ENCODED))
        except ImageFileError as error:
            _count(self.formats, "")
            self.add_issue(f"{features.ENCODED}: {error.message}", where)
            return
        _count(self.formats, header.format)
        claimed = as_text(first_bytes(record, features.FORMAT)).lower().strip(".")
        if claimed and ("jpeg" if claimed in _JPEG_NAMES else claimed) != header.format:
            _count(self.claimed, f"{header.format}, {claimed}")
        declared = record.get(features.HEIGHT, [header.height])[0], record.get(features.WIDTH, [header.width])[0]
        if declared != (header.height, header.width):
            self.add_issue("different sizes in the record and in the image's header", where)

    def add_issue(self, what: str, where: str) -> None:
        """Counts an issue of a record; `where` is the record."""
        count, first = self.issues.get(what, (0, where))
        self.issues[what] = count + 1, first


def survey_shard(path: str | Path) -> ShardSurvey:
    """Surveys every record of a shard, without decoding images.

    Raises:
        DataError: the shard cannot be read completely, or has other data than
            `tf.train.Example`s.
    """
    survey = ShardSurvey(str(path))
    source_ids: list[int | None] = []
    classes: dict[Named, None] = {}  # in the order of the records
    keypoints: dict[tuple[int | None, str | None, tuple[str, ...], int], None] = {}
    for number, data in enumerate(read_shard(path)):
        where = record_name(path, number)
        record = parse_record(data, where)
        named = object_classes(record)
        survey.records += 1
        survey.objects += len(named)
        for key in record:
            _count(survey.keys, key)
        classes |= dict.fromkeys(named)
        source_ids.append(numeric_source_id(record))
        survey.add_format(record, where)
        points = object_keypoints(record, len(named))
        if points is None:
            survey.add_issue("keypoints that cannot be assigned to the objects", where)
        for (label, text), each in zip(named, points or [], strict=False):
            if any(value > 0 for value in each.visibility):
                keypoints[label, text, each.names, len(each.visibility)] = None
        if len(set(map(len, corners(record)))) > 1:
            survey.add_issue("different numbers of box corners", where)
    survey.classes, survey.keypoints = list(classes), list(keypoints)
    survey.source_ids = None if None in source_ids else [one for one in source_ids if one is not None]
    return survey


def record_name(path: str | Path, number: int) -> str:
    """Returns the name of a record for messages; `number` counts from 0."""
    return f"{path}, record {number}"


def _count(counts: dict[str, int], key: str) -> None:
    counts[key] = counts.get(key, 0) + 1
