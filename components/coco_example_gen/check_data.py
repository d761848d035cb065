"""`check-data`: finds what is wrong with a data set, and prints the verdict, what to act on, and the statistics."""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from components.coco_example_gen.examination import Examination, examine
from components.coco_example_gen.report import concerned_annotations, write_data_report
from components.coco_example_gen.sources import CocoSource
from components.coco_example_gen.spans.dataset_files import files_of
from detection.datasets.layouts import SplitFiles
from detection.images.files import has_image_suffix
from detection.reports.dataset.summary import LISTED, Kind, category_table, count_text, image_table, kinds_of, verdict
from detection.reports.dataset.tables import issue_counts
from detection.reports.html.table import Table as Rows
from detection.reports.html.table import cell_text
from detection.storage import files
from detection.storage.temporary import scratch_tempdir
from detection.training.auto.data_facts import data_facts, learned_shapes
from schemas.config.config import Config
from schemas.progress import log_phase
from schemas.quoting import one_line

_LOGGER = logging.getLogger("cocoflow.check_data")

# Tone of the verdict -> exit code; 2 is wrong usage, as of every command.
_EXIT_CODES = {"good": 0, "warn": 3, "bad": 1}


def check_data(config: Config, page: str | None) -> Examination:
    """Finds what is wrong with the data set.

    Args:
        config: section `data` is used.
        page: HTML file to write; None: none.

    Raises:
        ConfigError: no data set is named.
        DataError: an annotation file that cannot be read, or a page that cannot be
            written.
    """
    splits = files_of(config.data)
    log_phase(_LOGGER, "reading the annotations")
    with scratch_tempdir() as temporary:
        examination = examine(splits, config.data, work=temporary / "work", records=None)
    examination = replace(examination, notes=[*examination.notes, *_unlisted(examination, splits)])
    if page is not None:
        log_phase(_LOGGER, "writing the report")
        write_data_report(examination, page)
    return examination


def _unlisted(examination: Examination, splits: Mapping[str, SplitFiles]) -> list[str]:
    """Counts the pictures of COCO's image folders that no annotation file lists, without those in folders below."""
    listed: Counter[str] = Counter()
    for name, source in examination.sources.items():
        if isinstance(source, CocoSource) and not splits[name].reader and source.files.every == 1:
            missing = sum(issue.kind == "image_missing" for issue in examination.results[name].issues)
            listed[str(source.files.images)] += source.total - missing
    notes = []
    for folder, count in listed.items():
        pictures = sum(map(has_image_suffix, files.list_files(folder)))
        if pictures > count > 0:
            notes.append(
                f"{pictures - count:,} of {pictures:,} pictures in {one_line(folder)} are in no annotation file"
            )
    return notes


def print_examination(examination: Examination, config: Config) -> int:
    """Prints whether the data set can be trained on, the issues of each kind, and what each split holds.

    Args:
        examination: result of `check_data`.
        config: section `model` is used, for the facts about the data that concern the detector.

    Returns:
        The command's exit code: 0, or 3 with warnings, or 1 if the data cannot be trained on.

    Raises:
        ConfigError: the section `model` names no detector, or is invalid for it.
    """
    # Names of files and splits are shown as they are, whatever rich would make of [red] or :dog: in them.
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    counts = issue_counts(examination.all_issues)
    splits = {name: result.summary for name, result in examination.results.items()}
    judged = verdict(
        splits, counts, examination.dataset["categories"], judged=config.evaluate.split, shapes=learned_shapes(config)
    )
    console.print(judged.text)
    for note in (*examination.reasons, *examination.notes):
        console.print(f"{note}.")
    for choice in judged.choices:
        console.print(f"Correct the files, or pass {choice.flag}: {choice.effect}.")
    _print_images(console, image_table(examination.all_issues, {}))
    _print_categories(console, category_table(concerned_annotations(examination), examination.dataset["categories"]))
    for kind in kinds_of(examination.all_issues, counts):
        _print_kind(console, kind)
    for fact in data_facts(splits, examination.dataset["categories"], config)[1:]:
        console.print(str(fact))
    console.print(_statistics(examination))
    return _EXIT_CODES[judged.tone]


def _print_images(console: Console, table: Rows) -> None:
    if table.rows:
        console.print("Images with most issues:")
    for row in table.rows:
        where, image_id, issues, kinds, ids = map(cell_text, row)
        annotations = f" (annotations {ids})" if ids else ""
        console.print(f"  {where} (image {image_id}): {issues} of {kinds}{annotations}")


def _print_categories(console: Console, table: Rows) -> None:
    if table.rows:
        console.print("Categories with most annotations concerned:")
    for row in table.rows:
        name, category_id, annotations = map(cell_text, row)
        console.print(f"  {name} (category {category_id}): {annotations}")


def _print_kind(console: Console, kind: Kind) -> None:
    issues = count_text(kind.issues, "issue")
    console.print(f"{kind.name} ({issues}, data.on_fault: {kind.policy}): {kind.meaning}")
    for issue in kind.first:
        console.print(f"  {issue}")
    if kind.issues > LISTED:
        console.print(f"  ... and {kind.issues - LISTED:,} more")
    console.print(f"  In the files: {kind.in_the_files}")
    for choice in kind.choices:
        console.print(f"  Or pass: {choice.flag} ({choice.effect})")


def _statistics(examination: Examination) -> Table:
    table = Table("split", "images", "annotations", "crowds", "masks", "keypoints", "categories")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, result in examination.results.items():
        summary = result.summary
        counts = (summary.images, summary.annotations, summary.crowds, summary.masks, summary.keypoints)
        table.add_row(name, *(f"{count:,}" for count in (*counts, len(summary.instances))))
    return table
