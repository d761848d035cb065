"""`evaluate --model` of a LiteRT or ONNX file measures masks, too."""

import json
from pathlib import Path

import numpy as np
import pytest
from pycocotools import mask as masks

import pipeline_runner
from detection.inference.formats.saved_model import SignatureDetector
from detection.inference.formats.serving_module import ServingModule
from detection.inference.results import results_from_outputs
from schemas.artifacts import DETECTIONS_JSON, METRICS_JSON
from tests.detection.coco.generated_cases import pycocotools_eval
from tests.detection.export.exported_models import write_file
from tests.detection.inference.test_mask_files import CONVERTERS, FileFormat, build, images
from tests.detection.training.tiny_run import CATEGORIES

# test_mask_files.py shows a file's detections, test_masks_and_keypoints.py their evaluation.
pytestmark = [pytest.mark.slow, pytest.mark.extended]


@pytest.mark.parametrize("file", ["litert", "onnx"])
def test_boxes_and_masks_as_with_pycocotools(file: FileFormat, tmp_path: Path) -> None:
    """The ground truth is some of the SavedModel's own detections, so that the file finds it."""
    if file == "onnx":
        pytest.importorskip("tf2onnx", reason="the extra `onnx` is not installed")
    detector = build()
    module = ServingModule(detector, CATEGORIES, batch_size=1)
    model = write_file(tmp_path / "model", CONVERTERS[file](module), detector, file_format=file)
    data = tmp_path / "data"
    (data / "val").mkdir(parents=True)
    tree: dict[str, list] = {"images": [], "annotations": [], "categories": CATEGORIES}
    outputs = SignatureDetector(module.serve_encoded, batch_size=1).outputs(images())
    for image, found in zip(images(), results_from_outputs(outputs, images()), strict=True):
        (data / "val" / image.name).write_bytes(image.encoded)
        entry = {"id": image.image_id, "file_name": image.name, "height": image.height, "width": image.width}
        tree["images"].append(entry)
        for result in found.coco_results()[::2]:
            area = float(masks.area(result["segmentation"]))
            if area:
                own = {key: result[key] for key in ("image_id", "category_id", "segmentation")}
                box = masks.toBbox(result["segmentation"]).tolist()
                number = len(tree["annotations"]) + 1
                tree["annotations"].append({"id": number, "bbox": box, "area": area, "iscrowd": 0, **own})
    (data / "instances_val.json").write_text(json.dumps(tree))
    command = ["evaluate", "--model", str(model), "--examples", str(data), "--output", str(tmp_path / "out")]
    assert pipeline_runner.main([*command, "--set", "evaluate.analysis.replicates=0"]) == 0
    metrics = json.loads((tmp_path / "out" / METRICS_JSON).read_text())
    detections = json.loads((tmp_path / "out" / DETECTIONS_JSON).read_text())
    for iou_type, own in (("bbox", metrics), ("segm", metrics["segm"])):
        expected = pycocotools_eval(tree, detections, iou_type).stats
        np.testing.assert_allclose(own["stats"], expected, rtol=0, atol=1e-12)
        assert expected[0] > 0.1
