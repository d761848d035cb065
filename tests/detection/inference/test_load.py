"""`load_detector`: detections of images in any form, pictures of them, and the raw network on images of any size."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from detection import coco, load_detector
from detection.coco.io.results import write_results
from detection.inference.detectors import open_trained
from detection.inference.load import LoadedDetector
from detection.inference.restore import TrainedDetector
from detection.models.registry import build_detector
from schemas.config.config import Config
from schemas.errors import DataError
from tests.detection.training.tiny_run import CATEGORIES

LEVELS = (3, 4, 5)


@pytest.fixture(scope="module")
def model() -> LoadedDetector:
    detector = build_detector("efficientdet-nano", num_classes=len(CATEGORIES), overrides={"neck": {"cells": 1}})
    random = np.random.default_rng(0)
    for variable in detector.variables:
        if "variance" not in variable.path:
            variable.assign(variable.numpy() + random.normal(0, 0.05, variable.shape))
    trained = TrainedDetector(detector, CATEGORIES, Config(), None)
    return LoadedDetector(CATEGORIES, open_trained(trained, batch_size=1), lambda: trained)


def _images(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(2, height, width, 3)).astype(np.float32)


@pytest.mark.parametrize(("height", "width"), [(128, 128), (100, 132), (65, 31), (160, 40)])
def test_levels_are_halved_and_rounded_up(model: LoadedDetector, height: int, width: int) -> None:
    outputs = model(_images(height, width))
    assert list(outputs) == [f"{kind}_p{level}" for kind in ("class", "box") for level in LEVELS]
    for level in LEVELS:
        rows, columns = (-(-side // 2**level) for side in (height, width))
        assert outputs[f"class_p{level}"].shape == (2, rows, columns, 9 * len(CATEGORIES))
        assert outputs[f"box_p{level}"].shape == (2, rows, columns, 9 * 4)


@pytest.mark.parametrize("size", [(64, 96), (72, 40)])
def test_the_answer_is_that_of_the_detector_of_this_size(model: LoadedDetector, size: tuple[int, int]) -> None:
    """The same weights in a detector whose input has the images' size."""
    overrides = {"neck": {"cells": 1}, "image_size": size}
    detector = build_detector("efficientdet-nano", num_classes=len(CATEGORIES), overrides=overrides)
    for variable, trained in zip(detector.variables, model.detector.variables, strict=True):
        variable.assign(trained.value)
    images = _images(*size)
    expected = detector.named_outputs(detector(tf.constant(images)))
    for name, values in model(images).items():
        np.testing.assert_allclose(values, expected[name], atol=1e-5)
    with pytest.raises(ValueError, match="takes images of 128 x 128 pixels"):
        model.detector(tf.constant(images))


def test_the_raw_network_traces(model: LoadedDetector) -> None:
    images = _images(64, 64)
    traced = tf.function(model.__call__)(tf.constant(images))
    for name, values in model(images).items():
        np.testing.assert_allclose(traced[name], values, atol=1e-4)


@pytest.mark.parametrize("shape", [(128, 128, 3), (1, 128, 128, 4)])
def test_other_shapes_are_refused(model: LoadedDetector, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"takes normalised images \[B, H, W, 3\] of a static size"):
        model(np.zeros(shape, np.float32))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pixels = np.random.default_rng(2).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    path = tmp_path_factory.mktemp("images") / "one.png"
    Image.fromarray(pixels).save(path)
    return path


def test_an_image_is_taken_in_any_form(model: LoadedDetector, image: Path) -> None:
    expected = model.predict(image)
    assert len(expected) > 5
    pillow = Image.open(image)
    for form in (str(image), image.read_bytes(), np.asarray(pillow), pillow):
        np.testing.assert_array_equal(model.predict(form).rows, expected.rows)
    several = model.predict([image, pillow], image_ids=[7, 3])
    assert [set(one.image_ids.tolist()) for one in several] == [{7}, {3}]
    np.testing.assert_array_equal(several[1].rows[:, 1:], expected.rows[:, 1:])
    assert [set(one.image_ids.tolist()) for one in model.predict([image, image])] == [{1}, {2}]
    best = model.predict(image, min_score=float(np.median(expected.scores)))
    assert 0 < len(best) < len(expected)
    np.testing.assert_array_equal(best.rows, expected.rows[: len(best)])


def test_the_columns_of_detections(model: LoadedDetector, image: Path) -> None:
    detections = model.predict(image, image_ids=5)
    first = detections.coco_results()[0]
    x, y, width, height = first["bbox"]
    assert detections.boxes_xywh[0].tolist() == first["bbox"]
    assert detections.boxes_xyxy[0].tolist() == [x, y, x + width, y + height]
    assert detections.image_ids[0] == first["image_id"] == 5
    assert detections.category_ids[0] == first["category_id"]
    assert detections.scores[0] == first["score"]
    assert model.names[int(detections.category_ids[0])] in {category["name"] for category in CATEGORIES}


def test_results_files_and_metrics_take_detections(model: LoadedDetector, image: Path, tmp_path: Path) -> None:
    found = model.predict([image, image], image_ids=[4, 9])
    write_results(tmp_path / "detections.json", [result for one in found for result in one.coco_results()])
    truth = {
        "images": [{"id": number, "height": 90, "width": 120} for number in (4, 9)],
        "annotations": [
            {"id": number, "image_id": number, "iscrowd": 0, "area": 100.0, "bbox": one.boxes_xywh[0].tolist()}
            | {"category_id": int(one.category_ids[0])}
            for number, one in zip((4, 9), found, strict=True)
        ],
        "categories": CATEGORIES,
    }
    expected = coco.evaluate(truth, tmp_path / "detections.json").by_name
    assert expected["AP"] > 0
    assert coco.evaluate(truth, found).by_name == expected
    assert coco.evaluate(truth, found[0]).by_name["AR100"] == expected["AR100"] / 2


def test_a_picture_has_the_boxes(model: LoadedDetector, image: Path) -> None:
    detections = model.predict(image)
    drawn = model.draw(image, detections, min_score=0.0)
    assert drawn.size == (120, 90)
    x, y = detections.boxes_xyxy[0, :2].round().astype(int).clip(0, [119, 89])
    assert drawn.getpixel((int(x), int(y))) != Image.open(image).getpixel((int(x), int(y)))
    np.testing.assert_array_equal(
        np.asarray(model.draw(image, detections, min_score=1.0)), np.asarray(Image.open(image))
    )


@pytest.mark.parametrize("array", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3))])
def test_other_arrays_are_refused(model: LoadedDetector, array: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"image 1: .*; expected uint8 \[H, W, 3\], RGB"):
        model.predict(array)


def test_bytes_that_are_no_image_are_refused(model: LoadedDetector) -> None:
    with pytest.raises(DataError, match="image 3: "):
        model.predict([b"no image"], image_ids=[3])


def test_names_without_weights_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"retinanet-r50: no weights of this detector are published\. .*efficientdet-d0"
    ):
        load_detector("retinanet-r50")
