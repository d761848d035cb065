"""The data report: what a data set holds, its issues with pictures, and the categories concerned."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from components.coco_example_gen.examination import Examination
from components.coco_example_gen.sources import CocoSource
from detection.datasets.encode_record import make_record
from detection.datasets.issues import Issue
from detection.images.files import ImageFileError, read_file
from detection.reports.dataset.page import PICTURES_OF_A_KIND, write_report
from detection.reports.dataset.pictures import (
    IssuePicture,
    SamplePicture,
    picture_of,
    sample_picture,
    spread_over_categories,
)
from detection.storage import paths
from schemas.artifacts import TRAIN_SPLIT
from schemas.quoting import one_line

MOST_IMAGES = 5000  # images of a split whose entries are read


def write_data_report(examination: Examination, path: str | Path) -> None:
    """Writes the page that shows what a data set holds and what is wrong with it.

    Args:
        examination: result of `examine`.
        path: HTML file.

    Raises:
        DataError: the file cannot be written.
    """
    write_report(
        path,
        title=_title([source.path for source in examination.sources.values()]),
        splits={name: result.summary for name, result in examination.results.items()},
        categories=examination.dataset["categories"],
        issues=examination.all_issues,
        examples=list(_pictures(examination)),
        concerned=concerned_annotations(examination),
        samples=list(_samples(examination)),
        notes=[*examination.reasons, *examination.notes],
    )


def _samples(examination: Examination) -> Iterator[SamplePicture]:
    """Draws valid images of a COCO file: of the train split, or of the first one.

    Args:
        examination: result of `examine`.
    """
    name = TRAIN_SPLIT if TRAIN_SPLIT in examination.sources else next(iter(examination.sources))
    source, rules = examination.sources[name], examination.rules
    if not isinstance(source, CocoSource):
        return
    categories = {category["id"]: category for category in examination.dataset["categories"]}
    candidates = examination.results[name].candidates
    with source.entries() as read:
        for image_id in spread_over_categories([(one.image_id, one.category_ids) for one in candidates]):
            entry, annotations = read(image_id)
            file_name = entry["file_name"]
            encoded = partial(read_file, source.files.images or "", file_name, max_pixels=rules.max_pixels)
            record = make_record(entry, annotations, read=encoded, split=name, rules=rules)
            if record.file is not None:
                caption = f"{name}: {one_line(file_name)} (image {image_id})"
                yield sample_picture(record.file.data, record.annotations, categories, caption=caption)


def _pictures(examination: Examination) -> Iterator[IssuePicture]:
    """Draws a few pictures of each kind of issue that images or annotations of COCO files have."""
    taken: Counter[str] = Counter()
    max_pixels = examination.rules.max_pixels
    for name, source in examination.sources.items():
        if not isinstance(source, CocoSource):
            continue
        tried: Counter[str] = Counter()
        with source.entries() as read:
            for issue in examination.results[name].issues:
                # Images that cannot be shown are tried a few times and no more.
                if issue.image_id is None or max(taken[issue.kind], tried[issue.kind]) >= PICTURES_OF_A_KIND:
                    continue
                tried[issue.kind] += 1
                entry, annotations = read(issue.image_id)
                boxes = [annotation["bbox"] for annotation in annotations if annotation["id"] == issue.annotation_id]
                try:
                    encoded = read_file(source.files.images or "", entry["file_name"], max_pixels=max_pixels)
                except ImageFileError:
                    continue
                picture = picture_of(encoded, issue, boxes[0] if boxes else None, max_pixels=max_pixels)
                if picture is not None:
                    taken[issue.kind] += 1
                    yield picture


def concerned_annotations(examination: Examination) -> Counter[int]:
    """Category id -> number of annotations that have an issue, or whose image has one.

    Counts the first MOST_IMAGES images with issues of each split.  Issues of entries that
    are not in the annotation file's index, and of TFRecords, are not counted.

    Args:
        examination: result of `examine`.
    """
    concerned: Counter[int] = Counter()
    for name, source in examination.sources.items():
        if not isinstance(source, CocoSource):
            continue
        by_image: dict[int, list[Issue]] = defaultdict(list)
        for issue in examination.results[name].issues:
            if issue.image_id in source.annotations.images:
                by_image[issue.image_id].append(issue)
        with source.entries() as read:
            for image_id in list(by_image)[:MOST_IMAGES]:
                _, annotations = read(image_id)
                ids = {issue.annotation_id for issue in by_image[image_id]}
                theirs = [one["category_id"] for one in annotations if None in ids or one["id"] in ids]
                concerned.update(theirs)
    return concerned


def _title(sources: Sequence[str]) -> str:
    """Returns the file, or the folder that holds all of the files; of files without one, their paths."""
    named = [paths.absolute(path) for path in sources]
    return paths.common_folder(named) or ", ".join(named)
