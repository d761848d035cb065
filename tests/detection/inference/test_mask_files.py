"""Mask R-CNN in every format: the detections and masks of the function that a SavedModel holds."""

from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.export.litert import convert_to_litert
from detection.export.onnx_model import convert_to_onnx
from detection.export.saved_model_export import export_saved_model
from detection.inference.formats.model_files import FileDetector, FileFormat
from detection.inference.formats.saved_model import SignatureDetector
from detection.inference.formats.serving_module import ServingModule
from detection.inference.results import joined
from detection.models.detector import Detector
from detection.models.registry import build_detector
from detection.types import EncodedImage, ImageInfo
from tests.detection.export.exported_models import (
    assert_same_results,
    built_in_ops,
    client_results,
    random_images,
    write_file,
)
from tests.detection.tiny_dense import SIDE, TWO_BLOCKS
from tests.detection.training.tiny_run import CATEGORIES

SMALL = {
    "backbone": {"name": TWO_BLOCKS},
    "min_level": 3,
    "max_level": 4,
    "neck": {"filters": 16},
    "anchors": {"scale": 1.0},
    "rpn": {"test": {"post_nms_top_k": 30}},
    "box_head": {"layers": 1, "units": 32},
    "mask_head": {"filters": 16, "layers": 1},
}


def build() -> Detector:
    """Scores and masks of its random weights differ by much more than the rounding of any runtime."""
    keras.utils.set_random_seed(0)
    detector = build_detector(
        "mask-rcnn-nano",
        num_classes=len(CATEGORIES),
        image_size=SIDE,
        overrides=SMALL,
        postprocess={"max_detections": 8},
    )
    random = np.random.default_rng(0)
    for variable in detector.variables:
        if variable.path.endswith(("class/kernel", "score/kernel", "mask/kernel")):
            variable.assign(random.normal(0, 1.5, variable.shape))
    return detector


@pytest.fixture(scope="module")
def detector() -> Detector:
    return build()


def run(content: bytes, detector: Detector, file: FileFormat, folder: Path, *, precision: str = "float32") -> dict:
    write_file(folder, content, detector, file_format=file, precision=precision)
    return FileDetector(folder=folder, batch_size=1).outputs(images())


def images() -> list[EncodedImage]:
    """Those that fill the input: elsewhere a box may reach into the padding."""
    return [image for image in random_images() if (image.height, image.width) == (SIDE, SIDE)]


CONVERTERS: dict[FileFormat, Callable[[ServingModule], bytes]] = {
    "litert": lambda module: convert_to_litert(module, precision="float32"),
    "onnx": convert_to_onnx,
}


@pytest.mark.parametrize("file", ["litert", pytest.param("onnx", marks=pytest.mark.extended)])
def test_a_file_gives_the_detections_and_masks_of_the_saved_model(
    detector: Detector, file: FileFormat, tmp_path: Path
) -> None:
    if file == "onnx":
        pytest.importorskip("tf2onnx", reason="the extra `onnx` is not installed")
    module = ServingModule(detector, CATEGORIES, batch_size=1)
    expected = SignatureDetector(module.serve_encoded, batch_size=1).outputs(images())
    assert expected["num_detections"].min() > 3
    assert expected["detection_masks"].std() > 0.1
    content = CONVERTERS[file](module)
    if file == "litert":
        operators = set(built_in_ops(content))
        assert "NON_MAX_SUPPRESSION_V4" in operators
        assert not {"WHILE", "IF"} & operators
    found = run(content, detector, file, tmp_path)
    count = expected["num_detections"].max()
    for name, values in expected.items():
        kept = np.s_[:] if name == "num_detections" else np.s_[:, :count]
        np.testing.assert_allclose(found[name][kept], values[kept], atol=1e-4, err_msg=name)
    all_images = random_images()
    paths = [tmp_path / image.name for image in all_images]
    for path, image in zip(paths, all_images, strict=True):
        path.write_bytes(image.encoded)
    numbered = [image._replace(image_id=number) for number, image in enumerate(all_images, 1)]
    results = joined(FileDetector(folder=tmp_path, batch_size=1).detect(numbered)).coco_results()
    runtime = "onnxruntime" if file == "onnx" else "ai_edge_litert"
    assert_same_results(client_results(tmp_path, paths, runtime=runtime), results)


def test_detection_of_a_saved_model_compiles_under_xla(detector: Detector, tmp_path: Path) -> None:
    """Although its signatures, exported on a CPU, have ops that do not."""
    export_saved_model(detector, tmp_path, categories=CATEGORIES, config_yaml="")
    loaded = tf.saved_model.load(str(tmp_path))
    inputs = tf.random.stateless_normal([2, SIDE, SIDE, 3], [0, 0])
    info = ImageInfo(tf.fill([2, 2], float(SIDE)), tf.ones([2, 2]))
    compiled = tf.function(lambda: loaded.detect(inputs, info), jit_compile=True)()
    expected = detector.detect(detector(inputs, training=False), info)
    assert expected.num.numpy().min() > 1
    for name, value in expected._asdict().items():
        if value is not None:
            np.testing.assert_allclose(getattr(compiled, name), value, atol=1e-4, err_msg=name)


@pytest.mark.extended  # calibration and three conversions
@pytest.mark.slow
def test_int8(detector: Detector, tmp_path: Path) -> None:
    module = ServingModule(detector, CATEGORIES, batch_size=1)
    expected = SignatureDetector(module.serve_encoded, batch_size=1).outputs(images())

    def calibration() -> Iterator[np.ndarray]:
        for image in images():
            yield tf.io.decode_png(image.encoded, channels=3)[tf.newaxis].numpy()

    content = convert_to_litert(module, precision="int8", calibration=calibration())
    found = run(content, detector, "litert", tmp_path, precision="int8")
    assert found["detection_masks"].shape == expected["detection_masks"].shape
    np.testing.assert_allclose(found["detection_scores"][:, 0], expected["detection_scores"][:, 0], atol=0.15)
