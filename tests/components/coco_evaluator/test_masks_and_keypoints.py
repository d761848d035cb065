"""The evaluator component and TFX's own Evaluator on a model with masks and keypoints."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline_runner
from detection import coco
from detection.inference.formats.saved_model import SavedModelDetector
from detection.inference.results import joined
from detection.types import EncodedImage
from schemas.artifacts import DETECTIONS_JSON, METRICS_JSON
from tests.components.coco_evaluator.test_executor import evaluate, read
from tests.components.coco_evaluator.tfma.test_tfma_stock import stock
from tests.detection.coco.generated_cases import pycocotools_eval
from tests.detection.mask_keypoint_data import CATEGORIES, save_model, write_data

pytestmark = pytest.mark.slow  # importing TFX takes most of it


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `Model` artifact's folder."""
    root = tmp_path_factory.mktemp("model")
    save_model(root / "Format-Serving")
    return root


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A COCO data set, and its `Examples` in `examples`."""
    root = tmp_path_factory.mktemp("data")
    write_data(root, 9)
    assert pipeline_runner.main(["to-examples", "--data", str(root), "--output", str(root / "examples")]) == 0
    return root


@pytest.fixture(scope="module")
def ground_truth(data: Path) -> dict[str, Any]:
    return dict(json.loads((data / "instances_val.json").read_text()))


@pytest.mark.parametrize("iou_type", ["segm", "keypoints"])
def test_the_component(tmp_path: Path, model: Path, data: Path, ground_truth: dict[str, Any], iou_type: str) -> None:
    from components.coco_evaluator.stock_evaluator import stock_eval_config
    from components.coco_evaluator.tfma.eval_config import eval_config_to_json

    thresholds = {"AP50": 0.1, "bbox/AP": 0.1}
    config = eval_config_to_json(stock_eval_config(CATEGORIES, iou_type=iou_type, absolute=thresholds))
    folder, blessing = evaluate(tmp_path, data / "examples", model, eval_config=config)
    metrics, detections = read(folder, METRICS_JSON), read(folder, DETECTIONS_JSON)
    assert metrics["iou_type"] == iou_type
    for one in ("bbox", "segm", "keypoints"):
        expected = pycocotools_eval(ground_truth, detections, one).stats
        own = metrics if one == iou_type else metrics[one]
        np.testing.assert_allclose(own["stats"], expected, rtol=0, atol=1e-12)
        assert expected[0] > 0.1
    assert blessing.get_int_custom_property("blessed") == 1


@pytest.mark.parametrize("iou_type", ["segm", "keypoints"])  # test_tfma_stock.py has boxes
def test_tfx_own_evaluator(
    tmp_path: Path, model: Path, data: Path, ground_truth: dict[str, Any], iou_type: str
) -> None:
    import tensorflow_model_analysis as tfma

    from components.coco_evaluator.stock_evaluator import stock_eval_config

    config = stock_eval_config(CATEGORIES, iou_type=iou_type)
    folder, _ = stock(tmp_path, config, data / "examples", model)
    images = [
        EncodedImage(entry["id"], "", (data / "val" / entry["file_name"]).read_bytes(), entry["height"], entry["width"])
        for entry in ground_truth["images"]
    ]
    results = joined(SavedModelDetector(folder=model / "Format-Serving", batch_size=8).detect(images))
    expected = pycocotools_eval(ground_truth, results.coco_results(), iou_type).stats
    metrics = tfma.load_eval_result(folder).get_metrics_for_slice()
    names = ["AP", "AP50", "AP75", *([] if iou_type == "keypoints" else ["APs"]), "APm", "APl"]
    for name, value in zip(names, expected, strict=False):
        measured = float(metrics[name]["doubleValue"])
        assert measured == pytest.approx(value, abs=1e-12) or (np.isnan(measured) and value == -1)
    assert expected[0] > 0.1


def test_sigmas_of_the_configuration(tmp_path: Path, model: Path, data: Path, ground_truth: dict[str, Any]) -> None:
    sigmas = [0.02 + 0.01 * number for number in range(17)]
    options: dict[str, Any] = {"iou_types": ["keypoints"], "oks_sigmas": sigmas, "metrics": ["pascal_voc_AP50"]}
    folder, _ = evaluate(tmp_path, data / "examples", model, **options)
    expected = coco.evaluate(ground_truth, read(folder, DETECTIONS_JSON), "keypoints", oks_sigmas=sigmas)
    assert read(folder, METRICS_JSON)["metrics"] == expected.by_name
    assert expected.by_name != coco.evaluate(ground_truth, read(folder, DETECTIONS_JSON), "keypoints").by_name


def test_params_fit_the_keypoints_of_the_data_set() -> None:
    from components.coco_evaluator.beam.models_pass import EvaluationRequest
    from components.coco_evaluator.measured_types import choose_params
    from schemas.config.evaluate import EvaluateConfig

    categories = [{"id": number, "name": str(number), "keypoints": ["a"] * number} for number in (3, 5)]
    config = EvaluateConfig(iou_types=("bbox", "keypoints"))
    request = EvaluationRequest("", 1, categories, models={}, locations={}, config=config)
    boxes, keypoints = choose_params(request, ("bbox", "keypoints"), Counter)
    assert not boxes.sigmas_of
    assert keypoints.sigmas_of == {3: (0.05,) * 3, 5: (0.05,) * 5}
    assert boxes.use_cats
    agnostic = replace(request, config=EvaluateConfig(use_cats=False))
    assert not choose_params(agnostic, ("bbox",), Counter)[0].use_cats
