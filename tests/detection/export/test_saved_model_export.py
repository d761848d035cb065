"""The exported signatures, loaded by TensorFlow alone."""

from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from detection.export.saved_model_export import export_saved_model
from detection.images.decode import decode_rgb, decode_rgb_or_blank
from detection.inference.formats.saved_model import SavedModelDetector
from detection.models.detector import Capabilities
from detection.storage.atomic import new_directory
from detection.types import EncodedImage
from schemas.errors import CocoflowError, DataError
from tests.detection.fake_detector import write_images
from tests.detection.training.evaluation_records import CATEGORIES
from tests.detection.training.tiny_detector import TinyConfig, TinyDetector
from tests.full_disk import no_file_above


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("images")
    return [(folder / entry["file_name"]).read_bytes() for entry in write_images(folder, 4)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    detector = TinyDetector(config=TinyConfig(), num_classes=len(CATEGORIES), name="tiny")
    export_saved_model(detector, folder, categories=CATEGORIES, config_yaml="")
    return folder


def test_each_weight_is_saved_once(model: Path) -> None:
    saved = dict(tf.train.list_variables(str(model / "variables" / "variables")))
    saved.pop("_CHECKPOINTABLE_OBJECT_GRAPH")
    detector = TinyDetector(config=TinyConfig(), num_classes=len(CATEGORIES), name="tiny")
    assert sorted(map(tuple, saved.values())) == sorted(tuple(variable.shape) for variable in detector.variables)


def broken(encoded: list[bytes]) -> list[bytes]:
    jpeg = tf.io.encode_jpeg(np.zeros([30, 40, 3], np.uint8)).numpy()
    return [b"", b"no image", encoded[0][:60], jpeg[: len(jpeg) // 2], jpeg[:4]]


def test_an_image_that_does_not_decode_is_marked_and_the_others_are_answered(model: Path, encoded: list[bytes]) -> None:
    serve = tf.saved_model.load(str(model)).signatures["serving_default"]

    def answer(images: list[bytes]) -> Mapping[str, np.ndarray]:
        return {name: value.numpy() for name, value in serve(images=tf.constant(images)).items()}

    bad, good = broken(encoded), [2, 3, 4, 8]
    valid = answer([*encoded[:2], *encoded[:3], *encoded[:3], encoded[3]])
    assert valid["valid"].tolist() == [True] * 9
    assert valid["num_detections"].min() > 0
    mixed = answer([*bad[:2], *encoded[:3], *bad[2:], encoded[3]])
    assert np.flatnonzero(mixed["valid"]).tolist() == good
    assert mixed["valid"].dtype == bool
    for name, values in valid.items():
        np.testing.assert_array_equal(mixed[name][good], values[good])
    others = ~mixed["valid"]
    assert not mixed["num_detections"][others].any()
    assert not mixed["detection_scores"][others].any()
    assert not answer(bad)["num_detections"].any()


def test_a_client_of_the_object_detection_api_takes_its_outputs(encoded: list[bytes], tmp_path: Path) -> None:
    """As the API's notebook `inference_from_saved_model_tf2_colab`: it calls the object, and slices every output."""
    detector = TinyDetector(config=TinyConfig(), num_classes=len(CATEGORIES), name="tiny")
    for name in ("ours", "theirs"):
        folder = tmp_path / name
        export_saved_model(detector, folder, categories=CATEGORIES, config_yaml="", od_api_outputs=name == "theirs")
    ours, detect_fn = (tf.saved_model.load(str(tmp_path / name)) for name in ("ours", "theirs"))
    for signature in detect_fn.signatures.values():
        assert {spec.dtype for spec in signature.structured_outputs.values()} == {tf.float32}
    image = decode_rgb(tf.constant(encoded[0])).numpy()
    detections = detect_fn(tf.convert_to_tensor(image)[tf.newaxis, ...])
    expected = ours.signatures["serving_images"](images=tf.constant(image[np.newaxis]))
    count = int(detections.pop("num_detections")[0])
    assert count == int(expected.pop("num_detections")[0]) > 0
    rows = {key: value[0, :count].numpy() for key, value in detections.items()}
    assert rows.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(rows[name], values[0, :count], err_msg=name)
    with pytest.raises(tf.errors.InvalidArgumentError):
        detect_fn.signatures["serving_default"](input_tensor=tf.constant([b"junk"]))

    images = [EncodedImage(number, f"{number}.png", data, 20, 40) for number, data in enumerate(encoded)]
    first, second = (SavedModelDetector(folder=tmp_path / name, batch_size=3) for name in ("ours", "theirs"))
    for one, other in zip(first.detect(images), second.detect(images), strict=True):
        np.testing.assert_array_equal(one.rows, other.rows)
    with pytest.raises(DataError, match=r"broken\.png: the model cannot read the image"):
        second.detect([*images, EncodedImage(9, "broken.png", b"junk", 20, 40)])


@pytest.mark.parametrize(("by_device", "traces"), [(False, 1), (True, 2)])
def test_an_export_traces_detection_once_for_all_signatures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_device: bool, traces: int
) -> None:
    """And once more for `detect` if its graph differs from that of the signatures."""
    detector = TinyDetector(config=TinyConfig(), num_classes=len(CATEGORIES), name="tiny")
    monkeypatch.setattr(TinyDetector, "capabilities", Capabilities(detects_by_device=by_device))
    with mock.patch.object(TinyDetector, "detect", autospec=True, side_effect=TinyDetector.detect) as detect:
        export_saved_model(detector, tmp_path, categories=CATEGORIES, config_yaml="")
    assert detect.call_count == traces


def test_decoding_with_a_mark_gives_the_same_pixels(encoded: list[bytes]) -> None:
    for data in encoded:
        pixels, valid = decode_rgb_or_blank(tf.constant(data))
        assert bool(valid)
        np.testing.assert_array_equal(pixels, decode_rgb(tf.constant(data)))
    for data in broken(encoded):
        pixels, valid = decode_rgb_or_blank(tf.constant(data))
        assert not bool(valid)
        assert (pixels.shape, pixels.dtype) == ([1, 1, 3], tf.uint8)


def test_a_detector_names_an_image_that_the_model_marks(model: Path, encoded: list[bytes]) -> None:
    images = [EncodedImage(number, f"{number}.png", data, 20, 40) for number, data in enumerate(encoded)]
    detector = SavedModelDetector(folder=model, batch_size=3)
    assert len(detector.detect(images)) == 4
    images[3] = EncodedImage(9, "bro\x1bken\n.png", b"junk", 20, 40)
    with pytest.raises(DataError, match=r"^bro\\x1bken\\n\.png: the model cannot read the image \(id 9\): "):
        detector.detect(images)


@pytest.mark.parametrize("size", [1_000, 100_000])
def test_a_saved_model_that_the_disk_does_not_take_is_not_there(size: int, tmp_path: Path) -> None:
    detector = TinyDetector(config=TinyConfig(), num_classes=len(CATEGORIES), name="tiny")
    destination = tmp_path / "saved_model"
    with (
        no_file_above(size),
        pytest.raises(CocoflowError, match=r"SavedModel cannot be written: File too large .*checkpoints are kept"),
        new_directory(destination) as folder,
    ):
        export_saved_model(detector, folder, categories=CATEGORIES, config_yaml="")
    assert list(tmp_path.iterdir()) == []
