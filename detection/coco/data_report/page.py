"""The page itself: everything put into the template, and written."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from detection.atomic_files import write_text
from detection.coco.data_report.pictures import FaultPicture
from detection.coco.data_report.sections import summary_sections
from detection.coco.data_report.tables import (
    DONE,
    FaultCounts,
    Splits,
    fault_counts,
    fault_kind_table,
    fault_table,
    split_table,
)
from detection.coco.faults import Fault
from detection.pages.render import render_page
from schemas.artifacts import QUARANTINE_JSONL
from schemas.faults import FaultPolicies

LISTED_FAULTS = 200
PICTURES_OF_A_KIND = 4

_TEMPLATE = "report.html.j2"


class _Verdict(NamedTuple):
    """The first line: `tone` is "good", "warn" or "bad"."""

    tone: str
    text: str


def write_report(
    path: str | Path,
    *,
    title: str,
    splits: Splits,
    categories: Sequence[Mapping[str, Any]],
    faults: Sequence[Fault],
    examples: Sequence[FaultPicture] = (),
    omitted: FaultCounts | None = None,
) -> None:
    """Writes the report: one HTML file that needs nothing else, whole or not at all.

    Args:
        path: of the file.
        title: heading, such as the data set's folder.
        splits: name -> what it holds, in the order of the columns; may be empty.
        categories: COCO's of the whole data set, with `id` and `name`.
        faults: that were found; the first LISTED_FAULTS are listed.
        examples: pictures; PICTURES_OF_A_KIND of each kind are shown.
        omitted: (kind, policy) -> number of faults that were found and are not in
            `faults`, where a caller does not keep all; they are counted, too.

    Raises:
        DataError: the file cannot be written.
    """
    counts = fault_counts(faults, omitted or {})
    found = any(summary.images for summary in splits.values())
    page = render_page(
        __package__,
        _TEMPLATE,
        title=title,
        verdict=_verdict(counts),
        splits=split_table(splits, categories),
        kinds=fault_kind_table(counts),
        gallery=_gallery(examples),
        listed=fault_table(faults[:LISTED_FAULTS]),
        more=sum(counts.values()) - len(faults[:LISTED_FAULTS]),
        more_in=QUARANTINE_JSONL,
        sections=summary_sections(splits, categories) if found else [],
    )
    write_text(path, page)


def _verdict(counts: FaultCounts) -> _Verdict:
    together = sum(counts.values())
    if not together:
        return _Verdict("good", "No faults were found.")
    by_policy = {policy: sum(n for (_, own), n in counts.items() if own == policy) for policy in DONE}
    parts = ", ".join(f"{count:,} {DONE[policy]}" for policy, count in by_policy.items() if count)
    return _Verdict("bad" if by_policy["fail"] else "warn", f"{together:,} fault{'s' * (together > 1)}: {parts}.")


def _gallery(examples: Sequence[FaultPicture]) -> list[tuple[str, list[FaultPicture]]]:
    """Kind -> the first pictures of it, in the order of `FaultPolicies`."""
    by_kind: dict[str, list[FaultPicture]] = defaultdict(list)
    for example in examples:
        if len(by_kind[example.fault.kind]) < PICTURES_OF_A_KIND:
            by_kind[example.fault.kind].append(example)
    return [(kind, by_kind[kind]) for kind in FaultPolicies.model_fields if kind in by_kind]
