"""Exact COCO metrics over images that come in any order and in several places."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

import numpy as np

from detection.coco.engine import Arrays, MatchingEngine
from detection.coco.engine.streaming import require_arrays
from detection.coco.metrics import CocoMetrics, metrics_from_arrays
from detection.coco.params import Params, make_params
from detection.coco.partitions import WHOLE, Partition, by_category, partition_params
from detection.coco.validation.checks import Checked, check_categories, check_whole_images
from detection.coco.validation.invalid_entries import InvalidEntry
from detection.datasets.entries import Entry, Ids, Rows
from schemas.errors import ConfigError, DataError


class MetricsAccumulator:
    """Mergeable evaluation: shards in any order give the metrics of the whole, bit for bit.

    Each image, with all its annotations and detections, is added exactly once; images
    without any, too.
    """

    def __init__(
        self,
        categories: Sequence[Entry],
        params: Params | None = None,
        *,
        partition: Partition = WHOLE,
        where: str = "data",
    ) -> None:
        """Starts without any image.

        Args:
            categories: of the whole data set.
            params: of the whole evaluation; default boxes.
            partition: what of it is held here.  A partition of one category keeps nothing of
                images that have neither annotation nor detection of it, so these need not
                be added, nor what belongs to other categories; but LVIS' best detections
                of an image are chosen among all of its categories (`best_of_images`).
            where: names the source of the categories in errors.

        Raises:
            ConfigError: the evaluation has no such partition.
            DataError: a category without an id of its own; too many categories for
                their arrays.
        """
        self._categories = list(categories)
        params = params or make_params()
        self._category_ids = check_categories(self._categories, where=where, lvis=params.lvis)
        self._params = params if partition == WHOLE else partition_params(partition, self._categories, params)
        if partition.category_id is None:
            require_arrays(len(self._category_ids), self._params, where=where)
        self._partition = partition
        self._engine = MatchingEngine(self._categories, self._params, category_id=partition.category_id)
        self._image_ids: Ids = np.zeros(0, np.int64)

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
        """Matches whole images.

        Args:
            images: COCO `images` entries.
            annotations: COCO `annotations` entries of these images.
            detections: COCO results of these images, or for boxes rows [N, 7]:
                image_id, x, y, width, height, score, category_id.  Equal scores
                within an image rank in the order given.
            where: names the source of images and annotations in errors.
            where_detections: names the source of the detections in errors.
            skip_invalid: leave invalid entries out, and with an image all its entries.

        Returns:
            What was left out; empty unless `skip_invalid`.

        Raises:
            DataError: see `detection.coco.validation.checks`; an image was added before.
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
        """Matches whole images that `check_whole_images` has passed; for a partition, what belongs to its category.

        Raises:
            DataError: an image was added before.
        """
        self._take_images(checked.image_ids, where)
        self._engine.add(*checked, where=where)

    def merge(self, other: "MetricsAccumulator") -> None:
        """Takes over the images of another accumulator of the same categories, params and partition.

        Raises:
            DataError: an image is in both.
        """
        self._take_images(other._image_ids, "merged evaluation")
        self._engine.merge(other._engine)

    @property
    def image_count(self) -> int:
        """How many images were added; in a partition of one category, those that have something of it."""
        return len(self._image_ids)

    def arrays(self) -> Arrays:
        """COCOeval's arrays over what was added so far; more may be added afterwards.

        Those of all partitions make the whole: `detection.coco.partitions.metrics_of_partitions`.
        """
        return self._engine.arrays()

    def result(self, *, last: bool = False) -> CocoMetrics:
        """The metrics over what was added so far; more may be added afterwards unless `last`, which saves a copy.

        Raises:
            ConfigError: only a partition is held here.
        """
        if self._partition != WHOLE:
            raise ConfigError(
                f"{self._partition} has no metrics of the whole. Use `arrays` and `metrics_of_partitions`."
            )
        return metrics_from_arrays(self._engine.arrays(last=last), self._categories, self._params)

    def to_bytes(self) -> bytes:
        """The state, for another process.

        About 4 KB, 80 bytes per category, 16 per image, 50 for each category that an image
        has something of, and 18 a detection (10 with a single area range).
        """
        return len(self._image_ids).to_bytes(8, "little") + self._image_ids.tobytes() + self._engine.to_bytes()

    @classmethod
    def from_bytes(
        cls, state: bytes, categories: Sequence[Entry], params: Params | None = None, *, partition: Partition = WHOLE
    ) -> "MetricsAccumulator":
        """Inverse of `to_bytes`, given the same categories, params and partition."""
        restored = cls(categories, params, partition=partition)
        restored._image_ids, matches = _split_state(state)
        restored._engine.restore(matches)
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
        """`arrays` over the images of many states, at least one, given what they were made with.

        Each is read and let go before the next, and their sum is not copied: this is
        the way to the largest evaluation that a process has memory for.

        Raises:
            DataError: an image is in more than one of them.
        """
        whole = cls(categories, params, partition=partition)
        image_ids: list[Ids] = []

        def opened() -> Iterator[bytes]:
            for state in states:
                ids, matches = _split_state(state)
                image_ids.append(ids)
                yield matches

        whole._engine.restore_all(opened())
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
        DataError: one was.
    """
    ordered = np.sort(image_ids)
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if again.size:
        _refuse_again(np.unique(again), where)


def _refuse_again(again: Ids, where: str) -> NoReturn:
    raise DataError(
        f"{where}: image {', '.join(map(str, again[:5].tolist()))} comes more than once "
        f"({again.size} such ids in all). Write each image into one record of the split only."
    )


def _split_state(state: bytes) -> tuple[Ids, bytes]:
    """Image ids, and what the engine wrote."""
    end = 8 + 8 * int.from_bytes(state[:8], "little")
    return np.frombuffer(state[8:end], np.int64), state[end:]
