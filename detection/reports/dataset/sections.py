"""The report's sections on the content of the splits: text, charts and tables."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from detection.datasets.statistics import ASPECT_EDGES, OBJECTS_EDGES, SIDE_EDGES, SIZE_EDGES, total
from detection.reports.dataset.charts import Histogram, Plot, plot_of
from detection.reports.dataset.tables import (
    Splits,
    Table,
    bin_labels,
    category_table,
    coco_size_table,
    histogram_table,
    missing_table,
    side_table,
    text_table,
)

_WIDE_RANGE = 50  # min ratio of the most frequent to the median category for logarithmic bars
_ASPECTS = {2.0**power: f"{2 ** max(power, 0)}:{2 ** max(-power, 0)}" for power in range(-4, 5)}
_ROUND_SIDES = [
    head * 10**power for power in range(1, 5) for head in (1, 1.5, 2, 3, 4, 5, 6, 8) if power < 4 or head == 1
]


class Chart(NamedTuple):
    """A chart of the page.

    plot: the histogram.
    alt: alternative text.
    numbers: the same data as a table.
    """

    plot: Plot
    alt: str
    numbers: Table


class Section(NamedTuple):
    """A section of the page, with a heading; `full`: as wide as the page, not beside another section."""

    title: str
    text: str
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    full: bool = False


def summary_sections(splits: Splits, categories: Sequence[Mapping[str, Any]]) -> list[Section]:
    """Returns the sections of statistics, from the categories to the colour modes.

    Args:
        splits: summaries by split name; at least one has an image.
        categories: COCO categories, with `id` and `name`.
    """
    return [
        *_category_sections(splits, categories),
        _objects(splits),
        _box_sizes(splits),
        _box_aspects(splits),
        Section(
            "File formats and colour modes",
            "Read from the image files, not from their names.",
            tables=[
                text_table("format", {split: part.formats for split, part in splits.items()}),
                text_table("colour mode", {split: part.modes for split, part in splits.items()}),
            ],
        ),
        _image_sizes(splits),
    ]


def _category_sections(splits: Splits, categories: Sequence[Mapping[str, Any]]) -> list[Section]:
    instances = total(splits.values()).instances
    ordered = sorted(categories, key=lambda category: (-instances[category["id"]], category["id"]))
    missing = missing_table(splits, categories)
    # On a linear scale, bars of rare categories would be invisible.
    logarithmic = bool(instances) and max(instances.values()) > _WIDE_RANGE * median(instances.values())
    text = "The most frequent first. An image counts once for each of its categories."
    return [
        Section(
            "Categories",
            f"{text} Bars are logarithmic." if logarithmic else text,
            tables=[category_table(splits, ordered, logarithmic=logarithmic)],
            full=True,
        ),
        Section(
            "Categories without annotations",
            "A category without annotations in train is not learned; without annotations in eval it has no AP."
            if missing.rows
            else "Every split has annotations of every category.",
            tables=[missing] if missing.rows else [],
            full=True,
        ),
    ]


def _objects(splits: Splits) -> Section:
    histogram = Histogram(
        {split: part.histogram("objects_per_image") for split, part in splits.items()},
        OBJECTS_EDGES,
        {},
        "annotations per image",
        "images",
        single=True,
    )
    return Section("Annotations per image", "A crowd counts as one.", [_histogram_chart(histogram)])


def _box_sizes(splits: Splits) -> Section:
    histogram = Histogram(
        {split: part.histogram("box_sizes") for split, part in splits.items()},
        SIZE_EDGES,
        {2.0**power: str(2**power) for power in range(15)},
        "square root of a box's area, pixels",
        "annotations",
        {32.0: "COCO: small | medium", 96.0: "medium | large"},
    )
    text = "Pixels of the stored image; the detector sees it scaled to its input."
    return Section("Box sizes", text, [_histogram_chart(histogram)], [coco_size_table(splits)])


def _box_aspects(splits: Splits) -> Section:
    histogram = Histogram(
        {split: part.histogram("box_aspects") for split, part in splits.items()},
        ASPECT_EDGES,
        _ASPECTS,
        "width : height of a box",
        "annotations",
    )
    return Section("Box shapes", "Tall boxes are below 1:1, wide boxes above.", [_histogram_chart(histogram)])


def _image_sizes(splits: Splits) -> Section:
    sides = {
        "width of an image, pixels": {split: part.histogram("widths") for split, part in splits.items()},
        "height of an image, pixels": {split: part.histogram("heights") for split, part in splits.items()},
    }
    ticks = {float(side): f"{side:g}" for side in _ROUND_SIDES}
    charts = [_histogram_chart(Histogram(counts, SIDE_EDGES, ticks, what, "images")) for what, counts in sides.items()]
    return Section("Image sizes", "Pixels as stored, without EXIF rotation.", charts, [side_table(splits)], full=True)


def _histogram_chart(histogram: Histogram) -> Chart:
    labels = bin_labels(histogram.edges, single=histogram.single)
    counts = {split: column.tolist() for split, column in histogram.counts.items()}
    numbers = histogram_table(counts, labels, histogram.xlabel)
    tops = [
        f"{split}: most often {labels[column.index(max(column))]}" for split, column in counts.items() if any(column)
    ]
    alt = f"Histogram: {histogram.xlabel}, fraction of {histogram.fraction_of}. {'; '.join(tops)}."
    return Chart(plot_of(histogram), alt, numbers)
