"""Matching of images that come in any order and in several places, as one mergeable state."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import hotcoco
import numpy as np

from detection.coco.columns import Entry, Rows
from detection.coco.engine.parameters import engine_parameters
from detection.coco.figures import FloatArray
from detection.coco.settings import Settings
from schemas.errors import DataError


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
        self._state = hotcoco.StreamingEval(names, settings.iou_type, False, parameters)

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
        found: Any = detections if isinstance(detections, np.ndarray) else list(detections)
        truth: list[Any] = list(annotations)
        entries: list[Any] = list(images)
        try:
            self._state.update(entries, truth, found)
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
