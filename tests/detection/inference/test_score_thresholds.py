import json
from pathlib import Path

import numpy as np
import pytest

from detection.inference.results import Results
from detection.inference.score_thresholds import (
    SCORE_THRESHOLDS_FILE,
    CategoryThreshold,
    ScoreThresholds,
    Threshold,
    keep_confident,
    read_score_thresholds,
)
from schemas.errors import DataError

SCORE = float(np.float32(0.7))  # a score of float32, which JSON has to keep to the bit
OVERALL = Threshold(0.3, 0.4, 0.6, 0.48)
THRESHOLDS = ScoreThresholds(
    "bbox",
    0.5,
    12,
    OVERALL,
    [CategoryThreshold(SCORE, 0.5, 0.25, 1 / 3, id=7, name="cat"), CategoryThreshold(id=2, name="dog ß")],
)


def write(folder: Path, content: bytes) -> Path:
    (folder / SCORE_THRESHOLDS_FILE).parent.mkdir(parents=True, exist_ok=True)
    (folder / SCORE_THRESHOLDS_FILE).write_bytes(content)
    return folder


def test_thresholds_come_back_as_they_were(tmp_path: Path) -> None:
    assert read_score_thresholds(write(tmp_path, THRESHOLDS.as_bytes())) == THRESHOLDS
    bare = ScoreThresholds("segm", 0.75, 1, Threshold(), [])
    assert read_score_thresholds(write(tmp_path, bare.as_bytes())) == bare
    assert bare.of_category(7) == 0.0


def test_detections_below_the_threshold_of_their_category_are_left_out() -> None:
    scores = [0.9, SCORE, 0.69, 0.3, 0.29, 0.31]
    categories = [7, 7, 7, 2, 2, 99]
    rows = np.array([[1, 0, 0, 5, 5, *one] for one in zip(scores, categories, strict=True)], np.float64)
    masks = [{"size": [1, 1], "counts": str(number)} for number in range(6)]
    results = Results(rows, masks=masks, keypoints=np.arange(18.0).reshape(6, 1, 3))
    kept = keep_confident(results, THRESHOLDS)
    np.testing.assert_array_equal(kept.rows, rows[[0, 1, 3, 5]])
    assert kept.masks is not None
    assert [one["counts"] for one in kept.masks] == ["0", "1", "3", "5"]
    assert kept.keypoints is not None
    np.testing.assert_array_equal(kept.keypoints[:, 0, 0], [0, 3, 9, 15])
    empty = keep_confident(Results(np.zeros((0, 7))), THRESHOLDS)
    assert len(empty) == 0


def test_a_model_without_thresholds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no assets\.extra/score_thresholds\.json, so this model has no score thresh"):
        read_score_thresholds(tmp_path)


@pytest.mark.parametrize("change", [{"categories": [{}]}, {"overall": 3}, {"images": None}, {"iou": "x"}])
def test_damaged_thresholds_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    content = json.dumps(json.loads(THRESHOLDS.as_bytes()) | change).encode()
    with pytest.raises(DataError, match=r"thresholds\.json: not score thresholds of this version: .*Push or copy"):
        read_score_thresholds(write(tmp_path, content))
