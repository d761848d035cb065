"""LiteRT files of 8-bit integers, and what cannot be converted; see test_export.py for float32."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from tensorflow.lite.python import schema_py_generated

from detection.export import litert
from detection.export.litert import Precision, convert_to_litert, input_batches
from detection.inference.formats.model_files import FileDetector
from detection.inference.formats.saved_model import SignatureDetector
from detection.inference.formats.serving_module import ServingModule
from detection.models.detector import Detector
from detection.models.efficientdet.config import EFFICIENTDETS
from detection.models.registry import build_detector
from detection.types import EncodedImage
from schemas.errors import CocoflowError
from tests.detection.export.exported_models import built_in_ops, random_detector, random_images, write_file
from tests.detection.training.tiny_run import CATEGORIES

INT8, FLOAT32 = 9, 0  # TensorType


@pytest.fixture(scope="module")
def detector() -> Detector:
    return random_detector()


@pytest.fixture(scope="module")
def module(detector: Detector) -> ServingModule:
    return ServingModule(detector, CATEGORIES, batch_size=1)


@pytest.fixture(scope="module")
def images() -> list[EncodedImage]:
    return random_images()


@pytest.fixture(scope="module")
def expected(module: ServingModule, images: list[EncodedImage]) -> dict[str, np.ndarray]:
    return SignatureDetector(module.serve_encoded, batch_size=1).outputs(images)


def run(content: bytes, detector: Detector, precision: Precision, folder: Path, images: list[EncodedImage]) -> Any:
    write_file(folder, content, detector, file_format="litert", precision=precision)
    return FileDetector(folder=folder, batch_size=4).outputs(images)


@pytest.mark.extended  # half a minute
@pytest.mark.slow
def test_int8(
    module: ServingModule,
    detector: Detector,
    images: list[EncodedImage],
    expected: dict[str, np.ndarray],
    tmp_path: Path,
) -> None:
    calibration = input_batches((image.encoded for image in images), detector=detector, batch_size=1)
    content = convert_to_litert(module, precision="int8", calibration=calibration)
    operators = built_in_ops(content)
    assert all(inputs[:2] == [INT8, INT8] for name in ("CONV_2D", "DEPTHWISE_CONV_2D") for inputs in operators[name])
    # From the pixels to the outputs, nothing runs in float32: runtimes differ in what they make of each way back.
    levels = detector.config.max_level - detector.config.min_level + 1
    assert (len(operators["QUANTIZE"]), len(operators["DEQUANTIZE"])) == (1, 2 * levels)
    assert all(
        INT8 not in inputs for name in ("TOPK_V2", "NON_MAX_SUPPRESSION_V4", "EXP") for inputs in operators[name]
    )
    found = run(content, detector, "int8", tmp_path, images)
    best, best_found = (one["detection_scores"][:, 0] for one in (expected, found))
    np.testing.assert_allclose(best_found, best, atol=0.1)


@pytest.mark.extended  # a minute or two each
@pytest.mark.slow
@pytest.mark.parametrize("name", EFFICIENTDETS)
def test_every_efficientdet_converts(name: str) -> None:
    # The ops do not depend on the size of the input.
    detector = build_detector(name, num_classes=len(CATEGORIES), image_size=128)
    module = ServingModule(detector, CATEGORIES, batch_size=1)
    content = convert_to_litert(module, precision="float16")
    assert "CONV_2D" in built_in_ops(content)
    pixels = np.random.default_rng(0).integers(0, 256, (1, 128, 128, 3)).astype(np.float32)
    found = Interpreter(model_content=content).get_signature_runner()(images=pixels)
    expected = module.fitted_function("windows")(tf.constant(pixels))
    # Of a network with random weights many scores are nearly equal, so boxes may change places.
    np.testing.assert_allclose(found["detection_scores"], expected["detection_scores"], atol=1e-4)
    assert found["num_detections"] == expected["num_detections"] > 0


def test_an_op_that_is_not_built_in_is_refused() -> None:
    function = tf.function(lambda x: {"y": tf.linalg.inv(x)}, input_signature=[tf.TensorSpec([3, 3], tf.float32)])
    with pytest.raises(CocoflowError, match=r"only built-in ops: .*MatrixInverse.*--no-nms"):
        litert.convert([function.get_concrete_function()])


def _killed(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_converter_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    function = tf.function(lambda x: {"y": x + 1.0}, input_signature=[tf.TensorSpec([3], tf.float32)])
    monkeypatch.setattr(litert, "_convert_saved_model", _killed)
    with pytest.raises(CocoflowError, match=r"conversion process of LiteRT was killed. Free memory"):
        litert.convert([function.get_concrete_function()])


def _require_for_all_runtimes(content: bytes) -> None:
    """OpenVINO refuses tensors of one name; MediaPipe warns of constants that are not aligned as the schema demands."""
    model = schema_py_generated.Model.GetRootAs(content)
    graph = model.Subgraphs(0)
    names = [graph.Tensors(number).Name() for number in range(graph.TensorsLength())]
    assert len(set(names)) == len(names)
    buffers = [model.Buffers(number) for number in range(model.BuffersLength())]
    places = [each._tab.Vector(each._tab.Offset(4)) for each in buffers if each.DataLength()]
    assert places
    assert not any(place % 16 for place in places)


def test_a_chain_of_models_with_a_loop_equals_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(tf.lite, "TFLiteConverter")  # the process of the conversion has its own

    def stage(function: Any, name: str) -> Any:
        spec = tf.TensorSpec([3], tf.float32, name=name)
        return tf.function(function, input_signature=[spec]).get_concrete_function()

    def sums(start: tf.Tensor) -> dict[str, tf.Tensor]:
        def more(value: tf.Tensor, steps: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(value) < 100.0

        def add(value: tf.Tensor, steps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return value * 2.0 + tf.constant([1.0, 0.0, 3.0]), steps + 1

        value, steps = tf.while_loop(more, add, (start, tf.constant(0)))
        return {"value": value, "steps": steps}

    joined = litert.convert(
        [
            stage(lambda x: {"scaled": x * 3.0, "other": x - 1.0}, "x"),
            stage(lambda scaled: {"start": scaled + tf.constant([5.0, 6.0, 7.0])}, "scaled"),
            stage(sums, "start"),
        ]
    )
    _require_for_all_runtimes(joined)
    given = np.array([0.5, -2.0, 1.0], np.float32)
    value, steps = given * 3 + [5, 6, 7], 0
    while value.sum() < 100:
        value, steps = value * 2 + [1, 0, 3], steps + 1
    assert steps > 1
    interpreter = Interpreter(model_content=joined)
    interpreter.allocate_tensors()
    found = interpreter.get_signature_runner()(x=given)
    assert set(found) == {"value", "steps"}
    np.testing.assert_allclose(found["value"], value, rtol=1e-6)
    assert found["steps"] == steps
