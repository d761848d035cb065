"""Drift of new data against the data of the last training, by TensorFlow Data Validation.

The statistics are those of a small table made of the annotations; no image is read.  Numbers
are in bins of fixed edges: TFDV's own bins depend on the range of each data set, and tell
equal distributions of whole numbers apart.  TensorFlow is loaded in a process of its own,
which returns its memory.
"""

import multiprocessing
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

from detection.datasets.annotations import index_annotations, is_crowd, open_entries
from detection.datasets.layouts import SplitFiles
from detection.datasets.statistics import ASPECT_EDGES, SIDE_EDGES
from detection.storage.atomic import write_bytes
from detection.storage.files import is_file
from detection.storage.paths import join
from detection.storage.reading import read_bytes
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

Table = dict[str, list[str]]


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


def annotation_table(split: SplitFiles) -> Table:
    """Returns the values of each feature: names of the objects' categories, and bins of numbers as texts.

    Crowds, and entries that the example gen finds invalid, are left out.

    Args:
        split: COCO files.

    Raises:
        DataError: the annotation file cannot be read.
    """
    table: Table = {CATEGORY: [], **{name: [] for name in _EDGES}}
    for feature, value in _values(split):
        table[feature].append(value if isinstance(value, str) else f"bin {bisect_right(_EDGES[feature], value)}")
    return table


def _values(split: SplitFiles) -> Iterator[tuple[str, Any]]:
    file = index_annotations(split.annotations)
    names = {category["id"]: str(category["name"]) for category in file.categories}
    ids = [image_id for image_id in file.images if split.holds(image_id)][:: split.every]
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
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        values = pool.submit(_measure, split, dict(_thresholds(options)), destination, reference).result()
    if reference is None:
        return []
    return [Drift(feature, values.get(feature), threshold) for feature, threshold in _thresholds(options).items()]


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
    return join(folder, f"{inputs.data.input_fingerprint}.pb")


def _thresholds(options: DriftConfig) -> dict[str, float]:
    return {CATEGORY: options.infinity_norm, **dict.fromkeys(_EDGES, options.jensen_shannon_divergence)}


def _measure(
    split: SplitFiles, thresholds: Mapping[str, float], destination: str, reference: str | None
) -> dict[str, float]:
    """Does the work of `measure` in another process; returns the values by feature."""
    from pipelines.console import quiet_run

    with quiet_run(None, verbose=False):
        current = statistics_of(annotation_table(split))
        write_bytes(destination, current.SerializeToString())
        return {} if reference is None else compare(current, parse(read_bytes(reference)), thresholds)


def statistics_of(table: Table) -> Any:
    """Returns a table's statistics, a `DatasetFeatureStatisticsList`."""
    import pandas
    import tensorflow_data_validation as tfdv

    frame = pandas.DataFrame({name: pandas.Series(values, dtype=object) for name, values in table.items() if values})
    # All values count, not only the most frequent.
    buckets = max([1, *(frame[name].nunique() for name in frame)])
    return tfdv.generate_statistics_from_dataframe(frame, tfdv.StatsOptions(num_rank_histogram_buckets=buckets))


def parse(content: bytes) -> Any:
    """Reads statistics from their bytes."""
    from tensorflow_metadata.proto.v0 import statistics_pb2

    return statistics_pb2.DatasetFeatureStatisticsList.FromString(content)


def compare(current: Any, previous: Any, thresholds: Mapping[str, float]) -> dict[str, float]:
    """Returns the drift between two statistics by feature, without features that one of them lacks."""
    import tensorflow_data_validation as tfdv
    from tensorflow_metadata.proto.v0 import schema_pb2

    schema = schema_pb2.Schema()
    known = [{feature.path.step[0] for feature in one.datasets[0].features} for one in (current, previous)]
    for name, threshold in thresholds.items():
        if not known[0] & known[1] & {name}:
            continue
        comparator = schema.feature.add(name=name, type=schema_pb2.BYTES).drift_comparator
        kind = comparator.infinity_norm if name == CATEGORY else comparator.jensen_shannon_divergence
        kind.threshold = threshold
    anomalies = tfdv.validate_statistics(current, schema, previous_statistics=previous)
    return {info.path.step[0]: info.drift_measurements[0].value for info in anomalies.drift_skew_info}
