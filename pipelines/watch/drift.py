"""Drift of new data against the data of the last training, by the measures of TensorFlow Data Validation.

The statistics are counts made of the annotations; no image is read.  Numbers are in bins of fixed
edges: TFDV's own bins depend on the range of each data set, and tell equal distributions of whole
numbers apart.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from detection.datasets.annotations import index_annotations, is_crowd, open_entries
from detection.datasets.readers.converted import as_coco
from detection.datasets.splits import SplitFiles
from detection.datasets.statistics import ASPECT_EDGES, SIDE_EDGES
from detection.storage.atomic import write_json
from detection.storage.files import is_file
from detection.storage.json_files import parse_file
from detection.storage.paths import join
from pipelines.runs.comparison import RunInputs, inputs_of
from pipelines.runs.run_record import RunRecord
from schemas.config.watch import DriftConfig
from schemas.errors import ConfigError

CATEGORY = "category"
# Inner edges of the bins.
_EDGES: Mapping[str, Sequence[float]] = {
    "relative box size": [2.0 ** (half / 2) for half in range(-16, 1)],  # root of the box's area over the image's
    "box aspect ratio": ASPECT_EDGES,
    "objects per image": [1.0, 2.0, 3.0, 5.0, 9.0, 17.0, 33.0, 65.0],
    "image width": SIDE_EDGES,
    "image height": SIDE_EDGES,
}

Counts = dict[str, dict[str, int]]  # by feature: how often each category's name, or each bin, occurs
_COUNTS = TypeAdapter(Counts)


class Drift(NamedTuple):
    """Drift of one feature.

    value: L-infinity distance of the categories' shares, or Jensen-Shannon divergence (base 2) of the bins;
        None: the feature has no values in one of the data sets.
    """

    feature: str
    value: float | None
    threshold: float

    @property
    def is_above(self) -> bool:
        """True if the feature drifted."""
        return self.value is None or self.value > self.threshold

    def __str__(self) -> str:
        value = "undefined" if self.value is None else f"{self.value:.3f}"
        return f"{self.feature} {value} ({'above' if self.is_above else 'up to'} {self.threshold:g})"


def drift_reason(drifts: Sequence[Drift]) -> str:
    """Returns what was measured as part of a sentence, the features that drifted first."""
    ordered = sorted(drifts, key=lambda drift: not drift.is_above)
    what = "drifted" if any(drift.is_above for drift in drifts) else "no drift"
    return f"{what}: {', '.join(map(str, ordered))}"


def count_values(split: SplitFiles) -> Counts:
    """Counts the values of each feature: names of the objects' categories, and bins of numbers as texts.

    Crowds, and entries that the example gen finds invalid, are left out.

    Args:
        split: COCO files.

    Raises:
        DataError: the annotation file cannot be read.
    """
    counts: dict[str, Counter[str]] = {feature: Counter() for feature in (CATEGORY, *_EDGES)}
    for feature, value in _values(split):
        counts[feature][value if isinstance(value, str) else f"bin {bisect_right(_EDGES[feature], value)}"] += 1
    return {**counts}


def _values(split: SplitFiles) -> Iterator[tuple[str, Any]]:
    split = as_coco(split).files
    file = index_annotations(split.annotations, group=split.group)
    names = {category["id"]: str(category["name"]) for category in file.categories}
    ids = [image_id for image_id in file.images if split.holds_group(file.groups[image_id])][:: split.every]
    with open_entries(split.annotations, None) as read_entries:
        for image_id in ids:
            image, annotations = read_entries(file.places(image_id))
            objects = [one for one in annotations if not is_crowd(one)]
            width, height = image.get("width"), image.get("height")
            yield "objects per image", len(objects)
            if width and height:
                yield "image width", width
                yield "image height", height
            for one in objects:
                yield CATEGORY, names.get(one["category_id"], str(one["category_id"]))
                yield from _of_box(one["bbox"], (width or 0) * (height or 0))


def _of_box(bbox: Sequence[float], image_area: float) -> Iterator[tuple[str, float]]:
    _, _, width, height = bbox
    if width > 0 and height > 0:
        yield "box aspect ratio", width / height
        if image_area:
            yield "relative box size", (width * height / image_area) ** 0.5


def measure(split: SplitFiles, options: DriftConfig, *, destination: str, reference: str | None) -> list[Drift]:
    """Computes and writes the statistics of a split, and compares them with those of an earlier one.

    Args:
        split: COCO files.
        options: thresholds.
        destination: file for the statistics.
        reference: statistics to compare with; None: only writes.

    Returns:
        The drift of every feature; empty without a reference.

    Raises:
        ConfigError: the split has TFRecords.
        DataError: a file cannot be read or written.
    """
    if split.images is None:
        raise ConfigError("watch.drift needs COCO annotation files, and the data has TFRecords. Set it to false.")
    current = count_values(split)
    write_json(destination, current)
    if reference is None:
        return []
    before = parse_file(_COUNTS, reference, what="statistics of `watch`", remedy="Remove the file.")
    thresholds = {CATEGORY: options.infinity_norm, **dict.fromkeys(_EDGES, options.jensen_shannon_divergence)}
    return [
        Drift(feature, distance(feature, current[feature], before.get(feature, {})), threshold)
        for feature, threshold in thresholds.items()
    ]


def drift_since(
    trained: RunRecord | None, inputs: RunInputs, split: SplitFiles, options: DriftConfig, *, folder: str
) -> list[Drift]:
    """Measures the drift since the last training, and writes the statistics for the next time.

    Args:
        trained: newest finished run; None: there is none.
        inputs: what a run would read.
        split: its training split.
        options: thresholds.
        folder: of the statistics, each file named after the fingerprint of the data.

    Returns:
        The drift of every feature; empty without statistics of that training, or if its configuration differs.

    Raises:
        ConfigError, DataError: see `measure`.
    """
    reference, last = None, None if trained is None else inputs_of(trained)
    if last is not None and last.deciding == inputs.deciding:
        before = _statistics_path(folder, last)
        reference = before if is_file(before) else None
    return measure(split, options, destination=_statistics_path(folder, inputs), reference=reference)


def _statistics_path(folder: str, inputs: RunInputs) -> str:
    return join(folder, f"{inputs.data.input_fingerprint}.json")


def distance(feature: str, current: Mapping[str, int], before: Mapping[str, int]) -> float | None:
    """Returns the drift of a feature between two counts of its values, see `Drift.value`."""
    if not current or not before:
        return None
    totals = sum(current.values()), sum(before.values())
    shares = [(current.get(key, 0) / totals[0], before.get(key, 0) / totals[1]) for key in {**current, **before}]
    if feature == CATEGORY:
        return max(abs(a - b) for a, b in shares)
    return sum(share * math.log2(2 * share / (a + b)) for a, b in shares for share in (a, b) if share) / 2
