"""SavedModel to COCO results: conventions, batches, errors."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.inference.formats.saved_model import SavedModelDetector, _require_detections
from detection.inference.results import results_from_outputs, xywh_pixels_from_normalised_yxyx
from detection.types import EncodedImage
from schemas.errors import DataError
from tests.detection.fake_detector import save_fake_detector, write_images

_WEIGHTS = "variables/variables.data-00000-of-00001"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_fake_detector(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[EncodedImage]:
    folder = tmp_path_factory.mktemp("images")
    return [
        EncodedImage(entry["id"], entry["file_name"], (folder / entry["file_name"]).read_bytes(), height, width)
        for entry in write_images(folder, 7)
        for height, width in [(entry["height"], entry["width"])]
    ]


def test_boxes_by_hand() -> None:
    boxes = np.array([[0.25, 0.1, 0.75, 0.4]], np.float32)
    pixels = xywh_pixels_from_normalised_yxyx(boxes, height=200, width=1000)
    np.testing.assert_allclose(pixels, [[100, 50, 300, 100]], rtol=1e-6)
    assert pixels.dtype == np.float64


def test_rows_keep_what_counts_and_nothing_else() -> None:
    outputs: dict[str, Any] = {
        "detection_boxes": np.array([[[0, 0, 1, 1], [0.5, 0, 1, 0.5]], [[0, 0, 1, 1], [0, 0, 1, 1]]], np.float32),
        "detection_scores": np.array([[0.9, 0.1], [0.8, 0.7]], np.float32),
        "detection_classes": np.array([[90, 7], [1, 1]], np.int64),
        "num_detections": np.array([2, 0], np.int32),
    }
    images = [EncodedImage(42, "a", b"", 10, 20), EncodedImage(43, "b", b"", 10, 20)]
    first, second = (results.rows for results in results_from_outputs(outputs, images))
    np.testing.assert_allclose(first, [[42, 0, 0, 20, 10, 0.9, 90], [42, 0, 5, 10, 5, 0.1, 7]], rtol=1e-6)
    assert second.shape == (0, 7)


def test_batch_size_does_not_matter(model: Path, images: list[EncodedImage]) -> None:
    whole = SavedModelDetector(folder=model, batch_size=7).detect(images)
    parts = SavedModelDetector(folder=model, batch_size=3).detect(images)
    assert len(whole) == len(parts) == 7
    assert sum(map(len, whole)) > 7
    for image, one, other in zip(images, whole, parts, strict=True):
        np.testing.assert_array_equal(one.rows, other.rows)
        assert set(one.rows[:, 0]) <= {image.image_id}


def test_an_unreadable_image_is_named(model: Path, images: list[EncodedImage]) -> None:
    broken = EncodedImage(9, "broken.png", images[0].encoded[:60], 20, 40)
    with pytest.raises(DataError, match=r"^broken\.png: the model cannot read the image \(id 9\): "):
        SavedModelDetector(folder=model, batch_size=4).detect([*images[:2], broken])


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a SavedModel"):
        SavedModelDetector(folder=tmp_path, batch_size=1)


def test_a_damaged_model(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"no model")
    with pytest.raises(DataError, match=r"the SavedModel does not load"):
        SavedModelDetector(folder=tmp_path, batch_size=1)


@pytest.mark.parametrize("name", ["saved_model.pb", "variables/variables.data-00000-of-00001", "assets/labels.txt"])
def test_a_pipe_is_not_waited_for(name: str, tmp_path: Path, model: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / name).unlink(missing_ok=True)
    (folder / name).parent.mkdir(exist_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(DataError, match=rf"{folder / name}: a pipe, socket, device or folder"):
        SavedModelDetector(folder=folder, batch_size=1)


def test_a_model_without_the_signature(tmp_path: Path) -> None:
    tf.saved_model.save(tf.Module(), str(tmp_path))
    with pytest.raises(DataError, match=r"no signature 'serving_default', only \[\]"):
        SavedModelDetector(folder=tmp_path, batch_size=1)


def test_a_signature_without_the_outputs(tmp_path: Path) -> None:
    class Wrong(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="images")])
        def serve(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"detection_boxes": tf.strings.length(images)}

    module = Wrong()
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": module.serve})
    with pytest.raises(DataError, match=r"has no output detection_classes, detection_scores, num_detections"):
        SavedModelDetector(folder=tmp_path, batch_size=1)


def test_a_model_that_reads_no_picture_is_at_fault_not_the_picture(tmp_path: Path, images: list[EncodedImage]) -> None:
    class Failing(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="images")])
        def serve(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
            names = ("boxes", "classes", "scores")
            numbers = tf.strings.length(images)
            tf.debugging.assert_negative(numbers)
            return {f"detection_{name}": numbers for name in names} | {"num_detections": numbers}

    module = Failing()
    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": module.serve})
    with pytest.raises(DataError, match=rf"^{re.escape(str(tmp_path))}: the SavedModel cannot be run: InvalidArgument"):
        SavedModelDetector(folder=tmp_path, batch_size=1).detect(images[:1])


@pytest.mark.parametrize(
    "name", ["saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001"]
)
def test_damaged_models_are_named(tmp_path: Path, model: Path, images: list[EncodedImage], name: str) -> None:
    """Truncated, or with bytes changed: the model is refused, or works still; TensorFlow's own errors come never."""
    rng = np.random.default_rng(0)
    content = (model / name).read_bytes()
    for number in range(6):
        folder = tmp_path / str(number)
        shutil.copytree(model, folder)
        damaged = bytearray(content if number % 2 else content[: rng.integers(len(content))])
        for place in rng.integers(0, len(damaged), 5) if damaged else ():
            damaged[place] ^= 1 << rng.integers(8)
        (folder / name).write_bytes(damaged)
        told = str(folder)
        try:
            SavedModelDetector(folder=folder, batch_size=2).detect(images[:2])
        except DataError as error:
            told = str(error)
        assert str(folder) in told
        assert told.isprintable()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"detection_boxes": np.full((1, 2, 4), np.nan)}, "that are not finite"),
        ({"detection_scores": np.full((1, 2), np.inf)}, "that are not finite"),
        ({"num_detections": np.array([3])}, "an invalid number"),
        ({"num_detections": np.array([-1])}, "an invalid number"),
        (
            {"detection_boxes": np.zeros((1, 2, 5))},
            r"outputs of the model are not detections: detection_boxes \[1, 2, 5\]",
        ),
        ({"detection_classes": np.zeros((1, 9))}, "outputs of the model are not detections"),
        ({"num_detections": np.zeros((1, 1), int)}, "outputs of the model are not detections"),
        ({"detection_masks": np.zeros((1, 2, 28))}, r"outputs .* not detections: .* detection_masks \[1, 2, 28\]"),
        ({"detection_masks": np.full((1, 2, 28, 28), np.nan)}, "that are not finite"),
        ({"detection_masks": np.full((1, 2, 28), b"04", object)}, "outputs of the model are not detections"),
        ({"detection_keypoints": np.zeros((1, 2, 17, 2))}, "outputs of the model are not detections"),
        ({"detection_keypoints": np.full((1, 2, 17, 3), np.inf)}, "that are not finite"),
    ],
)
def test_outputs_that_are_no_detections_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    outputs = {
        "detection_boxes": np.zeros((1, 2, 4)),
        "detection_scores": np.zeros((1, 2)),
        "detection_classes": np.ones((1, 2)),
        "num_detections": np.array([2]),
        "detection_masks": np.zeros((1, 2, 28, 28)),
        "detection_keypoints": np.zeros((1, 2, 17, 3)),
    }
    _require_detections(outputs, 1, tmp_path)
    with pytest.raises(DataError, match=message):
        _require_detections(outputs | changes, 1, tmp_path)
