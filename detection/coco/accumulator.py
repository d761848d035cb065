"""Exact COCO metrics over images in any order and from several workers."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

import numpy as np

from detection.coco.engine import Arrays, MatchingEngine
from detection.coco.engine.streaming import require_arrays
from detection.coco.metric import Matched, Metric, with_values
from detection.coco.metrics import CocoMetrics, metrics_from_arrays
from detection.coco.params import Params, make_params
from detection.coco.partitions import WHOLE, Partition, by_category, partition_params
from detection.coco.validation.checks import Checked, InvalidEntry, check_categories, check_whole_images
from detection.datasets.annotations.entries import Entry, Ids, Rows
from schemas.errors import ConfigError, DataError


class MetricsAccumulator:
    """Mergeable evaluation: shards in any order give the same metrics as all images at once, bit for bit.

    Add each image exactly once, with all its annotations and detections, also images without any.
    """

    def __init__(
        self,
        categories: Sequence[Entry],
        params: Params | None = None,
        *,
        partition: Partition = WHOLE,
        where: str = "data",
    ) -> None:
        """Creates an accumulator without images.

        Args:
            categories: categories of the data set.
            params: parameters of the evaluation, to which `fit_keypoints` is applied; for a partition by one
                category, they have to be fitted to all categories before; default boxes.
            partition: part of the evaluation to accumulate.  A partition of one category needs neither
                images without annotations and detections of it, nor entries of other
                categories; but the best detections of an image in LVIS are selected among all
                of its categories (`best_of_images`).
            where: source of the categories, for errors.

        Raises:
            ConfigError: the evaluation has no such partition; see `fit_keypoints`.
            DataError: a category without a unique id; too many categories for their
                arrays.
        """
        self._categories = list(categories)
        params = params or make_params()
        self._category_ids = check_categories(self._categories, where=where, lvis=params.lvis)
        if params.iou_type == "keypoints":
            from detection.coco.keypoint_sigmas import fit_keypoints

            params = fit_keypoints(params, self._categories)
        self._params = params if partition == WHOLE else partition_params(partition, self._categories, params)
        if partition.category_id is None:
            require_arrays(len(self._category_ids), self._params, where=where)
        self._partition = partition
        self._engine = MatchingEngine(self._categories, self._params, category_id=partition.category_id)
        self._image_ids: Ids = np.zeros(0, np.int64)
        # Partitions hold COCO's arrays only.
        names = self._params.metrics if partition == WHOLE else ()
        self._matched: dict[Metric, list[Matched]] = {}
        if names:
            from detection.coco.average_precision import named_metric

            self._matched = {named_metric(name): [] for name in names}

    def add(
        self,
        images: Sequence[Entry],
        annotations: Sequence[Entry],
        detections: Sequence[Entry] | Rows,
        *,
        where: str = "ground truth",
        where_detections: str = "detections",
        skip_invalid: bool = False,
    ) -> list[InvalidEntry]:
        """Matches the detections of images with all their entries.

        Args:
            images: COCO `images` entries.
            annotations: COCO `annotations` entries of these images.
            detections: COCO results of these images, or for boxes rows [N, 7]:
                image_id, x, y, width, height, score, category_id.  Equal scores
                within an image rank in the given order.
            where: source of images and annotations, for errors.
            where_detections: source of the detections, for errors.
            skip_invalid: skip invalid entries, and all entries of an invalid image.

        Returns:
            The skipped entries; empty unless `skip_invalid`.

        Raises:
            DataError: an entry is invalid, or an image was added before.
        """
        skipped: list[InvalidEntry] = []
        checked = check_whole_images(
            images,
            annotations,
            detections,
            category_ids=self._category_ids,
            params=self._params,
            where=where,
            where_detections=where_detections,
            skipped=skipped if skip_invalid else None,
        )
        if self._partition.category_id is not None:
            checked = by_category(checked).get(self._partition.category_id, Checked([], [], []))
        self.add_checked(checked, where=where)
        return skipped

    def add_checked(self, checked: Checked, *, where: str = "ground truth") -> None:
        """Matches entries that `check_whole_images` has validated; for a partition, those of its category.

        Raises:
            DataError: an image was added before.
        """
        self._take_images(checked.image_ids, where)
        self._engine.add(*checked, where=where)
        for metric, parts in self._matched.items():
            parts.append(metric.match(checked, self._categories, self._params.iou_type))

    def merge(self, other: "MetricsAccumulator") -> None:
        """Merges the images of another accumulator with the same categories, params and partition.

        Raises:
            DataError: an image is in both.
        """
        self._take_images(other._image_ids, "merged evaluation")
        self._engine.merge(other._engine)
        for metric, parts in self._matched.items():
            parts.extend(other._matched[metric])

    def arrays(self) -> Arrays:
        """Returns COCOeval's arrays over the images so far; more may be added afterwards.

        `detection.coco.partitions.metrics_of_partitions` combines the arrays of all partitions.
        """
        return self._engine.arrays()

    def result(self, *, last: bool = False) -> CocoMetrics:
        """Returns the metrics over the images so far; more may be added afterwards unless `last`, which saves a copy.

        Raises:
            ConfigError: this is a partition of an evaluation.
        """
        if self._partition != WHOLE:
            raise ConfigError(f"{self._partition} has no metrics by itself. Use `arrays` and `metrics_of_partitions`.")
        metrics = metrics_from_arrays(self._engine.arrays(last=last), self._categories, self._params)
        if not self._matched:
            return metrics
        ids = sorted(self._category_ids.tolist())
        values = {one.name: one.values(Matched.merged(parts), ids) for one, parts in self._matched.items()}
        return with_values(metrics, values)

    def to_bytes(self) -> bytes:
        """Serializes the state, for another process.

        About 4 KB, plus 80 bytes per category, 16 per image, 50 per category in an image, and 18 per
        detection (10 with a single area range).
        """
        matched = (Matched.merged(parts).to_bytes() for parts in self._matched.values())
        parts = [self._image_ids.tobytes(), *matched, *self._engine.to_bytes()]
        return b"".join([len(part).to_bytes(8, "little") + part for part in parts])

    @classmethod
    def from_bytes(
        cls, state: bytes, categories: Sequence[Entry], params: Params | None = None, *, partition: Partition = WHOLE
    ) -> "MetricsAccumulator":
        """Inverse of `to_bytes`, given the same categories, params and partition."""
        restored = cls(categories, params, partition=partition)
        ids, *rows = _split_state(state)
        restored._image_ids = np.frombuffer(ids, np.int64)
        for parts in restored._matched.values():
            parts.append(Matched.from_bytes(rows.pop(0)))
        restored._engine.restore([rows])
        return restored

    @classmethod
    def arrays_of_states(
        cls,
        states: Iterable[bytes],
        categories: Sequence[Entry],
        params: Params | None = None,
        *,
        partition: Partition = WHOLE,
    ) -> Arrays:
        """Returns `arrays` over the images of many states, at least one, with equal arguments.

        Loads one state at a time and does not copy the sum, to minimize peak memory.

        Raises:
            DataError: an image is in several states.
        """
        whole = cls(categories, params, partition=partition)
        image_ids: list[Ids] = []

        def opened() -> Iterator[list[bytes]]:
            for state in states:
                ids, *rows = _split_state(state)
                image_ids.append(np.frombuffer(ids, np.int64))
                yield rows[len(whole._matched) :]

        whole._engine.restore(opened())
        require_once(np.concatenate(image_ids), "merged evaluation")
        image_ids.clear()
        return whole._engine.arrays(last=True)

    def _take_images(self, image_ids: Ids, where: str) -> None:
        again = np.intersect1d(self._image_ids, image_ids)
        if again.size:
            _refuse_again(again, where)
        self._image_ids = np.concatenate([self._image_ids, image_ids])


def require_once(image_ids: Ids, where: str) -> None:
    """Checks that no image was added twice.

    Raises:
        DataError: an image was added twice.
    """
    ordered = np.sort(image_ids)
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if again.size:
        _refuse_again(np.unique(again), where)


def _refuse_again(again: Ids, where: str) -> NoReturn:
    raise DataError(
        f"{where}: image {', '.join(map(str, again[:5].tolist()))} was added more than once "
        f"({again.size} such ids). Write each image into one record of the split only."
    )


def _split_state(state: bytes) -> list[bytes]:
    """Splits a state into its parts, image ids first."""
    parts, start = [], 0
    while start < len(state):
        end = start + 8 + int.from_bytes(state[start : start + 8], "little")
        parts.append(state[start + 8 : end])
        start = end
    return parts
