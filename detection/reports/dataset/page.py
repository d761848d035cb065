"""The page itself: everything put into the template, and written."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detection.datasets.issues import Fault
from detection.reports.dataset.pictures import FaultPicture
from detection.reports.dataset.sections import summary_sections
from detection.reports.dataset.summary import category_table, image_table, kinds_of, verdict
from detection.reports.dataset.tables import FaultCounts, Splits, fault_counts, fault_table, split_table
from detection.reports.html.render import render_page
from detection.storage.atomic import write_text
from schemas.artifacts import QUARANTINE_JSONL
from schemas.config.faults import FaultPolicies

LISTED_FAULTS = 200
PICTURES_OF_A_KIND = 4

_TEMPLATE = "report.html.j2"


def write_report(
    path: str | Path,
    *,
    title: str,
    splits: Splits,
    categories: Sequence[Mapping[str, Any]],
    faults: Sequence[Fault],
    examples: Sequence[FaultPicture] = (),
    omitted: FaultCounts | None = None,
    concerned: Mapping[int, int] | None = None,
) -> None:
    """Writes the report: one HTML file that needs nothing else, whole or not at all.

    Args:
        path: of the file.
        title: heading, such as the data set's folder.
        splits: name -> its summary, in the order of the columns; may be empty.
        categories: COCO's of the whole data set, with `id` and `name`.
        faults: the issues; the first LISTED_FAULTS are listed.
        examples: pictures; PICTURES_OF_A_KIND of each kind are shown.
        omitted: (kind, policy) -> number of issues that are not in `faults`, if a
            caller does not keep all; they are counted, too.
        concerned: category id -> number of annotations that have an issue, or whose
            image has one.

    Raises:
        DataError: the file cannot be written.
    """
    counts = fault_counts(faults, omitted or {})
    gallery = _gallery(examples)
    anchors = {example.fault: _anchor(kind, at) for kind, shown in gallery for at, example in enumerate(shown)}
    sections = summary_sections(splits, categories) if any(part.images for part in splits.values()) else []
    page = render_page(
        __package__,
        _TEMPLATE,
        title=title,
        verdict=verdict(splits, counts),
        tiles=_tiles(splits, categories, counts),
        images=image_table(faults, anchors),
        categories=category_table(concerned or {}, categories),
        kinds=kinds_of(faults, counts),
        splits=split_table(splits, categories),
        gallery=gallery,
        anchor=_anchor,
        listed=fault_table(faults[:LISTED_FAULTS]),
        more=sum(counts.values()) - len(faults[:LISTED_FAULTS]),
        more_in=QUARANTINE_JSONL,
        sections=sections,
    )
    write_text(path, page)


def _tiles(splits: Splits, categories: Sequence[Mapping[str, Any]], counts: FaultCounts) -> dict[str, int]:
    """The numbers of the first screen, by name."""
    return {
        "valid images": sum(part.images for part in splits.values()),
        "valid annotations": sum(part.annotations for part in splits.values()),
        "categories": len(categories),
        "issues": sum(counts.values()),
    }


def _anchor(kind: str, number: int) -> str:
    """The id of a picture on the page."""
    return f"picture-{kind}-{number}"


def _gallery(examples: Sequence[FaultPicture]) -> list[tuple[str, list[FaultPicture]]]:
    """Kind -> the first pictures of it, in the order of `FaultPolicies`."""
    by_kind: dict[str, list[FaultPicture]] = defaultdict(list)
    for example in examples:
        if len(by_kind[example.fault.kind]) < PICTURES_OF_A_KIND:
            by_kind[example.fault.kind].append(example)
    return [(kind, by_kind[kind]) for kind in FaultPolicies.model_fields if kind in by_kind]
