"""Renders the data report from its template, and writes it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detection.datasets.issues import Issue
from detection.reports.dataset.pictures import IssuePicture, SamplePicture
from detection.reports.dataset.sections import summary_sections
from detection.reports.dataset.summary import category_table, image_table, kinds_of, verdict
from detection.reports.dataset.tables import IssueCounts, Splits, issue_counts, issue_table, split_table
from detection.reports.html.render import render_page
from detection.storage.atomic import write_text
from schemas.artifacts import QUARANTINE_JSONL
from schemas.config.issues import ISSUE_KINDS

LISTED_ISSUES = 200
PICTURES_OF_A_KIND = 4

_TEMPLATE = "report.html.j2"
_ORDER = {"train": 0, "eval": 1, "test": 2}  # order of the splits


def write_report(
    path: str | Path,
    *,
    title: str,
    splits: Splits,
    categories: Sequence[Mapping[str, Any]],
    issues: Sequence[Issue],
    examples: Sequence[IssuePicture] = (),
    concerned: Mapping[int, int] | None = None,
    samples: Sequence[SamplePicture] = (),
    notes: Sequence[str] = (),
) -> None:
    """Writes the report: one self-contained HTML file, written atomically.

    Args:
        path: path of the file.
        title: heading, such as the data set's folder.
        splits: summaries by split name; may be empty.  Columns are in the order train, eval, test, others.
        categories: COCO categories of the data set, with `id` and `name`.
        issues: the issues; the first LISTED_ISSUES are listed.
        examples: pictures; PICTURES_OF_A_KIND per kind are shown.
        concerned: category id -> number of annotations with an issue, or with an issue of
            their image.
        samples: pictures of valid ground truth.
        notes: what else is said about the data set, a sentence each.

    Raises:
        DataError: the file cannot be written.
    """
    splits = dict(sorted(splits.items(), key=lambda split: _ORDER.get(split[0], len(_ORDER))))
    counts = issue_counts(issues)
    gallery = _gallery(examples)
    anchors = {example.issue: _anchor(kind, at) for kind, shown in gallery for at, example in enumerate(shown)}
    sections = summary_sections(splits, categories) if any(part.images for part in splits.values()) else []
    page = render_page(
        __package__,
        _TEMPLATE,
        title=title,
        verdict=verdict(splits, counts, categories),
        tiles=_tiles(splits, categories, counts),
        images=image_table(issues, anchors),
        categories=category_table(concerned or {}, categories),
        kinds=kinds_of(issues, counts),
        splits=split_table(splits, categories),
        gallery=gallery,
        anchor=_anchor,
        listed=issue_table(issues[:LISTED_ISSUES]),
        more=sum(counts.values()) - len(issues[:LISTED_ISSUES]),
        more_in=QUARANTINE_JSONL,
        sections=sections,
        samples=samples,
        notes=notes,
    )
    write_text(path, page)


def _tiles(splits: Splits, categories: Sequence[Mapping[str, Any]], counts: IssueCounts) -> dict[str, int]:
    """Returns the numbers of the first screen, by name."""
    return {
        "valid images": sum(part.images for part in splits.values()),
        "valid annotations": sum(part.annotations for part in splits.values()),
        "categories": len(categories),
        "issues": sum(counts.values()),
    }


def _anchor(kind: str, number: int) -> str:
    """Returns the id of a picture on the page."""
    return f"picture-{kind}-{number}"


def _gallery(examples: Sequence[IssuePicture]) -> list[tuple[str, list[IssuePicture]]]:
    """Returns the first pictures per kind, in the order of `ISSUE_KINDS`."""
    by_kind: dict[str, list[IssuePicture]] = defaultdict(list)
    for example in examples:
        if len(by_kind[example.issue.kind]) < PICTURES_OF_A_KIND:
            by_kind[example.issue.kind].append(example)
    return [(kind, by_kind[kind]) for kind in ISSUE_KINDS if kind in by_kind]
