"""A checked push: what is compared before anything is visible, what a refusal leaves, what a version holds."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_log_pb2

from components.saved_model_pusher import push as pushing
from components.saved_model_pusher.added_files import score_thresholds, warmup_records
from components.saved_model_pusher.push import Pushed, PushRequest, push
from components.saved_model_pusher.validate import Validation
from detection.analysis.analysis_file import write_analysis
from detection.inference.score_thresholds import read_score_thresholds
from detection.storage import files
from detection.storage.files import read_bytes
from detection.storage.paths import name_of
from detection.storage.tfrecord import read_shard
from schemas.artifacts import ANALYSIS_JSON, EXTRA_FILES, LABELS_JSON
from schemas.config.config import PushConfig
from schemas.errors import DataError
from tests.components.saved_model_pusher.served_models import analysis, evaluated_sample
from tests.detection.fake_detector import FakeDetector, save_fake_detector

WARMUP = "assets.extra/tf_serving_warmup_requests"
VALIDATION = Validation(2, 7, 0, {"detection_boxes": 0.0}, 0.001, {"total": 1.0})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_fake_detector(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """The files of a ModelEvaluation that a push reads."""
    folder = tmp_path_factory.mktemp("evaluation")
    evaluated_sample(folder, model, images=3)
    write_analysis(folder / ANALYSIS_JSON, analysis())
    return folder


def request(model: Path | str, directory: Path | str, evaluation: Path | None, **options: Any) -> PushRequest:
    return PushRequest(
        str(model), str(directory), None if evaluation is None else str(evaluation), PushConfig(**options)
    )


@pytest.fixture
def validated(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The calls of `validate`, which finds everything as evaluated."""
    calls: list[dict[str, Any]] = []

    def note(folder: Path, sample: str, **given: Any) -> Validation:
        calls.append({"files": set(files.walk_files(folder)), "sample": sample} | given)
        return VALIDATION

    monkeypatch.setattr(pushing, "validate", note)
    return calls


@pytest.fixture(params=["local", "remote"])
def serving(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A push directory."""
    return str(tmp_path / "serving") if request.param == "local" else f"{request.getfixturevalue('gcs').path}/serving"


def versions(directory: str) -> list[str]:
    return files.list_folder(directory) if files.is_dir(directory) else []


def test_what_is_published_is_what_was_validated(
    model: Path, evaluation: Path, serving: str, validated: list[dict[str, Any]]
) -> None:
    pushed = push(request(model, serving, evaluation, validation={"images": 2, "tolerance": 0.01, "timeout": 9.0}))
    [call] = validated
    assert call["files"] == set(files.walk_files(pushed.version))
    assert call["files"] > {"saved_model.pb", WARMUP, "assets.extra/score_thresholds.json"}
    assert (call["images"], call["tolerance"], call["timeout"]) == (2, 0.01, 9.0)
    assert call["name"] == str(model)
    assert pushed.validation == VALIDATION
    assert push(request(model, serving, evaluation)) == Pushed(pushed.version, None)  # there already
    assert len(validated) == 1


def test_nothing_is_visible_while_it_is_validated_and_a_refusal_leaves_nothing(
    model: Path, evaluation: Path, serving: str, validated: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = push(request(model, serving, evaluation)).version
    other = evaluation.parent / "other"
    save_fake_detector(other, shift=1)
    seen = []

    def refuse(folder: Path, sample: str, **given: Any) -> Validation:
        seen.append([name for name in files.list_folder(serving) if not name.startswith(".")])
        raise DataError("not as evaluated")

    monkeypatch.setattr(pushing, "validate", refuse)
    with pytest.raises(DataError, match="not as evaluated"):
        push(request(other, serving, evaluation, keep_versions=1))
    name = first.rpartition("/")[2]
    assert seen == [[name]]
    assert versions(serving) == [name]


def test_the_model_of_another_evaluation_never_becomes_visible(evaluation: Path, tmp_path: Path) -> None:
    """In the real process."""
    other = save_fake_detector(tmp_path / "other", shift=1)
    with pytest.raises(DataError, match=r"other: not pushed, .* TensorFlow alone: image \d+ .* no counterpart"):
        push(request(other, tmp_path / "serving", evaluation, validation={"images": 1}))
    assert list((tmp_path / "serving").iterdir()) == []


def test_without_validation_and_without_an_evaluation(
    model: Path, evaluation: Path, tmp_path: Path, validated: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    off = {"validation": {"images": 0}, "warmup_requests": 0}
    pushed = push(request(model, tmp_path / "1", evaluation, **off))
    assert pushed.validation is None
    assert not Path(pushed.version, WARMUP).exists()
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "cocoflow.pusher"):
        pushed = push(request(model, tmp_path / "2", None))
    assert "without validation" in caplog.text
    assert set(files.walk_files(pushed.version)) == set(files.walk_files(model))
    assert validated == []


def test_an_evaluation_without_a_sample_is_refused(model: Path, evaluation: Path, tmp_path: Path) -> None:
    write_analysis(tmp_path / ANALYSIS_JSON, analysis())
    with pytest.raises(DataError, match=r"serving_sample\.npz: missing, so the model cannot be validated"):
        push(request(model, tmp_path / "serving", tmp_path))
    assert not (tmp_path / "serving").exists()


def warmup_requests(folder: str | Path) -> list[Any]:
    logs = [prediction_log_pb2.PredictionLog.FromString(record) for record in read_shard(f"{folder}/{WARMUP}")]
    return [log.predict_log.request for log in logs]


def test_warm_up_requests_are_what_tf_serving_documents(
    model: Path, evaluation: Path, tmp_path: Path, validated: list[dict[str, Any]]
) -> None:
    pushed = push(request(model, tmp_path / "serving", evaluation, warmup_requests=2))
    requests = warmup_requests(pushed.version)
    assert len(requests) == 2
    signature = tf.saved_model.load(pushed.version).signatures[requests[0].model_spec.signature_name]
    images = {path.read_bytes() for path in (evaluation / "images").iterdir()}
    for one in requests:
        inputs = {name: tf.constant(tf.make_ndarray(tensor)) for name, tensor in one.inputs.items()}
        assert inputs["images"].numpy().item() in images
        assert signature(**inputs)["num_detections"].shape == (1,)
    # TensorFlow's own reader takes the file, too.
    assert sum(1 for _ in tf.data.TFRecordDataset(f"{pushed.version}/{WARMUP}")) == 2
    # Other requests make no other model.
    again = push(request(model, tmp_path / "serving", evaluation, warmup_requests=3))
    assert again.version == pushed.version


def test_warm_up_requests_have_the_models_batch_size(tmp_path: Path) -> None:
    module = FakeDetector()
    spec = tf.TensorSpec([4], tf.string, "images")
    tf.saved_model.save(
        module, str(tmp_path), signatures={"serving_default": tf.function(module.serve.python_function, [spec])}
    )
    content = warmup_records(tmp_path, [b"image"])
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / WARMUP).write_bytes(content)
    [one] = warmup_requests(tmp_path)
    assert tf.make_ndarray(one.inputs["images"]).tolist() == [b"image"] * 4
    (tmp_path / "saved_model.pb").write_bytes(b"graph")
    with pytest.raises(DataError, match=r"saved_model\.pb: no SavedModel"):
        warmup_records(tmp_path, [b"image"])


def test_score_thresholds_are_those_of_the_highest_f1(
    model: Path, evaluation: Path, tmp_path: Path, validated: list[dict[str, Any]]
) -> None:
    pushed = push(request(model, tmp_path / "serving", evaluation))
    content = json.loads(read_bytes(f"{pushed.version}/assets.extra/score_thresholds.json"))
    assert content["criterion"] == "best-f1"
    assert (content["iou_type"], content["iou"], content["images"]) == ("bbox", 0.5, 1)
    cat, dog = sorted(content["categories"], key=lambda one: one["name"])
    # 2 TP of 3 objects with the scores 0.9 and 0.6: F1 = 2 * 2 / (2 + 3).
    assert cat == {
        "id": 7,
        "name": "cat",
        "threshold": 0.6,
        "precision": 1.0,
        "recall": pytest.approx(2 / 3),
        "f1": 0.8,
    }
    assert dog == {"id": 2, "name": "dog", "threshold": None, "precision": None, "recall": None, "f1": None}
    assert content["overall"]["threshold"] == 0.6
    thresholds = read_score_thresholds(pushed.version)
    assert [thresholds.of_category(id_) for id_ in (7, 2, 90)] == [0.6, 0.6, 0.6]


def test_thresholds_are_for_the_categories_of_the_model(tmp_path: Path) -> None:
    (tmp_path / EXTRA_FILES).mkdir()
    (tmp_path / EXTRA_FILES / "config.yaml").write_text("{}")
    categories = [{"id": 7, "name": "cat"}, {"id": 90, "name": "new"}]
    (tmp_path / EXTRA_FILES / LABELS_JSON).write_text(json.dumps(categories))
    known = score_thresholds(analysis(), tmp_path)
    assert [(one.id, one.threshold) for one in known.categories] == [(7, 0.6), (90, None)]
    # Evaluated without categories, the analysis has a row of another name.
    pooled = score_thresholds(analysis("any category"), tmp_path)
    assert [one.threshold for one in pooled.categories] == [None, None]
    assert pooled.of_category(7) == 0.6


def test_old_versions_go_after_the_push(
    model: Path, evaluation: Path, serving: str, validated: list[dict[str, Any]], tmp_path: Path
) -> None:
    models = [model, save_fake_detector(tmp_path / "1", shift=1), save_fake_detector(tmp_path / "2", shift=2)]
    pushed = [push(request(one, serving, evaluation, keep_versions=2)) for one in models]
    assert versions(serving) == [one.version.rpartition("/")[2] for one in pushed[1:]]
    assert [one.removed for one in pushed] == [(), (), (name_of(pushed[0].version),)]
