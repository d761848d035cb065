"""Published detectors in the cache, from an archive of the original's checkpoint."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detection import load_detector
from detection.pretrained import detectors
from detection.pretrained.detectors import cached_detector, find_detector, find_model
from detection.weights.locate import locate_weights
from detection.weights.publications import COCO_DETECTORS
from pipeline_runner import main
from schemas.artifacts import IMPORT_JSON, ORIGIN_JSON
from schemas.errors import DataError
from tests.detection.fake_detector import write_images
from tests.detection.pretrained.publisher import Publisher, archive, published_detector, running_publisher

D0 = COCO_DETECTORS["efficientdet-d0"]
PATH = "/coco2/efficientdet-d0.tar.gz"


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    monkeypatch.delenv("COCOFLOW_OFFLINE")
    with running_publisher() as running:
        yield running


def test_the_archives_are_those_of_the_publisher() -> None:
    prefix = "https://storage.googleapis.com/cloud-tpu-checkpoints/efficientdet/"
    urls = {name: one.origin.removeprefix(prefix) for name, one in COCO_DETECTORS.items() if one.program == "automl"}
    assert urls["efficientdet-d0"] == "coco2/efficientdet-d0.tar.gz"
    assert urls["efficientdet-d7x"] == "coco2/efficientdet-d7x.tar.gz"
    assert urls["efficientdet-lite3x"] == "coco/efficientdet-lite3x.tgz"
    assert len(urls) == 15


@pytest.mark.slow
def test_a_detector_is_fetched_once_and_computes_what_the_original_does(
    publisher: Publisher, oracle_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = oracle_dir / "efficientdet_d0"
    publisher.files[PATH] = published_detector("efficientdet-d0", original / "name_based" / "model.ckpt")
    publication = D0._replace(origin=publisher.url + PATH)
    cache = str(tmp_path / "cache")
    monkeypatch.setenv("COCOFLOW_WEIGHTS", cache)
    monkeypatch.setitem(COCO_DETECTORS, D0.name, publication)
    assert cached_detector(D0.name, cache) is None
    folder = find_model(D0.name)
    assert find_detector(publication, cache, fetches=False) == folder == cached_detector(D0.name, cache)
    assert publisher.asked == [PATH]
    assert sorted(file.name for file in Path(folder).iterdir()) == [
        "categories.json", "checkpoints", "config.yaml", IMPORT_JSON, ORIGIN_JSON,
    ]  # fmt: skip
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [D0.name]

    origin = detectors.read_origin(locate_weights(folder).prefix)
    assert origin is not None
    assert (origin["origin"], origin["licence"], origin["weights"]) == (publication.origin, "Apache-2.0", "coco")
    assert origin["bytes"] == len(publisher.files[PATH])
    assert json.loads(Path(folder, IMPORT_JSON).read_text())["checkpoint"] == publication.origin

    expected = np.load(original / "outputs.npz")
    detector = load_detector(D0.name)
    assert detector.names[18] == "dog"
    outputs = detector(tf.constant(expected["image_normalised"]))
    for level in range(3, 8):
        np.testing.assert_allclose(outputs[f"class_p{level}"], expected[f"class_p{level}"], atol=1e-5)
        np.testing.assert_allclose(outputs[f"box_p{level}"], expected[f"box_p{level}"], atol=1e-5)


def test_a_name_without_network_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COCOFLOW_WEIGHTS", str(tmp_path))
    write_images(tmp_path / "photos", 1)
    arguments = ["--images", str(tmp_path / "photos"), "--draw", str(tmp_path / "drawn")]
    assert main(["predict", "--model", D0.name, *arguments]) == 1
    assert capfd.readouterr().err.strip().splitlines() == [
        f"error: {tmp_path}/efficientdet-d0: not in the cache of weights, and COCOFLOW_OFFLINE is set. "
        "Without a network, pass a model of yours, such as that of `make demo`."
    ]
    assert main(["predict", "--model", "efficientdet-d00", *arguments]) == 1
    assert "no such file or folder. Check --model. Did you mean the detector efficientdet-d0?" in capfd.readouterr().err
    assert not (tmp_path / "drawn").exists()


def test_nothing_is_fetched_where_it_is_switched_off(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publication = D0._replace(origin=publisher.url + PATH)
    with pytest.raises(DataError, match=r"efficientdet-d0: not in the cache of weights, and model\.fetch_weights is"):
        find_detector(publication, str(tmp_path), fetches=False)
    monkeypatch.setenv("COCOFLOW_OFFLINE", "1")
    with pytest.raises(DataError, match=r"not in the cache of weights, and COCOFLOW_OFFLINE is set"):
        find_detector(publication, str(tmp_path), fetches=True)
    assert publisher.asked == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no archive", "not a ZIP or tar archive, or damaged"),
        (archive({"efficientdet-d0/README": b"text"}), "has 0 folders with a checkpoint; expected one"),
        (archive({"a/model.index": b"x", "b/model.index": b"x"}), "has 2 folders with a checkpoint"),
        (archive({"efficientdet-d0/model.index": b"no index"}), rf"{PATH}: .*model: "),
    ],
)
def test_after_a_failure_the_cache_is_as_before(
    publisher: Publisher, tmp_path: Path, content: bytes, message: str
) -> None:
    publisher.files[PATH] = content
    with pytest.raises(DataError, match=message):
        find_detector(D0._replace(origin=publisher.url + PATH), str(tmp_path / "cache"), fetches=True)
    assert not list((tmp_path / "cache").iterdir())
