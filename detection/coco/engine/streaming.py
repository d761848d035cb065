"""Matching of images that come in any order and in several places, as one mergeable state."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import hotcoco
import numpy as np
import numpy.typing as npt

from detection.coco.columns import Entry, Rows
from detection.coco.engine.parameters import engine_parameters
from detection.coco.figures import FloatArray
from detection.coco.settings import Settings
from schemas.errors import DataError

_AT_ONCE = 5_000  # images; what the engine needs beside its state follows from them


@dataclass(frozen=True, eq=False)
class Arrays:
    """What COCOeval's `accumulate` leaves, -1 where there is no ground truth.

    precision: float64 [T, R, K, A, M]: IoU thresholds, recall thresholds 0, 0.01,
        ... 1, categories by ascending id, area ranges, `max_dets`.
    recall: float64 [T, K, A, M].
    scores: float64 [T, R, K, A, M].
    category_ids: the K ids; those of all categories, too, where K is 1 because
        categories were not told apart.
    """

    precision: FloatArray
    recall: FloatArray
    scores: FloatArray
    category_ids: tuple[int, ...]


class MatchingEngine:
    """Mergeable state of an evaluation; what enters was checked before."""

    def __init__(self, categories: Sequence[Entry], settings: Settings, *, category_id: int | None = None) -> None:
        """Args: `categories` of the data set; `settings`; `category_id`, the only one to be matched, default all."""
        parameters = engine_parameters(settings)
        if category_id is not None:
            parameters.cat_ids = [category_id]
        names = [{"id": category["id"], "name": str(category.get("name", category["id"]))} for category in categories]
        self._state = hotcoco.StreamingEval(names, settings.iou_type, settings.lvis, parameters)

    def add(
        self,
        images: Sequence[Entry],
        annotations: Sequence[Entry],
        detections: Sequence[Entry] | Rows,
        *,
        where: str,
    ) -> None:
        """Matches the detections of some images.

        Args:
            images: COCO entries of whole images, each added only once.
            annotations: COCO entries of their objects.
            detections: COCO results, or float64 [N, 7] rows (image_id, x, y, width,
                height, score, category_id).
            where: names the source in error messages.

        Raises:
            DataError: the engine refuses a value.
        """
        try:
            for some in _groups(list(images), list(annotations), detections):
                self._state.update(*some)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{where}: cannot be evaluated: {error}. Correct it in the file.") from error

    def merge(self, other: "MatchingEngine") -> None:
        """Takes over the images of another engine of the same categories and settings."""
        self._state = hotcoco.StreamingEval.merge([self._state, other._state])

    def to_bytes(self) -> bytes:
        """The state, for another process."""
        return bytes(self._state.to_bytes())

    def restore(self, state: bytes) -> None:
        """Replaces the state by one that `to_bytes` wrote."""
        self._state = hotcoco.StreamingEval.from_bytes(state)

    def restore_all(self, states: Iterable[bytes]) -> None:
        """Replaces the state by that of all images of some states, at least one, read one at a time."""
        self._state = hotcoco.StreamingEval.merge(hotcoco.StreamingEval.from_bytes(state) for state in states)

    def arrays(self, *, last: bool = False) -> Arrays:
        """Sums up what was added so far; more may be added afterwards unless `last`, which saves the copy."""
        evaluated = (self._state if last else copy.copy(self._state)).finalize()
        evaluated.accumulate()
        sums: dict[str, Any] = evaluated.eval or {}
        return Arrays(
            precision=np.asarray(sums["precision"]),
            recall=np.asarray(sums["recall"]),
            scores=np.asarray(sums["scores"]),
            category_ids=tuple(evaluated.params.cat_ids),
        )


def _groups(
    images: list[Any], annotations: list[Any], detections: Sequence[Entry] | Rows
) -> Iterator[tuple[list[Any], list[Any], Any]]:
    """Some thousand images at a time, with what belongs to them, in the order given."""
    if len(images) <= _AT_ONCE:
        yield images, annotations, detections if isinstance(detections, np.ndarray) else list(detections)
        return
    image_ids = np.array([image["id"] for image in images], np.int64)
    order = np.argsort(image_ids)
    starts = range(0, len(images), _AT_ONCE)

    def divided(ids: npt.NDArray[Any]) -> list[npt.NDArray[np.int64]]:
        """Positions of the entries of each group's images."""
        groups = np.searchsorted(image_ids[order], ids) // _AT_ONCE
        by_group = np.argsort(groups, kind="stable")
        return np.split(by_group, np.searchsorted(groups[by_group], range(1, len(starts))))

    rows = detections if isinstance(detections, np.ndarray) else None
    of_annotations = divided(np.array([annotation["image_id"] for annotation in annotations], np.int64))
    of_detections = divided(
        np.array([detection["image_id"] for detection in detections], np.int64) if rows is None else rows[:, 0]
    )
    for start, objects, found in zip(starts, of_annotations, of_detections, strict=True):
        yield (
            [images[position] for position in order[start : start + _AT_ONCE]],
            [annotations[position] for position in objects],
            [detections[position] for position in found] if rows is None else rows[found],
        )
