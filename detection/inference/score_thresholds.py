"""Score thresholds per category in a pushed model: those with the highest F1 in its evaluation."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from detection.inference.results import Results
from detection.storage.files import is_file
from detection.storage.json_files import read_json
from detection.storage.paths import join
from schemas.artifacts import EXTRA_FILES, SCORE_THRESHOLDS_JSON
from schemas.errors import DataError

SCORE_THRESHOLDS_FILE = join(EXTRA_FILES, SCORE_THRESHOLDS_JSON)
BEST_F1 = "best-f1"  # criterion of the thresholds


@dataclass(frozen=True)
class Threshold:
    """A score threshold, and the metrics of the detections with at least this score."""

    threshold: float
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class CategoryThreshold:
    """The threshold of a category; None: the evaluation found no TP."""

    id: int
    name: str
    best: Threshold | None


@dataclass(frozen=True)
class ScoreThresholds:
    """Score thresholds of a model.

    iou_type: compared outputs: `bbox`, `segm` or `keypoints`.
    iou: IoU threshold of a TP.
    images: number of evaluated images.
    overall: threshold of all categories together; None: no TP.
    categories: thresholds by category.
    """

    iou_type: str
    iou: float
    images: int
    overall: Threshold | None
    categories: list[CategoryThreshold]

    def of_category(self, category_id: int) -> float:
        """Returns the threshold of a category; else that of all categories; else 0."""
        own = next((one.best for one in self.categories if one.id == category_id), None)
        best = own or self.overall
        return best.threshold if best else 0.0

    def as_bytes(self) -> bytes:
        """Returns the file's content."""
        content = {
            "criterion": BEST_F1,
            "iou_type": self.iou_type,
            "iou": self.iou,
            "images": self.images,
            "overall": _as_json(self.overall),
            "categories": [{"id": one.id, "name": one.name, **_as_json(one.best)} for one in self.categories],
        }
        return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


_NO_THRESHOLD = dict.fromkeys(("threshold", "precision", "recall", "f1"))


def _as_json(best: Threshold | None) -> dict[str, float | None]:
    return dict(_NO_THRESHOLD) if best is None else dict(vars(best))


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
    content = read_json(path)
    try:
        return ScoreThresholds(
            iou_type=str(content["iou_type"]),
            iou=float(content["iou"]),
            images=int(content["images"]),
            overall=_threshold(content["overall"]),
            categories=[
                CategoryThreshold(int(one["id"]), str(one["name"]), _threshold(one)) for one in content["categories"]
            ],
        )
    except (TypeError, KeyError, ValueError):
        raise DataError(f"{path}: not score thresholds of this version. Push or copy the model again.") from None


def _threshold(entry: Any) -> Threshold | None:
    if entry["threshold"] is None:
        return None
    return Threshold(**{name: float(entry[name]) for name in _NO_THRESHOLD})


def keep_confident(results: Results, thresholds: ScoreThresholds) -> Results:
    """Returns the detections whose score is at least the threshold of their category, in their order."""
    limits = [thresholds.of_category(int(category)) for category in results.rows[:, 6]]
    return results.select(results.rows[:, 5] >= np.array(limits, np.float64))
