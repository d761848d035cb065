"""The file for MediaPipe beside a pushed SavedModel."""

from pathlib import Path
from typing import Any

import pytest

from components.saved_model_pusher import push as pushing
from components.saved_model_pusher.added_files import phone_file
from components.saved_model_pusher.push import PushRequest, push
from detection.export import mediapipe_model
from detection.storage.files import read_bytes
from pipelines.runs.start_check import check_run
from schemas.artifacts import CONFIG_YAML
from schemas.config.config import PushConfig
from schemas.config.config_io import to_yaml
from schemas.errors import ConfigError, DataError
from tests.components.saved_model_pusher.served_models import evaluated_sample
from tests.detection.export.exported_models import export_config, random_detector, random_images, write_training
from tests.detection.fake_detector import save_fake_detector
from tests.detection.training.tiny_run import CATEGORIES, tiny_config


@pytest.fixture(scope="module")
def stretching(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model trained in bfloat16 on stretched images."""
    folder = write_training(tmp_path_factory.mktemp("training"), random_detector())
    config = export_config("model.resize.mode=stretch", "train.precision=mixed_bfloat16")
    (folder / CONFIG_YAML).write_text(to_yaml(config))
    return folder


def test_a_network_trained_in_bfloat16_is_converted_in_float32(
    stretching: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = dict[str, Any]()

    def note(detector: Any, categories: Any, **options: Any) -> bytes:
        given.update(options, detector=detector, categories=categories)
        return b"file"

    monkeypatch.setattr(mediapipe_model, "convert_to_mediapipe", note)
    assert phone_file(stretching, "int8", [image.encoded for image in random_images()]) == b"file"
    assert (given["categories"], given["delegate"], given["precision"]) == (CATEGORIES, "cpu", "int8")
    assert given["detector"].compute_dtype == "float32"
    assert [batch.shape for batch in given["calibration"]] == [(1, 64, 64, 3)] * len(random_images())


def test_what_cannot_be_converted_is_refused(stretching: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"push\.mediapipe = int8: there is no evaluation"):
        phone_file(stretching, "int8", [])
    with pytest.raises(ConfigError, match=r"model\.resize\.mode = fit"):
        phone_file(write_training(tmp_path, random_detector()), "float32", [])


def test_a_run_is_refused_before_its_data_are_read() -> None:
    with pytest.raises(ConfigError, match=r"push\.mediapipe with model\.resize\.mode = fit"):
        check_run(tiny_config("push.mediapipe=float16", "model.weights=none"), {}, is_first=True)


def test_a_version_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, evaluation, calls = save_fake_detector(tmp_path / "model"), tmp_path / "evaluation", list[Any]()

    def note(*given: Any) -> bytes:
        calls.append(given)
        return b"file"

    monkeypatch.setattr(pushing, "phone_file", note)
    evaluated_sample(evaluation, model, images=3)
    options = PushConfig.model_validate({"mediapipe": "int8", "warmup_requests": 0, "validation": {"images": 0}})
    assert options.sample_images == 100
    request = PushRequest(str(model), str(tmp_path / "serving"), str(evaluation), options, score_thresholds=False)
    version = push(request).version
    assert read_bytes(f"{version}/assets.extra/mediapipe.tflite") == b"file"
    assert push(request).version == version
    ((folder, precision, images), _) = calls
    assert (folder, precision, len(images)) == (str(model), "int8", 3)
