"""A CenterNet with keypoints through the pipeline and the commands, on real persons."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline_runner
from schemas.artifacts import DETECTIONS_JSON, METRICS_JSON
from tests.detection.coco.generated_cases import pycocotools_eval

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.extended]  # a minute and a half

KEYS = (
    *("model.name=centernet-nano-kpts", "model.overrides.head.filters=32", "train.steps=40", "train.batch_size=4"),
    *("train.schedule.learning_rate=0.002", "evaluate.batch_size=4", "evaluate.thresholds.absolute={AP: 0.0}"),
)
PERSON = 1


def _sets(*assignments: str) -> list[str]:
    return [part for assignment in assignments for part in ("--set", assignment)]


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_pipeline_measures_real_keypoints_as_pycocotools(shared_data: Path, tmp_path: Path) -> None:
    data, root = shared_data / "coco2017_ccby", tmp_path / "run"
    command = ["run", "--data", str(data), *_sets(*KEYS, f"run.root={root}")]
    assert pipeline_runner.main(command) == 0
    (evaluation,) = root.glob("artifacts/CocoEvaluator/evaluation/*")
    ground_truth, detections = _read(data / "instances_val.json"), _read(evaluation / DETECTIONS_JSON)
    persons = {entry["id"]: entry for entry in _read(data / "person_keypoints_val.json")["annotations"]}
    for annotation in ground_truth["annotations"]:
        points = persons.get(annotation["id"], {"keypoints": [0] * 51, "num_keypoints": 0})
        annotation |= {key: points[key] for key in ("keypoints", "num_keypoints")}
    found = [detection for detection in detections if detection["category_id"] == PERSON]
    assert any(value for detection in found for value in detection["keypoints"])
    assert {len(detection["keypoints"]) for detection in detections} == {51}
    own = _read(evaluation / METRICS_JSON)
    for iou_type, measured in (("bbox", own), ("keypoints", own["keypoints"])):
        expected = pycocotools_eval(ground_truth, detections, iou_type).stats
        np.testing.assert_allclose(measured["stats"], expected, rtol=0, atol=1e-12)

    (model,) = (root / "serving").iterdir()
    results, pictures = tmp_path / "results.json", tmp_path / "pictures"
    images = sorted((data / "images").iterdir())[:3]
    predict = ["predict", "--model", str(model), "--images", *map(str, images), "--output", str(results)]
    assert pipeline_runner.main([*predict, "--draw", str(pictures)]) == 0
    assert len(list(pictures.iterdir())) == 3
    assert {len(one["keypoints"]) for one in _read(results)} == {51}
