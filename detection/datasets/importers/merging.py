"""Between the passes: what the shards' surveys mean for the whole data set."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from detection.datasets.importers.classes import Named, resolve_classes
from detection.datasets.importers.dialects import dialect_of
from detection.datasets.importers.extras import extra_names
from detection.datasets.importers.label_map import LabelMap
from detection.datasets.importers.survey import ShardSurvey
from schemas import features
from schemas.errors import DataError

_SHARD_NUMBER = re.compile(r"^(.*)-(\d{5})-of-(\d{5})(?:\.\w+)*$")


@dataclass(frozen=True)
class Survey:
    """What the second pass has to know about a whole data set.

    dialect: of `detection.datasets.importers.dialects`.
    records, objects: how many.
    keys: key -> records that have a value for it.
    categories: COCO entries.
    category_source: where they come from.
    category_ids: category id of objects, by (label, text); {} for our own records.
    with_keypoints: ids of the categories whose objects have keypoints.
    image_ids: "source" where the source ids are numbers, one an image; else "number":
        images are numbered from 1 in the order of the records.
    first_image, first_annotation: shard -> number of its first, the order being that of
        the surveys.
    extras: key -> field name, of what COCO has no place for.
    formats, claimed, problems: as in `ShardSurvey`.
    """

    dialect: str
    records: int
    objects: int
    keys: dict[str, int]
    categories: list[dict[str, Any]]
    category_source: str
    category_ids: dict[Named, int]
    with_keypoints: frozenset[int]
    image_ids: Literal["source", "number"]
    first_image: dict[str, int]
    first_annotation: dict[str, int]
    extras: dict[str, str]
    formats: dict[str, int]
    claimed: dict[str, int]
    problems: dict[str, list[int | str]]


def merge_surveys(surveys: Sequence[ShardSurvey], *, label_map: LabelMap | None = None) -> Survey:
    """Decides on categories, ids and the names of extra fields.

    Args:
        surveys: of all shards of the data set, in the order in which images and
            annotations are to be numbered.
        label_map: the categories, from a label map, a COCO file or our dataset.json;
            None: they are taken from the records.

    Raises:
        DataError: no record, or none with an image; records of ours and others
            together; labels that contradict each other or cannot be told.
    """
    keys = _sum(survey.keys for survey in surveys)
    records = sum(survey.records for survey in surveys)
    _check(surveys, keys, records)
    classes = resolve_classes(_classes(surveys), label_map)
    labels = all(label is not None for label, _ in classes.ids)
    points = _keypoint_names(surveys, classes.ids)
    problems = _problems(surveys)
    return Survey(
        dialect=dialect_of(keys, labels=labels),
        records=records,
        objects=sum(survey.objects for survey in surveys),
        keys=keys,
        categories=[_with_names(category, points) for category in classes.categories],
        category_source=classes.source,
        category_ids={} if features.COCO in keys else classes.ids,
        with_keypoints=frozenset(points),
        image_ids=_id_rule(surveys),
        first_image=_starts(surveys, [survey.records for survey in surveys]),
        first_annotation=_starts(surveys, [survey.objects for survey in surveys]),
        extras=extra_names(keys),
        formats=_sum(survey.formats for survey in surveys),
        claimed=_sum(survey.claimed for survey in surveys),
        problems=problems,
    )


def _check(surveys: Sequence[ShardSurvey], keys: dict[str, int], records: int) -> None:
    paths = _named([survey.path for survey in surveys])
    if not records:
        raise DataError(f"{paths}: no record in {len(surveys)} files. Check that these are the files you mean.")
    if features.ENCODED not in keys:
        raise DataError(
            f"{paths}: no image in {records} records: {features.ENCODED} is missing, there are "
            f"{', '.join(sorted(keys)) or 'no keys at all'}. Give records of images with boxes."
        )
    if 0 < keys.get(features.COCO, 0) < records:
        others = [survey.path for survey in surveys if survey.keys.get(features.COCO, 0) < survey.records]
        raise DataError(f"{_named(others)}: records of other tools beside Cocoflow's. Convert them on their own.")


def _named(paths: Sequence[str]) -> str:
    return ", ".join(paths[:3]) + (", ..." if len(paths) > 3 else "")


def _classes(surveys: Iterable[ShardSurvey]) -> dict[Named, str]:
    found: dict[Named, str] = {}
    for survey in surveys:
        for label, text, _ in survey.classes:
            named = (None if label is None else int(label)), (None if text is None else str(text))
            found.setdefault(named, survey.path)
    return found


def _keypoint_names(surveys: Iterable[ShardSurvey], ids: dict[Named, int]) -> dict[int, list[str]]:
    """Category id -> names of its points; numbers where the records disagree or have none."""
    found: dict[int, set[tuple[str, ...]]] = {}
    sizes: Counter[int] = Counter()
    for survey in surveys:
        for label, text, names, size in survey.keypoints:
            identity = ids[label, text]  # type: ignore[index]
            found.setdefault(identity, set()).add(tuple(names) if isinstance(names, list) else ())
            sizes[identity] = max(sizes[identity], int(size))  # type: ignore[arg-type]
    numbers = {identity: [f"point_{number}" for number in range(1, size + 1)] for identity, size in sizes.items()}
    return {
        identity: list(next(iter(names))) if len(names) == 1 and () not in names else numbers[identity]
        for identity, names in found.items()
    }


def _with_names(category: dict[str, Any], points: dict[int, list[str]]) -> dict[str, Any]:
    if category["id"] not in points or category.get("keypoints"):
        return category
    return category | {"keypoints": points[category["id"]], "skeleton": category.get("skeleton", [])}


def _id_rule(surveys: Sequence[ShardSurvey]) -> Literal["source", "number"]:
    seen: set[int] = set()
    for survey in surveys:
        if survey.source_ids is None:
            return "number"
        seen.update(survey.source_ids)
    return "source" if len(seen) == sum(survey.records for survey in surveys) else "number"


def _starts(surveys: Sequence[ShardSurvey], counts: Sequence[int]) -> dict[str, int]:
    starts, start = {}, 1
    for survey, count in zip(surveys, counts, strict=True):
        starts[survey.path] = start
        start += count
    return starts


def _problems(surveys: Sequence[ShardSurvey]) -> dict[str, list[int | str]]:
    merged: dict[str, list[int | str]] = {}
    for survey in surveys:
        for what, (count, where) in survey.problems.items():
            entry = merged.setdefault(what, [0, where])
            entry[0] = int(entry[0]) + int(count)
    for stem, missing in _missing_shards([survey.path for survey in surveys]).items():
        merged["shards that are not there"] = [len(missing), f"{stem}-{missing[0]:05d}"]
    return merged


def _missing_shards(paths: Iterable[str]) -> dict[str, list[int]]:
    """Stem -> numbers that a set of `stem-00000-of-00010` lacks."""
    there: dict[tuple[str, int], set[int]] = {}
    for match in filter(None, map(_SHARD_NUMBER.match, paths)):
        there.setdefault((match[1], int(match[3])), set()).add(int(match[2]))
    absent = {stem: sorted(set(range(count)) - numbers) for (stem, count), numbers in there.items()}
    return {stem: missing for stem, missing in absent.items() if missing}


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))
