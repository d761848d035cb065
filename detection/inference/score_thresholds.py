"""Score thresholds per category in a pushed model: those with the highest F1 in its evaluation."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from detection.inference.results import Results
from detection.storage.files import is_file
from detection.storage.json_files import parse_file
from detection.storage.paths import join
from schemas.artifacts import EXTRA_FILES, SCORE_THRESHOLDS_JSON
from schemas.errors import DataError

SCORE_THRESHOLDS_FILE = join(EXTRA_FILES, SCORE_THRESHOLDS_JSON)
BEST_F1 = "best-f1"  # criterion of the thresholds


@dataclass(frozen=True)
class Threshold:
    """A score threshold, and the metrics of the detections with at least this score; None: no TP was found."""

    threshold: float | None = None
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None


@dataclass(frozen=True, kw_only=True)
class CategoryThreshold(Threshold):
    """The threshold of a category."""

    id: int
    name: str


@dataclass(frozen=True)
class ScoreThresholds:
    """Score thresholds of a model.

    iou_type: compared outputs: `bbox`, `segm` or `keypoints`.
    iou: IoU threshold of a TP.
    images: number of evaluated images.
    overall: threshold of all categories together.
    categories: thresholds by category.
    """

    iou_type: str
    iou: float
    images: int
    overall: Threshold
    categories: list[CategoryThreshold]

    def of_category(self, category_id: int) -> float:
        """Returns the threshold of a category; else that of all categories; else 0."""
        own = next((one.threshold for one in self.categories if one.id == category_id), None)
        return (self.overall.threshold or 0.0) if own is None else own

    def as_bytes(self) -> bytes:
        """Returns the file's content."""
        categories = [{"id": one.id, "name": one.name, **asdict(one)} for one in self.categories]
        content = {"criterion": BEST_F1, **asdict(self), "categories": categories}
        return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


_FORMAT = TypeAdapter(ScoreThresholds)


def read_score_thresholds(model: str | Path) -> ScoreThresholds:
    """Reads the thresholds of a pushed model.

    Args:
        model: SavedModel folder, local or remote.

    Raises:
        DataError: the model has no thresholds, or the file is damaged.
    """
    path = join(model, SCORE_THRESHOLDS_FILE)
    if not is_file(path):
        raise DataError(
            f"{model}: no {SCORE_THRESHOLDS_FILE}, so this model has no score thresholds. The pipeline adds them "
            "to the SavedModels that it pushes, if it evaluates without test-time augmentation: pass such a version, "
            "or remove --score-thresholds."
        )
    return parse_file(_FORMAT, path, what="score thresholds", remedy="Push or copy the model again.")


def keep_confident(results: Results, thresholds: ScoreThresholds) -> Results:
    """Returns the detections whose score is at least the threshold of their category, in their order."""
    limits = [thresholds.of_category(int(category)) for category in results.rows[:, 6]]
    return results.select(results.rows[:, 5] >= np.array(limits, np.float64))
