"""A run of Mask R-CNN on masks measures boxes and masks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import pipeline_runner
from schemas.artifacts import DETECTIONS_JSON
from schemas.config.section import merged
from tests.detection.coco.generated_cases import pycocotools_eval
from tests.detection.inference.test_mask_files import SMALL
from tests.pipelines.small_run import read_summary

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.extended]  # two minutes


def write_squares(folder: Path, split: str, count: int) -> dict[str, Any]:
    """Images that one square nearly fills, which untrained proposals overlap; returns the COCO tree."""
    tree: dict[str, Any] = {"images": [], "annotations": [], "categories": [{"id": 3, "name": "square"}]}
    (folder / split).mkdir(parents=True)
    for number in range(1, count + 1):
        low, high = number, 60
        pixels = np.zeros((64, 64, 3), np.uint8)
        pixels[low:high, low:high] = 200
        entry: dict[str, Any] = {"id": number, "file_name": f"{number}.png", "height": 64, "width": 64}
        Image.fromarray(pixels).save(folder / split / entry["file_name"])
        side = high - low
        annotation = {"id": number, "image_id": number, "category_id": 3, "area": side**2, "iscrowd": 0}
        corners = [low, low, high, low, high, high, low, high]
        tree["annotations"].append(annotation | {"bbox": [low, low, side, side], "segmentation": [corners]})
        tree["images"].append(entry)
    (folder / f"instances_{split}.json").write_text(json.dumps(tree))
    return tree


def test_summary_json_has_the_metrics_that_pycocotools_computes(tmp_path: Path) -> None:
    """Twelve of boxes, twelve of masks, of the detections that the run wrote."""
    data = tmp_path / "data"
    write_squares(data, "train", 4)
    ground_truth = write_squares(data, "val", 6)
    assignments = (
        "model.name=mask-rcnn-nano",
        "model.image_size=64",
        f"model.overrides={json.dumps(merged(SMALL, {'anchors': {'scale': 4.0}}))}",
        "model.postprocess.score_threshold=0",
        "train.steps=2",
        "train.batch_size=2",
        "evaluate.analysis.replicates=5",
        "evaluate.thresholds={absolute: {segm/AP: 0.0, bbox/AP50: 0.99}}",
        f"run.root={tmp_path / 'run'}",
    )
    sets = [word for assignment in assignments for word in ("--set", assignment)]
    assert pipeline_runner.main(["run", "--data", str(data), *sets]) == 0
    [evaluation] = (tmp_path / "run").glob("artifacts/CocoEvaluator/evaluation/*")
    detections = json.loads((evaluation / DETECTIONS_JSON).read_text())
    assert all({"bbox", "segmentation"} <= set(detection) for detection in detections)
    summary = read_summary(tmp_path / "run")
    boxes = {name: value for name, value in summary["metrics"].items() if name != "segm"}
    for iou_type, metrics in (("bbox", boxes), ("segm", summary["metrics"]["segm"])):
        expected = pycocotools_eval(ground_truth, detections, iou_type).stats
        np.testing.assert_allclose(list(metrics.values()), expected, rtol=0, atol=1e-12)
    assert boxes["AP50"] > 0
    assert summary["blessed"] is False
    reasons = {reason.partition(" ")[0]: reason for reason in summary["reasons"]}
    assert reasons["segm/AP"].endswith("is at least 0")
    assert reasons["bbox/AP50"].startswith(f"bbox/AP50 {round(boxes['AP50'], 4):g} is below 0.99")
