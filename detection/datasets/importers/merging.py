"""Merges the surveys of shards: categories, ids and field names of the data set, and a report for users."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from detection.datasets.importers.classes import Named, resolve_classes
from detection.datasets.importers.keypoint_places import KeypointPlaces, keypoint_places
from detection.datasets.importers.label_map import LabelMap
from detection.datasets.importers.source_format import (
    AUTOML,
    COCOFLOW,
    OBJECT_PREFIX,
    OD_API,
    extra_names,
    source_format_of,
)
from detection.datasets.importers.survey import ShardSurvey
from detection.storage.tfrecord import missing_shards
from schemas import features
from schemas.errors import DataError

_NAMES = {COCOFLOW: "Cocoflow's own", AUTOML: "google/automl", OD_API: "TF Object Detection API"}
_EXPECTED = {
    features.CLASS_LABEL: "labels",
    features.CLASS_TEXT: "texts of the labels",
    features.IS_CROWD: "crowd flags (taken as 0)",
    features.AREA: "areas (taken from the boxes)",
    features.HEIGHT: "heights (taken from the images)",
    features.WIDTH: "widths (taken from the images)",
    features.FILENAME: "file names (made from the ids)",
}


@dataclass(frozen=True)
class Survey:
    """Survey of the complete data set, for the second pass.

    source_format: COCOFLOW, AUTOML or OD_API.
    records, objects: total counts.
    keys: key -> number of records with a value for it.
    categories: COCO entries.
    category_source: origin of the categories.
    left_out: names of the classes that the label map lacks, whose objects are left out.
    category_ids: category ids by (label, text); {} for our own records.
    keypoints: where keypoints belong, by id of the categories whose objects have some.
    image_ids: "source" if the source ids are unique numbers; else "number": images are
        numbered from 1 in the order of the records.
    first_image, first_annotation: shard -> number of its first image or annotation, in the
        order of the surveys.
    extras: key -> field name, for keys without a COCO field.
    formats, claimed, issues: as in `ShardSurvey`.
    """

    source_format: str
    records: int
    objects: int
    keys: dict[str, int]
    categories: list[dict[str, Any]]
    category_source: str
    category_ids: dict[Named, int | None]
    left_out: list[str]
    keypoints: dict[int, KeypointPlaces]
    image_ids: Literal["source", "number"]
    first_image: dict[str, int]
    first_annotation: dict[str, int]
    extras: dict[str, str]
    formats: dict[str, int]
    claimed: dict[str, int]
    issues: dict[str, tuple[int, str]]


def merge_surveys(surveys: Sequence[ShardSurvey], *, label_map: LabelMap | None = None) -> Survey:
    """Determines the categories, ids and names of extra fields.

    Args:
        surveys: surveys of all shards of the data set, in the order for numbering images and
            annotations.
        label_map: the categories, from a label map, a COCO file or our dataset.json; None:
            take them from the records.

    Raises:
            DataError: no records, or none with an image; records of ours and of other tools
                together; contradictory or unknown labels.
    """
    keys = _sum(survey.keys for survey in surveys)
    records = sum(survey.records for survey in surveys)
    _check(surveys, keys, records)
    pairs: dict[Named, str] = {}
    for survey in surveys:
        for named in survey.classes:
            pairs.setdefault(named, survey.path)
    classes = resolve_classes(pairs, label_map)
    labels = all(label is not None for label, _ in classes.ids)
    places = keypoint_places(surveys, classes.ids, label_map)
    return Survey(
        source_format=source_format_of(keys, labels=labels),
        records=records,
        objects=sum(survey.objects for survey in surveys),
        keys=keys,
        categories=[_with_names(category, places) for category in classes.categories],
        category_source=classes.source,
        left_out=classes.left_out,
        category_ids={} if features.COCO in keys else classes.ids,
        keypoints=places,
        image_ids=_id_rule(surveys),
        first_image=_starts({survey.path: survey.records for survey in surveys}),
        first_annotation=_starts({survey.path: survey.objects for survey in surveys}),
        extras=extra_names(keys),
        formats=_sum(survey.formats for survey in surveys),
        claimed=_sum(survey.claimed for survey in surveys),
        issues=_issues(surveys),
    )


def _check(surveys: Sequence[ShardSurvey], keys: dict[str, int], records: int) -> None:
    paths = _named([survey.path for survey in surveys])
    if not records:
        raise DataError(f"{paths}: no records in {len(surveys)} files. Check the path.")
    if features.ENCODED not in keys:
        raise DataError(
            f"{paths}: no images in {records} records: {features.ENCODED} is missing; keys are "
            f"{', '.join(sorted(keys)) or 'missing altogether'}. Pass records of images with boxes."
        )
    if 0 < keys.get(features.COCO, 0) < records:
        others = [survey.path for survey in surveys if survey.keys.get(features.COCO, 0) < survey.records]
        raise DataError(f"{_named(others)}: records of other tools beside Cocoflow's. Convert them separately.")


def _named(paths: Sequence[str]) -> str:
    return ", ".join(paths[:3]) + (", ..." if len(paths) > 3 else "")


def _with_names(category: dict[str, Any], places: dict[int, KeypointPlaces]) -> dict[str, Any]:
    if category["id"] not in places or category.get("keypoints"):
        return category
    return category | {"keypoints": list(places[category["id"]].names), "skeleton": category.get("skeleton", [])}


def _id_rule(surveys: Sequence[ShardSurvey]) -> Literal["source", "number"]:
    seen: set[int] = set()
    for survey in surveys:
        if survey.source_ids is None:
            return "number"
        seen.update(survey.source_ids)
    return "source" if len(seen) == sum(survey.records for survey in surveys) else "number"


def _starts(counts: dict[str, int]) -> dict[str, int]:
    """Returns the number of the first image or annotation of each shard, from 1."""
    return dict(zip(counts, itertools.accumulate(counts.values(), initial=1), strict=False))


def _issues(surveys: Sequence[ShardSurvey]) -> dict[str, tuple[int, str]]:
    merged: dict[str, tuple[int, str]] = {}
    for survey in surveys:
        for message, (count, where) in survey.issues.items():
            before, first = merged.get(message, (0, where))
            merged[message] = before + count, first
    for stem, (missing, _) in missing_shards(survey.path for survey in surveys).items():
        merged["missing shards"] = len(missing), f"{stem}-{missing[0]:05d}"
    return merged


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))


def survey_report(survey: Survey) -> str:
    """Describes a data set's records in a few lines: source format, counts, keys, categories, ids, issues."""
    lines = [
        f"source:     {_NAMES[survey.source_format]} ({survey.source_format})",
        f"records:    {survey.records} with {survey.objects} objects",
        f"categories: {len(survey.categories)}, from {survey.category_source}",
        *([f"left out:   objects of {', '.join(survey.left_out)}, which it lacks"] if survey.left_out else []),
        f"image ids:  {_ids(survey)}",
        f"formats:    {_formats(survey)}",
        f"keys:       {', '.join(map(str, _keys_with_counts(survey)))}",
    ]
    missing = [text for key, text in _EXPECTED.items() if key not in survey.keys]
    if missing and survey.source_format != COCOFLOW:
        lines.append(f"missing:    {', '.join(missing)}")
    if survey.extras:
        kept = [key if key.endswith(f"/{name}") else f"{key} as {name}" for key, name in survey.extras.items()]
        lines.append(f"kept too:   {', '.join(kept)}")
    lines += [f"issue:      {text}: {count}, first {where}" for text, (count, where) in survey.issues.items()]
    return "\n".join(lines)


def _ids(survey: Survey) -> str:
    if survey.source_format == COCOFLOW:
        return "those of the COCO entries"
    if survey.image_ids == "source":
        return f"those of {features.SOURCE_ID}"
    return f"1 to {survey.records} in the order of the records; {features.SOURCE_ID} is not a unique number"


def _formats(survey: Survey) -> str:
    readable = [f"{count} {name}" for name, count in survey.formats.items() if name]
    formats = ", ".join([*readable, *(f"{count} unreadable" for name, count in survey.formats.items() if not name)])
    mislabelled = [f"{count} {pair.replace(', ', ' called ')}" for pair, count in survey.claimed.items()]
    return formats + (f"; of these {', '.join(mislabelled)}" if mislabelled else "")


def _keys_with_counts(survey: Survey) -> list[str]:
    """Returns the keys, with the number of records if not all records have them."""
    short = {key: key.removeprefix(OBJECT_PREFIX) for key in survey.keys}
    return [f"{short[key]}" + ("" if count == survey.records else f" ({count})") for key, count in survey.keys.items()]
