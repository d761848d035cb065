"""The report's tables: statistics and issues as rows of text and numbers."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from detection.datasets.issues import Issue
from detection.datasets.statistics import COCO_SIZES, SplitSummary, total
from detection.reports.html.table import Cell, Number, Table
from schemas.config.issues import ISSUE_KINDS, Policy

# Handling of an issue, by its policy, the most severe first.
HANDLING: Mapping[Policy, str] = {"fail": "stops a run", "drop": "dropped", "fix": "fixed", "keep": "kept"}

Splits = Mapping[str, SplitSummary]
IssueCounts = Mapping[tuple[str, Policy], int]


def split_table(splits: Splits, categories: Sequence[Mapping[str, Any]]) -> Table:
    """Returns images, annotations and categories of each split, and in total."""
    header = ("split", "images", "annotations", "categories", "crowds", "with mask", "with keypoints")
    named = [*splits.items(), *([("all", total(splits.values()))] if len(splits) > 1 else [])]
    rows = [
        (name, part.images, part.annotations, len(part.instances), part.crowds, part.masks, part.keypoints)
        for name, part in named
    ]
    return Table(f"The data set has {_number(len(categories), 'category', 'categories')}.", header, rows)


def issue_counts(issues: Iterable[Issue]) -> dict[tuple[str, Policy], int]:
    """Counts issues by (kind, policy), in the order of `ISSUE_KINDS`, most severe policy first."""
    counts = Counter((issue.kind, issue.policy) for issue in issues)
    kinds, policies = list(ISSUE_KINDS), list(HANDLING)
    return dict(sorted(counts.items(), key=lambda item: (kinds.index(item[0][0]), policies.index(item[0][1]))))


def issue_table(issues: Iterable[Issue]) -> Table:
    """Returns one row per issue."""
    rows = [
        (issue.kind, HANDLING[issue.policy], issue.where, _id(issue.image_id), _id(issue.annotation_id), issue.message)
        for issue in issues
    ]
    return Table("", ("kind", "handling", "location", "image", "annotation", "message"), rows)


def category_table(splits: Splits, categories: Sequence[Mapping[str, Any]], *, logarithmic: bool) -> Table:
    """Returns annotations and images per category and split, with bars relative to the largest number of a split.

    Args:
        splits: summaries by split name.
        categories: COCO categories, with `id` and `name`, in the order of the rows.
        logarithmic: draw the logarithm of a count plus one.
    """
    header = ["category", "id", *(f"{split}: {what}" for split in splits for what in ("annotations", "images"))]
    columns = [counts for part in splits.values() for counts in (part.instances, part.images_with)]
    # Annotations and images have separate scales, which are the same for all splits.
    longest = [max((max(counts.values(), default=1) for counts in columns[at::2]), default=1) for at in (0, 1)]

    def cell(count: int, most: int) -> Number:
        bar = math.log1p(count) / math.log1p(most) if logarithmic else count / most
        return Number(f"{count:,}", count, bar)

    rows = [
        [
            category["name"],
            str(category["id"]),
            *(cell(counts[category["id"]], longest[at % 2]) for at, counts in enumerate(columns)),
        ]
        for category in categories
    ]
    return Table("", header, rows)


def missing_table(splits: Splits, categories: Sequence[Mapping[str, Any]]) -> Table:
    """Returns categories without annotations, in all splits and in single ones; no rows if there are none."""
    anywhere = set().union(*(part.instances for part in splits.values()))
    single = len(splits) == 1
    rows = [_missing_row(next(iter(splits)) if single else "all splits", categories, anywhere)]
    if not single:
        known = [category for category in categories if category["id"] in anywhere]
        rows += [_missing_row(f"{split} only", known, set(part.instances)) for split, part in splits.items()]
    return Table("", ("without annotations in", "categories", "names"), [row for row in rows if row[1]])


def histogram_table(counts: Mapping[str, Sequence[int]], labels: Sequence[str], what: str) -> Table:
    """Returns the counts of every bin from the first to the last that is not empty."""
    used = [index for index in range(len(labels)) if any(column[index] for column in counts.values())]
    bins = range(used[0], used[-1] + 1) if used else range(0)
    rows: list[list[Cell]] = [[labels[index], *(column[index] for column in counts.values())] for index in bins]
    return Table("", (what, *counts), rows)


def bin_labels(edges: Sequence[float], *, single: bool) -> list[str]:
    """Formats the range of each bin."""
    if single:
        return ["0", *(f"{edge:.0f}" for edge in edges[:-1]), f"{edges[-1]:.0f} and more"]
    texts = [f"{edge:.0f}" if edge >= 100 else f"{edge:.3g}" for edge in edges]
    between = [f"{low} to {high}" for low, high in itertools.pairwise(texts)]
    return [f"below {texts[0]}", *between, f"{texts[-1]} and more"]


def coco_size_table(splits: Splits) -> Table:
    """Returns COCO's small, medium and large annotations per split."""
    bounds = {"small": "below 32² px", "medium": "32² to 96² px", "large": "96² px and more"}
    header = ("split", *(f"{size}: {bounds[size]}" for size in COCO_SIZES))
    rows: list[list[Cell]] = [
        [split, *(part.coco_sizes[size] for size in COCO_SIZES)] for split, part in splits.items()
    ]
    return Table("Annotations by area, or by the box's area if they have none:", header, rows)


def side_table(splits: Splits) -> Table:
    """Returns the smallest and largest width and height of each split's images."""
    header = ("split", "min width", "max width", "min height", "max height")
    rows = [(split, part.min_width, part.max_width, part.min_height, part.max_height) for split, part in splits.items()]
    return Table("Pixels:", header, rows)


def text_table(what: str, counts: Mapping[str, Counter[str]]) -> Table:
    """Returns the counts of each text per split, the most frequent first."""
    together: Counter[str] = Counter()
    for column in counts.values():
        together.update(column)
    keys = sorted(together, key=lambda key: (-together[key], key))
    return Table("", (what, *counts), [[key, *(column[key] for column in counts.values())] for key in keys])


def _id(identity: int | None) -> str | None:
    return None if identity is None else str(identity)


def _missing_row(where: str, categories: Sequence[Mapping[str, Any]], present: set[int]) -> tuple[str, int, str]:
    missing = [category["name"] for category in categories if category["id"] not in present]
    return where, len(missing), ", ".join(missing)


def _number(count: int, singular: str, plural: str) -> str:
    return f"{count:,} {singular if count == 1 else plural}"
