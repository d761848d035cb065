"""`train` of a detector with masks and keypoints: validation measures every IoU type."""

import json
from pathlib import Path

import numpy as np
import pytest

import pipeline_runner
from detection.training.validation.history import BestCheckpoint, read_history
from schemas.artifacts import BEST, HISTORY_JSON, SAVED_MODEL, VALIDATION
from tests.detection import mask_keypoint_detector
from tests.detection.coco.generated_cases import pycocotools_eval
from tests.detection.mask_keypoint_data import write_data

pytestmark = pytest.mark.slow


def test_validation_measures_what_the_exported_model_gives(tmp_path: Path) -> None:
    mask_keypoint_detector.register()
    data = tmp_path / "data"
    write_data(data, 4, split="train", seed=1)
    ground_truth = write_data(data, 6)
    assignments = (
        "model.name=mask-keypoint",
        "model.image_size=64",
        "train.steps=2",
        "train.batch_size=2",
        "train.validation={every: 1, split: eval, metric: segm/AP}",
        "evaluate.batch_size=4",
    )
    sets = [word for assignment in assignments for word in ("--set", assignment)]
    output = tmp_path / "out"
    assert pipeline_runner.main(["train", "--data", str(data), "--output", str(output), *sets]) == 0
    history = read_history(output / VALIDATION / HISTORY_JSON)
    assert [entry.step for entry in history] == [1, 2]
    results = tmp_path / "detections.json"
    files = ("--images", data / "val", "--ground-truth", data / "instances_val.json", "--output", results)
    options = ("--model", output / SAVED_MODEL, "--batch-size", "4")
    assert pipeline_runner.main(["predict", *map(str, (*options, *files))]) == 0
    detections = json.loads(results.read_text())
    names = ["AP", "AP50", "AP75"]
    for prefix, iou_type in (("", "bbox"), ("segm/", "segm"), ("keypoints/", "keypoints")):
        expected = pycocotools_eval(ground_truth, detections, iou_type).stats
        values = [history[-1].metrics[f"{prefix}{name}"] for name in names]
        np.testing.assert_allclose(values, expected[:3], rtol=0, atol=1e-12)
        assert expected[0] > 0.05
    best = BestCheckpoint(output / VALIDATION / BEST)
    assert best.metrics["segm/AP"] == max(entry.metrics["segm/AP"] for entry in history)
