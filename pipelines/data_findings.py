"""What `check-data` tells on stdout."""

from collections import defaultdict

from rich.console import Console
from rich.table import Table

from components.coco_example_gen.examination import Examination
from detection.coco.faults import Fault
from schemas.faults import FaultPolicies

_LISTED = 5  # faults of a kind


def print_findings(found: Examination) -> None:
    """Prints what each split holds, and the first faults of each kind."""
    # Names of files and splits are shown as they are, whatever rich would make of [red] or :dog: in them.
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    table = Table("split", "images", "annotations", "crowds", "masks", "keypoints", "categories")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, result in found.results.items():
        summary = result.summary
        counts = (summary.images, summary.annotations, summary.crowds, summary.masks, summary.keypoints)
        table.add_row(name, *map(str, counts), str(len(summary.instances)))
    console.print(table)
    by_kind: dict[str, list[Fault]] = defaultdict(list)
    for fault in found.all_faults:
        by_kind[fault.kind].append(fault)
    for kind in sorted(by_kind):
        faults = by_kind[kind]
        described = FaultPolicies.model_fields[kind].description
        console.print(f"{kind} ({len(faults)}, data.on_fault: {faults[0].policy}): {described}")
        for fault in faults[:_LISTED]:
            console.print(f"  {fault}")
        if len(faults) > _LISTED:
            console.print(f"  ... and {len(faults) - _LISTED} more")
    count = len(found.all_faults)
    console.print(f"{count} {'fault' if count == 1 else 'faults'}" if count else "No faults.")
