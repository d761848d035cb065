"""First pass over TFRecord shards: counts keys, classes, keypoints and image formats."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from detection.datasets.importers.coco_geometry import object_keypoints
from detection.datasets.importers.source_format import (
    Record,
    as_text,
    corners,
    first_bytes,
    numeric_source_id,
    object_classes,
    object_count,
    parse_record,
)
from detection.images.files import ImageFileError, read_header
from detection.storage.tfrecord import read_shard
from schemas import features

_JPEG_NAMES = {"jpg", "jpe", "jfif"}


@dataclass
class ShardSurvey:
    """Counts of one shard; plain values only, so that `ShardSurvey(**json)` restores it.

    path: the shard.
    records: number of records.
    objects: number of objects in all records.
    keys: key -> number of records with a value for it.
    classes: [label, text, objects] for each pair; null for missing values.
    keypoints: [label, text, names, points] for each kind of object with labelled
        keypoints; names are null if the records have none.
    source_ids: numeric source ids of the records; null if one is missing.
    formats: image format of the bytes -> number of records; "" if unknown.
    claimed: "format, claimed format" -> number of records with another `image/format`.
    issues: message -> [number of records, name of the first].
    """

    path: str
    records: int = 0
    objects: int = 0
    keys: dict[str, int] = field(default_factory=dict)
    classes: list[list[int | str | None]] = field(default_factory=list)
    keypoints: list[list[int | str | list[str] | None]] = field(default_factory=list)
    source_ids: list[int] | None = field(default_factory=list)
    formats: dict[str, int] = field(default_factory=dict)
    claimed: dict[str, int] = field(default_factory=dict)
    issues: dict[str, list[int | str]] = field(default_factory=dict)


def survey_shard(path: str | Path) -> ShardSurvey:
    """Surveys every record of a shard, without decoding images.

    Raises:
        DataError: the shard cannot be read completely, or has other data than
            `tf.train.Example`s.
    """
    survey = _Survey(str(path))
    for number, data in enumerate(read_shard(path)):
        where = record_name(path, number)
        survey.add(parse_record(data, where), where)
    return survey.result()


def record_name(path: str | Path, number: int) -> str:
    """Returns the name of a record for messages; `number` counts from 0."""
    return f"{path}, record {number}"


class _Survey:
    def __init__(self, path: str) -> None:
        self._path = path
        self._records = 0
        self._keys: Counter[str] = Counter()
        self._classes: Counter[tuple[int | None, str | None]] = Counter()
        self._keypoints: dict[tuple[int | None, str | None, tuple[str, ...], int], None] = {}
        self._source_ids: list[int] | None = []
        self._formats: Counter[str] = Counter()
        self._claimed: Counter[str] = Counter()
        self._issues: dict[str, list[int | str]] = {}

    def add(self, record: Record, where: str) -> None:
        self._records += 1
        self._keys.update(record.keys())
        self._classes.update(object_classes(record))
        self._add_source_id(record)
        self._add_format(record, where)
        self._add_keypoints(record, where)
        if len(set(map(len, corners(record)))) > 1:
            self._add_issue("different numbers of box corners", where)

    def result(self) -> ShardSurvey:
        return ShardSurvey(
            path=self._path,
            records=self._records,
            objects=self._classes.total(),
            keys=dict(sorted(self._keys.items())),
            classes=[[label, text, count] for (label, text), count in self._classes.items()],
            keypoints=[[label, text, list(names) or None, size] for label, text, names, size in self._keypoints],
            source_ids=self._source_ids,
            formats=dict(self._formats),
            claimed=dict(self._claimed),
            issues=self._issues,
        )

    def _add_source_id(self, record: Record) -> None:
        number = numeric_source_id(record)
        if number is None:
            self._source_ids = None
        elif self._source_ids is not None:
            self._source_ids.append(number)

    def _add_format(self, record: Record, where: str) -> None:
        try:
            header = read_header(first_bytes(record, features.ENCODED))
        except ImageFileError as error:
            self._formats[""] += 1
            self._add_issue(f"{features.ENCODED}: {error.message}", where)
            return
        self._formats[header.format] += 1
        claimed = as_text(first_bytes(record, features.FORMAT)).lower().strip(".")
        if claimed and ("jpeg" if claimed in _JPEG_NAMES else claimed) != header.format:
            self._claimed[f"{header.format}, {claimed}"] += 1
        declared = record.get(features.HEIGHT, [header.height])[0], record.get(features.WIDTH, [header.width])[0]
        if declared != (header.height, header.width):
            self._add_issue("different sizes in the record and in the image's header", where)

    def _add_keypoints(self, record: Record, where: str) -> None:
        points = object_keypoints(record, object_count(record))
        if points is None:
            self._add_issue("keypoints that cannot be assigned to the objects", where)
            return
        for (label, text), each in zip(object_classes(record), points, strict=False):
            if each.labelled:
                self._keypoints[label, text, each.names, len(each.visibility)] = None

    def _add_issue(self, what: str, where: str) -> None:
        entry = self._issues.setdefault(what, [0, where])
        entry[0] = int(entry[0]) + 1
