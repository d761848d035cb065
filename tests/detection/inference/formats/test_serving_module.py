"""Calibrated scores in the graph: those of the numpy function, best first, in every format."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from detection.export.litert import Precision, convert
from detection.export.model_description import description_json
from detection.export.onnx_model import OPSET
from detection.export.saved_model_export import export_saved_model
from detection.inference.formats.model_files import read_description
from detection.inference.formats.saved_model import SavedModelDetector, SignatureDetector
from detection.inference.formats.score_curves import ScoreCurve, ScoreCurves, calibrate_scores, read_score_curves
from detection.inference.formats.serving_module import ServingModule, calibrate
from detection.models.detector import Detector
from detection.models.registry import build_detector
from detection.types import Detections
from schemas.config.config_io import to_yaml
from tests.detection.export.exported_models import (
    built_in_ops,
    export_config,
    random_detector,
    random_images,
    write_file,
)
from tests.detection.training.tiny_run import CATEGORIES

BATCH, SLOTS, CLASSES = 6, 14, 4
CURVES = [ScoreCurve(slope, offset, "category", 10, 10) for slope, offset in ((0.4, -1), (1, 0), (2, 1.5), (0.7, 0.2))]
IDS = [category["id"] for category in CATEGORIES]


def _detections() -> Detections:
    random = np.random.default_rng(0)
    num = np.array([SLOTS, 7, 1, 0, 9, SLOTS], np.int32)
    filled = np.arange(SLOTS) < num[:, None]
    scores = np.sort(random.uniform(0, 1, (BATCH, SLOTS)), axis=1)[:, ::-1].astype(np.float32)
    scores[0, :3], scores[0, -2:] = 1.0, 0.0
    scores[5] = 0.25  # equal scores of one class stay in their order
    classes = random.integers(0, CLASSES, (BATCH, SLOTS))
    values = {"boxes": (4,), "masks": (2, 2), "keypoints": (3, 3), "anchors": (), "class_scores": (CLASSES,)}
    return Detections(
        scores=tf.constant(scores * filled, tf.float32),
        classes=tf.constant(classes * filled, tf.int32),
        num=tf.constant(num),
        **{name: tf.constant(random.uniform(size=(BATCH, SLOTS, *size)), tf.float32) for name, size in values.items()},
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_detections_are_sorted_by_the_scores_of_numpy(compiled: bool) -> None:
    before = _detections()
    after = tf.function(lambda detections: calibrate(detections, CURVES), jit_compile=compiled)(before)
    np.testing.assert_array_equal(after.num, before.num)
    for image, count in enumerate(before.num.numpy()):
        scores = calibrate_scores(CURVES, before.scores[image, :count], before.classes[image, :count])
        order = np.argsort(-scores, kind="stable")
        np.testing.assert_allclose(after.scores[image, :count], scores[order], rtol=2e-5, atol=1e-9)
        for name in ("boxes", "classes", "masks", "keypoints", "anchors", "class_scores"):
            old, new = getattr(before, name)[image].numpy(), getattr(after, name)[image].numpy()
            np.testing.assert_array_equal(new[:count], old[:count][order])
            assert not new[count:].any()
        assert not after.scores[image, count:].numpy().any()


@pytest.fixture(scope="module")
def detector() -> Detector:
    return random_detector()


@pytest.fixture(scope="module")
def curves() -> list[ScoreCurve]:
    return [ScoreCurve(0.5 + 0.3 * number, number - 1.0, "category", 10, 10) for number in range(len(CATEGORIES))]


@pytest.fixture(scope="module")
def expected(detector: Detector, curves: list[ScoreCurve]) -> list[np.ndarray]:
    """Of each image the rows (box, score, category), with the scores of numpy."""
    images = []
    plain = SignatureDetector(ServingModule(detector, CATEGORIES).serve_encoded, batch_size=1)
    for results in plain.detect(random_images()):
        assert len(results) > 5
        rows = results.rows.copy()
        rows[:, 5] = calibrate_scores(curves, rows[:, 5], [IDS.index(category) for category in rows[:, 6]])
        images.append(rows[np.argsort(-rows[:, 5], kind="stable")])
    assert any((np.diff(rows[:, 6]) != 0).any() for rows in images)  # curves of several categories
    return images


def assert_calibrated(model: SignatureDetector, expected: list[np.ndarray]) -> None:
    for results, rows in zip(model.detect(random_images()), expected, strict=True):
        found = results.rows
        assert (np.diff(found[:, 5]) <= 0).all()
        np.testing.assert_allclose(found[:, 5], rows[:, 5], atol=1e-5)
        # Each detection has its own score; those that are equal but for rounding may change places.
        weights = [1, 1, 1, 1, 1000, 1]  # boxes at the border may be equal, and differ in their scores
        boxes, others = (one[:, 1:] * weights for one in (found, rows))
        nearest = np.abs(boxes[:, None] - others).max(axis=2).argmin(axis=1)
        assert sorted(nearest) == list(range(len(rows)))
        np.testing.assert_allclose(boxes, others[nearest], atol=0.01)
        np.testing.assert_allclose(found[:, 5], rows[nearest, 5], atol=1e-5)


@pytest.mark.slow
def test_a_saved_model_is_calibrated_and_its_curves_are_beside_it(
    detector: Detector, curves: list[ScoreCurve], expected: list[np.ndarray], tmp_path: Path
) -> None:
    fitted = ScoreCurves(tuple(curves), "eval", 10, 0.5, 0.2, 0.1)
    export_saved_model(
        detector, tmp_path, categories=CATEGORIES, config_yaml=to_yaml(export_config()), score_curves=fitted
    )
    assert_calibrated(SavedModelDetector(folder=tmp_path, batch_size=4), expected)
    assert read_score_curves(tmp_path) == fitted


class Calibration(tf.Module):
    """The part of the graph that calibrates, with a variable, as a SavedModel needs one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = tf.Variable(0.0)
        given = sorted(_detections()._asdict().items())
        specs = [tf.TensorSpec(value.shape, value.dtype, name=name) for name, value in given]
        self.calibrate = tf.function(self._calibrate, input_signature=specs, autograph=False)

    def _calibrate(self, *values: tf.Tensor) -> dict[str, tf.Tensor]:
        given = Detections(**dict(zip(sorted(Detections._fields), values, strict=True)))
        return {f"new_{name}": value for name, value in calibrate(given, CURVES)._asdict().items()}


@pytest.fixture(scope="module")
def in_the_graph() -> dict[str, np.ndarray]:
    return {f"new_{name}": value.numpy() for name, value in calibrate(_detections(), CURVES)._asdict().items()}


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], *, atol: float = 1e-7) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-5, atol=atol, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_litert_calibrates_as_tensorflow(precision: Precision, in_the_graph: dict[str, np.ndarray]) -> None:
    module = Calibration()
    content = convert([module.calibrate.get_concrete_function()], precision)
    built_in_ops(content)
    given = {name: value.numpy() for name, value in _detections()._asdict().items()}
    found = Interpreter(model_content=content).get_signature_runner()(**given)
    # The numbers of the curves have 11 bits in float16.
    assert_close(found, in_the_graph, atol=1e-7 if precision == "float32" else 2.0**-11)


def test_onnx_calibrates_as_tensorflow(in_the_graph: dict[str, np.ndarray]) -> None:
    tf2onnx = pytest.importorskip("tf2onnx", reason="the extra `onnx` is not installed")
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
    model, _ = tf2onnx.convert.from_function(Calibration().calibrate, input_signature=(), opset=OPSET)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    given = {name: value.numpy() for name, value in _detections()._asdict().items()}
    assert_close(dict(zip(names, session.run(names, given), strict=True)), in_the_graph)


def test_the_description_says_that_scores_are_calibrated(detector: Detector, tmp_path: Path) -> None:
    write_file(tmp_path, b"", detector, file_format="litert")
    plain = read_description(tmp_path)
    assert plain is not None
    assert not plain.calibrated
    outputs = description_json(dataclasses.replace(plain, calibrated=True))["outputs"]
    assert outputs["detection_scores"].endswith("score_curves.json")


@pytest.mark.slow
@pytest.mark.parametrize("background", [False, True])
def test_outputs_of_the_object_detection_api_name_the_anchor_of_each_detection(background: bool) -> None:
    overrides = {"loss": {"background_class": background, "class_loss": "softmax" if background else "focal"}}
    if background:
        overrides["loss"]["background_target"] = True
    detector = build_detector("retinanet-nano", num_classes=len(CATEGORIES), image_size=64, overrides=overrides)
    random = np.random.default_rng(0)
    for variable in detector.trainable_variables:
        if variable.path.endswith("kernel"):
            variable.assign(random.normal(0.0, 0.15, variable.shape))
    images = tf.constant(random.integers(0, 256, (2, 48, 64, 3)), tf.uint8)
    module = ServingModule(detector, CATEGORIES, od_api_outputs=True)
    raw = ServingModule(detector, CATEGORIES, nms=False).serve_images(images)
    found = {name: values.numpy() for name, values in module.serve_images(images).items()}
    scores = found["detection_multiclass_scores"]
    assert scores.shape == (*found["detection_scores"].shape, len(CATEGORIES) + background)
    for image, count in enumerate(found["num_detections"].astype(int)):
        assert count > 5
        anchors = found["detection_anchor_indices"][image].astype(int)
        classes = [IDS.index(one) for one in found["detection_classes"][image, :count].astype(int)]
        np.testing.assert_allclose(
            scores[image, :count, background:], raw["raw_detection_scores"].numpy()[image, anchors[:count]], atol=1e-6
        )
        np.testing.assert_allclose(
            scores[image, np.arange(count), np.array(classes) + background], found["detection_scores"][image, :count]
        )
        boxes = np.clip(raw["raw_detection_boxes"].numpy()[image, anchors[:count]], 0.0, 1.0)
        np.testing.assert_allclose(found["detection_boxes"][image, :count], boxes, atol=1e-6)
        if background:
            np.testing.assert_allclose(scores[image, :count].sum(axis=1), 1.0, atol=1e-5)
        assert not scores[image, count:].any()
        assert not anchors[count:].any()
