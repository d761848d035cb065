"""Files of a detector of queries, which suppresses nothing: what runs in integers, and that outputs are the same."""

import itertools
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.export.litert import Precision, convert_to_litert, input_batches
from detection.export.mediapipe_model import require_mediapipe
from detection.inference.formats.model_files import FileDetector
from detection.inference.formats.saved_model import SignatureDetector
from detection.inference.formats.serving_module import ServingModule
from detection.models.detector import Detector
from detection.models.registry import build_detector
from detection.types import Resizing
from schemas.errors import ConfigError
from tests.detection.export.exported_models import built_in_ops, random_images, write_file
from tests.detection.training.tiny_run import CATEGORIES

INT8 = 9  # TensorType
OVERRIDES = {"decoder": {"layers": 2, "queries": 20}}


@pytest.fixture(scope="module")
def detector() -> Detector:
    """Random weights, with heads whose scores differ by much more than rounding."""
    keras.utils.set_random_seed(0)
    detector = build_detector("dfine-pico", num_classes=len(CATEGORIES), image_size=64, overrides=OVERRIDES)
    random = np.random.default_rng(0)
    for variable in detector.variables:
        if "classes" in variable.path:
            variable.assign(random.normal(0, 0.5, variable.shape))
    return detector


@pytest.mark.extended  # half a minute each
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_file_gives_the_outputs_of_the_saved_model(
    detector: Detector, precision: Precision, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = ServingModule(detector, CATEGORIES, batch_size=1)
    images = random_images()[:1]  # of the input's size: elsewhere a file drops boxes in the padding later

    expected = SignatureDetector(module.serve_encoded, batch_size=1).outputs(images)
    calibration = input_batches((image.encoded for image in images), detector=detector, batch_size=1)
    content = convert_to_litert(module, precision=precision, calibration=calibration)
    operators = built_in_ops(content)
    if precision == "float32":
        # GPUs of phones run all but the selection of queries, and what follows the boxes and classes.
        assert _not_for_gpus(content, capsys)[:2] == ["TOPK_V2"] * 2
    assert not {"NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5"} & operators.keys()
    assert {"GATHER", "GATHER_ND"} & operators.keys()
    if precision == "int8":
        convolutions = [inputs[:2] for name in ("CONV_2D", "DEPTHWISE_CONV_2D") for inputs in operators[name]]
        assert convolutions == [[INT8, INT8]] * len(convolutions)
        assert all(INT8 not in inputs for inputs in operators["TOPK_V2"])
    write_file(tmp_path, content, detector, file_format="litert", precision=precision)
    found = FileDetector(folder=tmp_path, batch_size=4).outputs(images)
    if precision == "int8":
        best, best_found = (one["detection_scores"][:, 0] for one in (expected, found))
        np.testing.assert_allclose(best_found, best, atol=0.1)
    else:
        for key in ("detection_scores", "detection_boxes"):
            np.testing.assert_allclose(found[key], expected[key], atol=1e-3, err_msg=key)
        [count] = expected["num_detections"]
        classes, expected_classes = (one["detection_classes"][0, : int(count)] for one in (found, expected))
        np.testing.assert_array_equal(classes, expected_classes)


def _not_for_gpus(content: bytes, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Returns the operators of a file, in its order, that TensorFlow's check for GPUs refuses."""
    capsys.readouterr()
    tf.lite.experimental.Analyzer.analyze(model_content=content, gpu_compatibility=True)
    lines = capsys.readouterr().out.splitlines()
    refused = [line for line, following in itertools.pairwise(lines) if "GPU COMPATIBILITY WARNING" in following]
    return [match[1] for line in refused if (match := re.match(r" *Op#\d+ (\w+)\(", line))]


def test_mediapipe_has_it_on_processors_alone(detector: Detector) -> None:
    detector.resizing = Resizing(detector.image_size, "stretch")
    require_mediapipe(detector, "cpu", what="a file")
    with pytest.raises(ConfigError, match=r"--delegate gpu: dfine-pico has no anchors, whose boxes it could suppress"):
        require_mediapipe(detector, "gpu", what="a file")
