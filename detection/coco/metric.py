"""The contract of a metric besides COCO's: matched images give rows, and merged rows give numbers.

A new metric is a class with `match` and `values`, its line in `average_precision.named_metric`, and its name in
`schemas.metrics`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from detection.coco.metrics import UNDEFINED, CocoMetrics
from detection.coco.params import IntArray
from detection.coco.validation.checks import Checked
from detection.datasets.annotations.entries import Entry
from schemas.metrics import other_metric

Records = npt.NDArray[Any]

_DETECTIONS = np.dtype([("image", np.int64), ("category", np.int64), ("score", np.float64), ("tp", np.float32)])
_COUNTS = np.dtype([("image", np.int64), ("category", np.int64), ("count", np.float64)])


class Matched(NamedTuple):
    """Matched images, which merge in any order; the rows of one image stay together.

    detections: `image`, `category`, `score` and `tp` (weight of a TP, 0: FP) of each counted detection.
    counts: `count` of ground truth to detect per `image` and `category`.
    """

    detections: Records
    counts: Records

    @classmethod
    def of(cls, detections: Sequence[tuple[Any, ...]], counts: Sequence[tuple[Any, ...]]) -> "Matched":
        """Creates the rows from tuples."""
        return cls(np.array(detections, _DETECTIONS), np.array(counts, _COUNTS))

    @classmethod
    def merged(cls, parts: Iterable["Matched"]) -> "Matched":
        """Joins the rows of images in several parts."""
        listed = [cls.of([], []), *parts]
        return cls(np.concatenate([part.detections for part in listed]), np.concatenate([one.counts for one in listed]))

    def drawn(self, image_ids: IntArray, times: npt.NDArray[np.integer[Any]]) -> "Matched":
        """Returns the rows of a bootstrap sample.

        Args:
            image_ids: ascending ids of all images, [N].
            times: number of times that each image is drawn, [N].
        """
        repeated = (np.repeat(rows, times[np.searchsorted(image_ids, rows["image"])]) for rows in self)
        return Matched(*repeated)

    def by_category(self, category_ids: Iterable[int]) -> Iterator[tuple[int, "Matched"]]:
        """Yields the rows of each category; keeps the order of an image's rows."""
        detections, counts = (rows[np.argsort(rows["category"], kind="stable")] for rows in self)
        for category_id in category_ids:
            ends = (np.searchsorted(rows["category"], [category_id, category_id + 1]) for rows in (detections, counts))
            yield (
                category_id,
                Matched(*(rows[slice(*end)] for rows, end in zip((detections, counts), ends, strict=True))),
            )

    def to_bytes(self) -> bytes:
        """Serializes the rows: 28 bytes per detection, 24 per category in an image."""
        return len(self.detections).to_bytes(8, "little") + self.detections.tobytes() + self.counts.tobytes()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Matched":
        """Inverse of `to_bytes`."""
        end = 8 + _DETECTIONS.itemsize * int.from_bytes(content[:8], "little")
        return cls(np.frombuffer(content[8:end], _DETECTIONS), np.frombuffer(content[end:], _COUNTS))


class Values(NamedTuple):
    """Values of a metric, -1 where undefined.

    overall: over all categories.
    per_category: by category id.
    """

    overall: float
    per_category: Mapping[int, float]

    @classmethod
    def mean_of(cls, per_category: Mapping[int, float]) -> "Values":
        """Averages the defined values of the categories."""
        defined = [value for value in per_category.values() if value != UNDEFINED]
        return cls(float(np.mean(defined)) if defined else UNDEFINED, per_category)


class Metric(Protocol):
    """A metric of complete images.

    name: name in files, tables and thresholds, such as `pascal_voc_AP50`.
    iou: IoU threshold of a match.
    pooled: whether `Values.overall` needs the rows of all categories; else it is `Values.mean_of`.
    """

    @property
    def name(self) -> str: ...  # noqa: D102 (above)

    @property
    def iou(self) -> float: ...  # noqa: D102 (above)

    @property
    def pooled(self) -> bool: ...  # noqa: D102 (above)

    def match(self, checked: Checked, categories: Sequence[Entry], iou_type: str) -> Matched:
        """Matches images with all their entries; `iou_type` is `bbox` or `segm`."""
        ...

    def values(self, matched: Matched, category_ids: Iterable[int]) -> Values:
        """Computes the values of these categories; the order of images must not matter."""
        ...


def with_values(metrics: CocoMetrics, values: Mapping[str, Values]) -> CocoMetrics:
    """Adds the values of further metrics, by name, to those of COCO."""
    rows = [
        {**row, **{name: one.per_category.get(row["id"], UNDEFINED) for name, one in values.items()}}
        for row in metrics.per_category
    ]
    return replace(
        metrics,
        by_name=metrics.by_name | {name: one.overall for name, one in values.items()},
        definitions=(*metrics.definitions, *map(other_metric, values)),
        per_category=rows,
    )
