"""Losses of an exported detector equal those of the detector itself."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detection.export.saved_model_export import export_saved_model
from detection.inference.formats.saved_model import SavedModelDetector
from detection.inference.mean_losses import mean_losses
from detection.inference.restore import load_trained, read_exported_from, read_model_config
from detection.input_pipeline.network_input import InputSample, pad_labels
from detection.models.detector import Detector
from detection.models.registry import detector_from_config
from detection.storage.atomic import write_text
from detection.storage.files import remove_file
from detection.types import Labels
from schemas.artifacts import CONFIG_YAML, EXTRA_FILES, LABELS_JSON
from schemas.config.config_io import to_yaml
from schemas.errors import DataError
from tests.detection.export.exported_models import export_config
from tests.detection.synthetic import CATEGORY_IDS, example
from tests.detection.tiny_dense import SIDE
from tests.detection.training.tiny_run import CATEGORIES
from tests.storage_emulator.fixture import Bucket
from tests.storage_emulator.folders import upload

GROUND_TRUTH = [  # pixel boxes (ymin, xmin, ymax, xmax) and category ids; asymmetric on purpose
    ([[5, 10, 30, 50]], [3]),
    ([[0, 0, 20, 12], [30, 8, 60, 33]], [40, 7]),
    ([], []),
    ([[8, 40, 16, 60]], [7]),
    ([[1, 2, 61, 43]], [3]),
]


@pytest.fixture(scope="module")
def detector() -> Detector:
    detector = detector_from_config(export_config().model, CATEGORIES)
    random = np.random.default_rng(0)
    for variable in detector.variables:
        if "kernel" in variable.path:
            variable.assign(variable.numpy() + random.normal(0, 0.02, variable.shape))
    return detector


@pytest.fixture(scope="module")
def exported(detector: Detector, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    export_saved_model(detector, folder, categories=CATEGORIES, config_yaml=to_yaml(export_config()))
    return folder


@pytest.fixture(scope="module")
def images() -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.integers(0, 256, (SIDE, SIDE, 3), np.uint8) for _ in GROUND_TRUTH]


def test_a_model_on_cloud_storage(gcs: Bucket, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path))
    remote = upload(exported, f"{gcs.path}/model")
    detectors = [load_trained(folder).detector for folder in (exported, remote)]
    for one, other in zip(*(detector.variables for detector in detectors), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert read_model_config(remote) == read_model_config(exported)
    assert read_exported_from(remote) is None
    write_text(f"{remote}/{EXTRA_FILES}/{CONFIG_YAML}", "train: [")
    with pytest.raises(DataError, match=rf"{remote}/.*: not a YAML file: .*export or copy the model again"):
        read_model_config(remote)
    remove_file(f"{remote}/saved_model.pb")
    with pytest.raises(DataError, match="not a SavedModel"):
        SavedModelDetector(folder=remote, batch_size=1)


def test_the_restored_detector_is_the_exported_one(detector: Detector, exported: Path) -> None:
    trained = load_trained(exported)
    assert (trained.categories, trained.config) == (CATEGORIES, export_config())
    restored = trained.detector
    assert [variable.path for variable in restored.variables] == [variable.path for variable in detector.variables]
    for one, other in zip(restored.variables, detector.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_means_are_those_of_the_batches(detector: Detector, exported: Path, images: list[np.ndarray]) -> None:
    records = [example(image, boxes, labels) for image, (boxes, labels) in zip(images, GROUND_TRUTH, strict=True)]
    losses = mean_losses(exported, records, category_ids=CATEGORY_IDS, batch_size=2)

    mean, std = np.array(detector.pixel_mean), np.array(detector.pixel_std)
    expected = {"class_loss": 0.0, "box_loss": 0.0}
    for batch in ([0, 1], [2, 3], [4]):
        # The images have the input's size: there is nothing to fit.
        inputs = np.stack([(images[at] - mean) / std for at in batch]).astype(np.float32)
        samples = [
            InputSample(
                tf.constant(inputs[place]),
                tf.constant(np.array(GROUND_TRUTH[at][0], np.float32).reshape(-1, 4)),
                tf.constant([CATEGORY_IDS.index(label) for label in GROUND_TRUTH[at][1]], tf.int32),
            )
            for place, at in enumerate(batch)
        ]
        padded = [pad_labels(sample, max_instances=100)[0] for sample in samples]
        labels = Labels(*(tf.stack(column) for column in list(zip(*padded, strict=True))[:3]))
        for name, value in detector.losses(detector(inputs, training=False), labels).items():
            expected[name] += float(value) * len(batch) / len(images)
    assert expected["box_loss"] > 0
    assert losses.keys() == {*expected, "loss"}
    for name, value in expected.items():
        assert losses[name] == pytest.approx(value, rel=1e-5)
    assert losses["loss"] == pytest.approx(sum(expected.values()), rel=1e-5)


def test_crowds_that_training_ignored_are_no_background(
    detector: Detector, exported: Path, images: list[np.ndarray], tmp_path: Path
) -> None:
    """A crowd in the right half of an image; the detector's own losses know it as `Labels.crowds`."""
    boxes = [[0, 32, 64, 64]]
    record = example(images[0], boxes, [7], [1])
    inputs = (images[0] - np.array(detector.pixel_mean)) / np.array(detector.pixel_std)
    outputs = detector(inputs[np.newaxis].astype(np.float32), training=False)
    one = Labels(tf.constant([boxes], tf.float32), tf.constant([[1]]), tf.constant([[False]]))
    dropped, ignored = detector.losses(outputs, one), detector.losses(outputs, one._replace(crowds=~one.valid))
    assert float(ignored["class_loss"]) < 0.9 * float(dropped["class_loss"])
    model = shutil.copytree(exported, tmp_path / "model")
    for crowds, expected in (("drop", dropped), ("ignore", ignored)):
        (model / EXTRA_FILES / CONFIG_YAML).write_text(to_yaml(export_config(f"train.crowds={crowds}")))
        losses = mean_losses(model, [record], category_ids=CATEGORY_IDS, batch_size=1)
        for name, value in expected.items():
            assert losses[name] == pytest.approx(float(value), rel=1e-4), (crowds, name)


def test_what_has_no_losses_is_refused(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not know category 41"):
        mean_losses(exported, [], category_ids=[3, 41], batch_size=2)
    with pytest.raises(DataError, match="no records to compute its losses on"):
        mean_losses(exported, [], category_ids=[3], batch_size=2)
    with pytest.raises(DataError, match=r"cannot read a record after the first 0 for its losses: .*image/encoded"):
        mean_losses(exported, [b"junk"], category_ids=CATEGORY_IDS, batch_size=2)
    with pytest.raises(DataError, match="no weights"):
        load_trained(tmp_path)
    other = tmp_path / "other"
    shutil.copytree(exported, other)
    config = other / EXTRA_FILES / CONFIG_YAML
    config.write_text(to_yaml(export_config("model.overrides.neck.filters=[24]")))
    with pytest.raises(DataError, match="does not match its configuration"):
        load_trained(other)
    (other / EXTRA_FILES / LABELS_JSON).unlink()
    with pytest.raises(DataError, match=r"no categories\.json beside its weights"):
        load_trained(other)
