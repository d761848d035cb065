"""Masks and keypoints from the exported signatures to COCO results."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from pycocotools import mask as masks

from detection.inference.formats.saved_model import SavedModelDetector, signature_iou_types
from detection.inference.restore import load_trained
from detection.inference.results import Results, joined, results_from_outputs
from detection.types import EncodedImage
from schemas.errors import DataError
from schemas.metrics import IouType
from tests.detection.fake_detector import save_fake_detector
from tests.detection.mask_keypoint_data import DETECTIONS, save_model, write_data
from tests.detection.mask_keypoint_detector import NUM_KEYPOINTS


@pytest.fixture(scope="module")
def crops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("crops"))


@pytest.fixture(scope="module")
def pasted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("pasted"), mask_output="pasted")


@pytest.fixture(scope="module")
def rle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("rle"), mask_output="rle")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[EncodedImage]:
    folder = tmp_path_factory.mktemp("data")
    return [
        EncodedImage(
            entry["id"],
            entry["file_name"],
            (folder / "val" / entry["file_name"]).read_bytes(),
            entry["height"],
            entry["width"],
        )
        for entry in write_data(folder, 6)["images"]
    ]


@pytest.fixture(scope="module")
def triangle(tmp_path_factory: pytest.TempPathFactory) -> tuple[EncodedImage, np.ndarray]:
    """A green triangle in a box of 28x28 pixels at x = 20, y = 10, in an image of the detector's own size."""
    mask = np.zeros((64, 64), np.uint8)
    mask[10:38, 20:48] = np.tri(28)
    path = tmp_path_factory.mktemp("triangle") / "triangle.png"
    Image.fromarray(np.stack([0 * mask, 255 * mask, 0 * mask], axis=-1)).save(path)
    return EncodedImage(7, "triangle.png", path.read_bytes(), 64, 64), mask


def test_a_mask_and_keypoints_by_hand(crops: Path, triangle: tuple[EncodedImage, np.ndarray]) -> None:
    image, mask = triangle
    [results] = SavedModelDetector(folder=crops, batch_size=2).detect([image])
    fraction = 29 / 56  # of the box that the triangle fills
    np.testing.assert_allclose(results.rows, [[7, 20, 10, 28, 28, fraction, 2]], rtol=1e-6)
    assert results.masks is not None
    np.testing.assert_array_equal(masks.decode(results.masks[0]), mask)
    assert results.keypoints is not None
    expected = [[20 + 28 * k / 16, 10 + 28 * k / 16, fraction] for k in range(NUM_KEYPOINTS)]
    np.testing.assert_allclose(results.keypoints, [expected], rtol=1e-5)
    [entry] = results.coco_results()
    assert set(entry) == {"image_id", "category_id", "bbox", "score", "segmentation", "keypoints"}
    assert entry["segmentation"] == {
        "size": [64, 64],
        "counts": masks.encode(np.asfortranarray(mask))["counts"].decode(),
    }
    np.testing.assert_allclose(entry["keypoints"], np.ravel(expected), rtol=1e-5)


def test_a_box_that_reaches_into_padding_is_cut_and_its_mask_stays_in_place() -> None:
    """A model file does not know where the image ends in its input; the reference is a larger image, cut afterwards."""
    crop = np.random.default_rng(0).random((28, 28)).astype(np.float32)
    image, whole = EncodedImage(1, "image", b"", 30, 20), EncodedImage(1, "whole", b"", 45, 20)
    outputs: dict[str, np.ndarray] = {
        "detection_scores": np.ones((1, 1), np.float32),
        "detection_classes": np.ones((1, 1), np.int64),
        "num_detections": np.ones(1, np.int32),
        "detection_masks": crop[np.newaxis, np.newaxis],
    }
    [cut] = results_from_outputs({**outputs, "detection_boxes": np.array([[[0.2, -0.1, 1.4, 0.9]]])}, [image])
    box = np.array([[[0.2 * 30 / 45, -0.1, 1.4 * 30 / 45, 0.9]]])
    [reference] = results_from_outputs({**outputs, "detection_boxes": box}, [whole])
    np.testing.assert_allclose(cut.rows[0, 1:5], [0.0, 6.0, 18.0, 24.0], rtol=1e-6)
    assert cut.masks is not None
    assert reference.masks is not None
    expected = masks.decode(reference.masks[0])[:30]
    np.testing.assert_array_equal(masks.decode(cut.masks[0]), expected)
    assert 0 < expected[25:].sum() < expected[25:].size


def test_signatures(crops: Path, pasted: Path, images: list[EncodedImage]) -> None:
    encoded = tf.constant([image.encoded for image in images] + [b"no image"])
    pixels = tf.zeros([2, 50, 80, 3], tf.uint8)
    largest = [max(image.height for image in images), max(image.width for image in images)]
    for folder, kind, sizes in ((crops, tf.float32, ([28, 28], [28, 28])), (pasted, tf.uint8, (largest, [50, 80]))):
        signatures = tf.saved_model.load(str(folder)).signatures
        answers = (signatures["serving_default"](images=encoded), signatures["serving_images"](images=pixels))
        for answer, size in zip(answers, sizes, strict=True):
            batch = answer["num_detections"].shape[0]
            assert (answer["detection_masks"].dtype, answer["detection_keypoints"].dtype) == (kind, tf.float32)
            assert answer["detection_masks"].shape == (batch, DETECTIONS, *size)
            assert answer["detection_keypoints"].shape == (batch, DETECTIONS, NUM_KEYPOINTS, 3)
            assert float(tf.reduce_max(tf.cast(answer["detection_masks"], tf.float32))) <= 1.0
        assert answers[0]["valid"].numpy().tolist() == [True] * len(images) + [False]
        assert answers[0]["num_detections"].numpy()[-1] == 0


@pytest.mark.parametrize("batch_size", [1, 4, 6])
def test_crops_and_pasted_masks_give_the_same_results(
    crops: Path, pasted: Path, images: list[EncodedImage], batch_size: int
) -> None:
    ours, theirs = (
        SavedModelDetector(folder=folder, batch_size=batch_size).detect(images) for folder in (crops, pasted)
    )
    assert sum(map(len, ours)) > len(images)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.rows, other.rows, rtol=1e-6)
        np.testing.assert_allclose(one.keypoints, other.keypoints, rtol=1e-6)  # type: ignore[arg-type]
        if len(one):
            overlaps = masks.iou(one.masks, other.masks, [0] * len(one))
            assert np.diag(overlaps).min() > 0.99


def test_rle_strings_are_those_of_the_pasted_masks(
    pasted: Path, rle: Path, images: list[EncodedImage], triangle: tuple[EncodedImage, np.ndarray]
) -> None:
    """Images of several sizes in a batch; rows beyond the detections, and images that do not decode, have no mask."""
    texts, pixels = (
        tf.saved_model.load(str(folder)).signatures["serving_default"](
            images=tf.constant([*(image.encoded for image in images), b"no image"])
        )
        for folder in (rle, pasted)
    )
    assert texts["detection_masks"].shape == (len(images) + 1, DETECTIONS)
    sizes = [(image.height, image.width) for image in images] + [(1, 1)]
    for number, (height, width) in enumerate(sizes):
        count = int(texts["num_detections"][number])
        own = pixels["detection_masks"].numpy()[number, :count, :height, :width]
        expected = [masks.encode(np.asfortranarray(mask))["counts"] for mask in own]
        assert texts["detection_masks"][number].numpy().tolist() == expected + [b""] * (DETECTIONS - count)
    ours, theirs = (SavedModelDetector(folder=folder, batch_size=4).detect(images) for folder in (rle, pasted))
    assert [one.masks for one in ours] == [one.masks for one in theirs]
    assert sum(map(len, ours)) > len(images)
    with pytest.raises(
        DataError, match=r"^triangle\.png: the model's mask does not fit the image of 64x65 pixels: the RLE covers"
    ):
        SavedModelDetector(folder=rle, batch_size=1).detect([triangle[0]._replace(width=64, height=65)])


def test_outputs_of_several_batches_are_padded(pasted: Path, images: list[EncodedImage]) -> None:
    outputs = SavedModelDetector(folder=pasted, batch_size=2).outputs(images)
    largest = (max(image.height for image in images), max(image.width for image in images))
    assert outputs["detection_masks"].shape == (len(images), DETECTIONS, *largest)


def test_masks_may_be_left_out(crops: Path, images: list[EncodedImage]) -> None:
    results = joined(SavedModelDetector(folder=crops, batch_size=4).detect(images, with_masks=False))
    assert results.masks is None
    assert results.keypoints is not None
    assert len(results.keypoints) == len(results) == len(results.rows)


def test_an_exported_detector_comes_back_with_its_options(pasted: Path) -> None:
    trained = load_trained(pasted)
    assert trained.detector.capabilities.mask_output == "pasted"
    assert [category["name"] for category in trained.categories] == ["red", "green", "blue"]


def test_what_an_evaluation_takes() -> None:
    rle = {"size": [4, 4], "counts": "04"}
    results = Results(np.array([[1.0, 0, 0, 2, 2, 0.5, 3]]), [rle], np.array([[[1.0, 2.0, 0.5]]]))
    assert results.compared_by(["bbox"]) is results.rows
    one = {"image_id": 1, "category_id": 3, "bbox": [0, 0, 2, 2], "score": 0.5, "segmentation": rle}
    every: list[list[IouType]] = [["segm"], ["keypoints"], ["bbox", "segm"]]
    for iou_types in every:
        assert results.compared_by(iou_types) == [{**one, "keypoints": [1.0, 2.0, 0.5]}]
    boxes = joined([Results(results.rows), Results(results.rows)])
    assert len(boxes) == 2
    with pytest.raises(DataError, match=r"^m: no output detection_masks, which the IoU type segm needs"):
        boxes.compared_by(["bbox", "segm"], where="m")


def test_what_a_model_gives_is_known_without_loading_it(tmp_path: Path, crops: Path) -> None:
    assert signature_iou_types(crops) == ("bbox", "segm", "keypoints")
    model = save_fake_detector(tmp_path / "boxes")
    assert signature_iou_types(model) == ("bbox",)
    (model / "saved_model.pb").write_bytes(b"\xff" * 40)
    with pytest.raises(DataError, match=r"boxes: the SavedModel does not load"):
        signature_iou_types(model)


def test_an_image_larger_than_its_pasted_masks_is_named(
    pasted: Path, triangle: tuple[EncodedImage, np.ndarray]
) -> None:
    detector = SavedModelDetector(folder=pasted, batch_size=1)
    with pytest.raises(DataError, match=r"^triangle\.png: the model's masks have 64x64 pixels, but the image 64x65"):
        detector.detect([triangle[0]._replace(height=65)])
