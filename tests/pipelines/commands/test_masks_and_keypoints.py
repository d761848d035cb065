"""`predict` and `evaluate` of a model with masks and keypoints, as a user calls them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as masks

import pipeline_runner
from schemas.artifacts import ANALYSIS_JSON, BLESSING_JSON, DETECTIONS_JSON, METRICS_JSON, REPORT_HTML
from tests.detection.coco.generated_cases import pycocotools_eval
from tests.detection.mask_keypoint_data import save_model, write_data
from tests.detection.mask_keypoint_detector import NUM_KEYPOINTS

pytestmark = pytest.mark.slow  # importing TFMA takes most of it

EVAL_CONFIG = """
slicing_specs {{}} slicing_specs {{ feature_keys: "num_objects" }}
metrics_specs {{ metrics {{
  class_name: "CocoMetrics" module: "components.coco_evaluator.tfma_metrics" config: '{options}' }} }}"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {kind: save_model(root / kind, mask_output=kind) for kind in ("crops", "pasted")}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_data(root, 13)
    return root


def call(*arguments: str | Path) -> int:
    return pipeline_runner.main([str(argument) for argument in arguments])


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory, models: dict[str, Path], data: Path) -> Path:
    """`detections.json` and the picture `sheet.png` of the model of crops."""
    folder = tmp_path_factory.mktemp("predicted")
    ground_truth = ("--ground-truth", data / "instances_val.json")
    output = ("--output", folder / "detections.json", "--draw", folder / "sheet.png")
    assert call("predict", "--model", models["crops"], "--images", data / "val", *ground_truth, *output) == 0
    return folder


@pytest.mark.parametrize("iou_type", ["bbox", "segm", "keypoints"])
def test_predictions_evaluate_as_with_pycocotools(tmp_path: Path, predicted: Path, data: Path, iou_type: str) -> None:
    ground_truth, detections = data / "instances_val.json", predicted / "detections.json"
    output = tmp_path / "metrics.json"
    files = ("--ground-truth", ground_truth, "--detections", detections, "--output", output)
    assert call("evaluate", *files, "--iou-type", iou_type, "--report", tmp_path / "report.html") == 0
    expected = pycocotools_eval(read(ground_truth), read(detections), iou_type).stats
    np.testing.assert_allclose(read(output)["stats"], expected, rtol=0, atol=1e-12)
    assert 0.2 < expected[0] < 1.0
    assert "</html>" in (tmp_path / "report.html").read_text()


def test_augmentation_of_a_model_with_masks_is_refused_before_any_image(
    tmp_path: Path, models: dict[str, Path], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    output = ("--output", tmp_path / "out", "--tta", "flip")
    assert call("predict", "--model", models["crops"], "--images", tmp_path, *output) == 1
    reason = "error: test-time augmentation only fuses boxes, but the model also returns detection_masks, detection_key"
    assert reason in capsys.readouterr().err
    assert call("evaluate", "--model", models["crops"], "--examples", data, *output) == 1
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_predictions_are_drawn_with_masks(predicted: Path, data: Path) -> None:
    detections = read(predicted / "detections.json")
    tree = read(data / "instances_val.json")
    sizes = {image["id"]: [image["height"], image["width"]] for image in tree["images"]}
    for entry in detections:
        assert set(entry) == {"image_id", "category_id", "bbox", "score", "segmentation", "keypoints"}
        assert entry["segmentation"]["size"] == sizes[entry["image_id"]]
        assert len(entry["keypoints"]) == 3 * NUM_KEYPOINTS
        x, y, width, height = masks.toBbox(entry["segmentation"]).tolist()
        left, top, right, bottom = entry["bbox"][0], entry["bbox"][1], sum(entry["bbox"][::2]), sum(entry["bbox"][1::2])
        assert left - 1 <= x <= x + width <= right + 1
        assert top - 1 <= y <= y + height <= bottom + 1
    with Image.open(predicted / "sheet.png") as sheet:
        assert sheet.width > 3 * 300


def _of_one_category(ground_truth: dict[str, Any], detections: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    annotations, detections = (
        [{**entry, "category_id": 1} for entry in entries] for entries in (ground_truth["annotations"], detections)
    )
    return {**ground_truth, "categories": [{"id": 1, "name": "any"}], "annotations": annotations}, detections


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        # Each measures all three; test_evaluate_model.py has boxes first.
        ("pasted", {"iou_type": "keypoints"}),
        ("crops", {"iou_type": "segm", "use_cats": False}),
        pytest.param("crops", {"iou_type": "segm"}, marks=pytest.mark.extended),
        pytest.param("crops", {"iou_type": "bbox", "use_cats": False}, marks=pytest.mark.extended),
    ],
)
def test_a_model_evaluates_as_with_pycocotools(
    tmp_path: Path, models: dict[str, Path], data: Path, kind: str, options: dict[str, Any]
) -> None:
    """Equal to pycocotools on the detections that the evaluation leaves; the report and all other files are there."""
    (tmp_path / "eval_config").write_text(EVAL_CONFIG.format(options=json.dumps(options)))
    out = tmp_path / "out"
    flags = ("--set", f"evaluate.eval_config={tmp_path / 'eval_config'}", "--set", "evaluate.analysis.replicates=5")
    pair = ("--model", models[kind], "--baseline", models["crops"])
    assert call("evaluate", *pair, "--examples", data, "--output", out, *flags) == 0
    metrics, analysis = read(out / METRICS_JSON), read(out / ANALYSIS_JSON)
    ground_truth, detections = read(data / "instances_val.json"), read(out / DETECTIONS_JSON)
    for iou_type in ("bbox", "segm", "keypoints"):
        own = metrics if iou_type == options["iou_type"] else metrics[iou_type]
        use_cats = options.get("use_cats", True)
        if use_cats or iou_type != "keypoints":
            expected = pycocotools_eval(ground_truth, detections, iou_type, useCats=int(use_cats)).stats
        else:  # COCOeval.computeOks looks for the category -1 then, which no object has
            expected = pycocotools_eval(*_of_one_category(ground_truth, detections), iou_type).stats
        np.testing.assert_allclose(own["stats"], expected, rtol=0, atol=1e-12)
        assert 0.2 < expected[0] < 1.0
    analyses = {one["iou_type"]: one for one in [analysis, *analysis["others"]]}
    assert analyses.keys() == {"bbox", "segm", "keypoints"}
    for iou_type, one in analyses.items():
        own = metrics if iou_type == options["iou_type"] else metrics[iou_type]
        assert one["metrics"] == one["baseline_metrics"] == own["metrics"]
        np.testing.assert_allclose(one["intervals"]["AP"]["value"], own["stats"][0], rtol=0, atol=1e-9)
    assert metrics["iou_type"] == analysis["iou_type"] == options["iou_type"]
    slices = {one["slice"]: one for one in metrics["slices"]}
    assert sum(one["images"] for one in slices.values()) == 13
    assert set(slices["num_objects = 1 object"]["metrics"]) == {*metrics["metrics"], *analyses} - {options["iou_type"]}
    assert read(out / BLESSING_JSON)["blessed"] is True
    page = (out / REPORT_HTML).read_text()
    assert "num_objects = 1 object" in page
    for iou_type in analyses.keys() - {options["iou_type"]}:
        assert f'<section id="{iou_type}-metrics"' in page
    assert set(detections[0]) == {"image_id", "category_id", "score", "bbox", "segmentation", "keypoints"}
    assert {detection["category_id"] for detection in detections} == {5, 2, 70}
