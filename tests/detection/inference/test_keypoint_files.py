"""A CenterNet with keypoints in files: the keypoints of the function that a SavedModel holds."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.export.litert import convert_to_litert
from detection.export.onnx_model import convert_to_onnx
from detection.export.saved_model_export import export_saved_model
from detection.inference.detectors import model_iou_types
from detection.inference.formats.file_runtimes import load_network
from detection.inference.formats.model_files import FILE_NAMES, FileDetector, FileFormat
from detection.inference.formats.saved_model import SavedModelDetector, SignatureDetector
from detection.inference.formats.serving_module import ServingModule
from detection.inference.results import joined
from detection.models.detector import Detector
from detection.models.registry import build_detector
from schemas.artifacts import MODEL_JSON
from tests.detection.export.exported_models import assert_same_results, client_results, random_images, write_file
from tests.detection.tiny_dense import SIDE
from tests.detection.training.tiny_run import CATEGORIES


def _build() -> Detector:
    keras.utils.set_random_seed(0)
    detector = build_detector(
        "centernet-nano-kpts",
        num_classes=len(CATEGORIES),
        image_size=SIDE,
        overrides={"neck": {"filters": (32, 16, 16, 16)}, "head": {"filters": 16}},
        postprocess={"max_detections": 8, "score_threshold": 0.0},
        keypoints=[["a", "b"], *([["c"]] * (len(CATEGORIES) - 1))],
    )
    random = np.random.default_rng(0)
    for variable in detector.variables:
        if "_head/predict/kernel" in variable.path:  # so that scores differ by much more than rounding
            variable.assign(random.normal(0, 1, variable.shape))
    return detector


def test_with_the_object_detection_api_s_outputs_scores_are_apart_and_read_back(tmp_path: Path) -> None:
    detector, images = _build(), random_images()
    export_saved_model(detector, tmp_path, categories=CATEGORIES, config_yaml="", od_api_outputs=True)
    outputs = tf.saved_model.load(str(tmp_path)).signatures["serving_default"].structured_outputs
    shapes = [outputs[name].shape.as_list() for name in ("detection_keypoints", "detection_keypoint_scores")]
    assert shapes == [[None, 8, 2, 2], [None, 8, 2]]
    module = ServingModule(detector, CATEGORIES, batch_size=1)
    expected = joined(SignatureDetector(module.serve_encoded, batch_size=1).detect(images))
    found = joined(SavedModelDetector(folder=tmp_path, batch_size=1).detect(images))
    assert found.coco_results() == expected.coco_results()


@pytest.mark.parametrize("file", ["litert", pytest.param("onnx", marks=pytest.mark.extended)])
def test_a_file_gives_the_keypoints_of_the_saved_model(file: FileFormat, tmp_path: Path) -> None:
    if file == "onnx":
        pytest.importorskip("tf2onnx", reason="the extra `onnx` is not installed")
    detector = _build()
    module = ServingModule(detector, CATEGORIES, batch_size=1)
    write_file(
        tmp_path,
        convert_to_onnx(module) if file == "onnx" else convert_to_litert(module, precision="float32"),
        detector,
        file_format=file,
    )
    assert model_iou_types(tmp_path) == ("bbox", "keypoints")
    description = json.loads((tmp_path / MODEL_JSON).read_text())
    dtype = "int32" if file == "litert" else "int64"
    assert description["outputs"]["detection_classes"].startswith(dtype)
    network, _ = load_network(file, (tmp_path / FILE_NAMES[file]).read_bytes(), where="m", categories=[], curves=None)
    assert network(np.zeros((1, SIDE, SIDE, 3), np.float32))["detection_classes"].dtype == dtype
    images = [image._replace(image_id=number) for number, image in enumerate(random_images(), 1)]
    expected = joined(SignatureDetector(module.serve_encoded, batch_size=1).detect(images))
    found = joined(FileDetector(folder=tmp_path, batch_size=1).detect(images))
    assert expected.keypoints is not None
    assert found.keypoints is not None
    assert found.keypoints.size > 60
    # A file knows its input only: what it detects in the padding is dropped behind it, and nothing takes its place.
    rows = [
        row
        for image in images
        for row in np.flatnonzero(expected.image_ids == image.image_id)[: (found.image_ids == image.image_id).sum()]
    ]
    np.testing.assert_allclose(found.keypoints, expected.keypoints[rows], atol=1e-2)
    paths = [tmp_path / image.name for image in images]
    for path, image in zip(paths, images, strict=True):
        path.write_bytes(image.encoded)
    runtime = "onnxruntime" if file == "onnx" else "ai_edge_litert"
    clients = client_results(tmp_path, paths, runtime=runtime)
    assert_same_results(clients, found.coco_results())
    np.testing.assert_allclose(
        [one["keypoints"] for one in clients], [one["keypoints"] for one in found.coco_results()], atol=1e-3
    )
