"""ONNX files in ONNX Runtime: the same detections as the detector's own."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from detection.export.onnx_model import OPSET, convert_to_onnx
from detection.inference.formats.model_files import FileDetector
from detection.inference.formats.saved_model import SignatureDetector
from detection.inference.formats.serving_module import ServingModule
from detection.inference.results import joined
from detection.types import EncodedImage
from schemas.artifacts import MODEL_JSON, ONNX_FILE
from schemas.errors import ConfigError, DataError
from tests.detection.export.exported_models import (
    assert_same_results,
    client_results,
    random_detector,
    random_images,
    write_file,
    write_images,
)
from tests.detection.tiny_dense import SIDE
from tests.detection.training.tiny_run import CATEGORIES

onnx = pytest.importorskip("onnx", reason="the extra `onnx` is not installed")
pytest.importorskip("tf2onnx", reason="the extra `onnx` is not installed")


@pytest.fixture(scope="module")
def module() -> ServingModule:
    return ServingModule(random_detector(), CATEGORIES)


@pytest.fixture(scope="module")
def content(module: ServingModule) -> bytes:
    return convert_to_onnx(module)


def write(folder: Path, content: bytes) -> Path:
    return write_file(folder, content, random_detector(), file_format="onnx", batch_size=None)


def test_the_detections_are_the_detectors(module: ServingModule, content: bytes, tmp_path: Path) -> None:
    images = random_images()
    expected = SignatureDetector(module.serve_encoded, batch_size=4).outputs(images)
    assert expected["num_detections"].min() > 5
    for batch_size in (4, 3):  # the file takes any number
        found = FileDetector(folder=write(tmp_path, content), batch_size=batch_size).outputs(images)
        # What the file detects in the padding is dropped behind it, and nothing takes its place.
        assert (found["num_detections"] > 5).all()
        for image, count in enumerate(found["num_detections"]):
            for name in ("detection_boxes", "detection_scores", "detection_classes"):
                np.testing.assert_allclose(found[name][image, :count], expected[name][image, :count], atol=1e-4)


def test_no_loop_passes_an_input_on_as_its_output(content: bytes) -> None:
    """OpenVINO refuses such a file."""

    def bodies(graph: Any) -> Iterator[Any]:
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    yield attribute.g
                    yield from bodies(attribute.g)

    found = list(bodies(onnx.load_from_string(content).graph))
    assert found
    for body in found:
        assert not {value.name for value in body.input} & {value.name for value in body.output}


def test_the_client_gives_the_results_of_predict(content: bytes, tmp_path: Path) -> None:
    paths = write_images(tmp_path / "images")
    folder = write(tmp_path, content)
    images = [
        EncodedImage(number, path.name, path.read_bytes(), *size_of(path)) for number, path in enumerate(paths, 1)
    ]
    expected = joined(FileDetector(folder=folder, batch_size=2).detect(images)).coco_results()
    assert_same_results(client_results(folder, paths, runtime="onnxruntime"), expected)


def size_of(path: Path) -> tuple[int, int]:
    """Stored height and width."""
    with Image.open(path) as image:
        return image.height, image.width


@pytest.mark.parametrize("shape", [[None, SIDE + 1, SIDE, 3], [None, SIDE, 10**6, 3], [10**9, SIDE, SIDE, 3]])
def test_a_description_of_another_input_is_refused(shape: list[int | None], content: bytes, tmp_path: Path) -> None:
    path = write(tmp_path, content) / MODEL_JSON
    description = json.loads(path.read_text())
    description["input"]["shape"] = shape
    path.write_text(json.dumps(description))
    with pytest.raises(DataError, match=rf"{path}: not the description of .*the model has \[None, {SIDE}, {SIDE}"):
        FileDetector(folder=tmp_path, batch_size=1)


def test_outputs_that_are_no_detections_are_refused(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector, images = FileDetector(folder=write(tmp_path, content), batch_size=4), random_images()
    outputs = detector.outputs(images)
    for changed, message in (
        ({name: value for name, value in outputs.items() if name != "detection_boxes"}, "cannot be run"),
        ({name: value for name, value in outputs.items() if name != "detection_scores"}, "has no output detection_sc"),
        (outputs | {"detection_scores": outputs["detection_scores"] * np.nan}, "detections that are not finite"),
    ):
        monkeypatch.setattr(detector, "_network", lambda _, changed=changed: changed)
        with pytest.raises(DataError, match=rf"{ONNX_FILE}: the model .*{message}"):
            detector.detect(images)


def test_broken_files_are_refused(content: bytes, tmp_path: Path) -> None:
    """With the checksum, and as far as the runtime finds it without."""
    folder = write(tmp_path, content)
    description = json.loads((folder / MODEL_JSON).read_text())
    middle = len(content) // 2
    for broken in (content[:1000], content[:middle] + bytes(2000) + content[middle + 2000 :]):
        (folder / ONNX_FILE).write_bytes(broken)
        with pytest.raises(DataError, match=rf"{ONNX_FILE}: the file was cut off or changed after its export"):
            FileDetector(folder=folder, batch_size=1)
    del description["sha256"]
    (folder / MODEL_JSON).write_text(json.dumps(description))
    (folder / ONNX_FILE).write_bytes(content[:1000])
    with pytest.raises(DataError, match=rf"{ONNX_FILE}: the model cannot be run: .*PROTOBUF.*Export or copy it again"):
        FileDetector(folder=folder, batch_size=1)


def test_the_ops_are_onnx_own(content: bytes) -> None:
    model = onnx.load_from_string(content)
    assert ("", OPSET) in [(entry.domain, entry.version) for entry in model.opset_import]
    bodies = [attribute.g for node in model.graph.node for attribute in node.attribute if attribute.HasField("g")]
    assert bodies  # the loop of the suppression
    assert {node.domain for graph in (model.graph, *bodies) for node in graph.node} == {""}
    assert [value.name for value in model.graph.input] == ["images"]


def test_a_runtime_that_is_not_installed_is_named(
    content: bytes, module: ServingModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("onnxruntime", "tf2onnx"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"No module named 'onnxruntime'\. Install "):
        FileDetector(folder=write(tmp_path, content), batch_size=1)
    with pytest.raises(ConfigError, match=r"No module named 'tf2onnx'\. Install "):
        convert_to_onnx(module)
