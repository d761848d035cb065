"""The command on a run's folder as training leaves it: its data, its answers, its refusals."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import pipeline_runner
from components.coco_example_gen import to_examples
from detection.input_pipeline.record_reader import RecordReader
from detection.models.detector import variables_by_path
from detection.models.registry import detector_from_config
from detection.storage import files
from detection.storage.file_system import LOCK_FILE
from detection.storage.json_files import read_json
from detection.training.auto.kept_images import divide
from detection.training.checkpoints.files import checkpoint_path
from detection.training.resolve import assumed
from detection.training.validation.history import HistoryEntry, write_history
from schemas.artifacts import MODEL_PART
from schemas.config.config_io import load_config, to_yaml
from tests.detection.training import tiny_detector
from tests.detection.training.evaluation_records import CATEGORIES, coco_records, write_coco_shards
from tests.detection.training.tiny_run import SMALL
from tests.folder_holder import folder_holder
from tests.storage_emulator.fixture import Bucket

ASSIGNMENTS = (*SMALL, "train.steps=20", "data.root=/where/the/run/had/it")


@pytest.fixture(scope="module", autouse=True)
def _tiny() -> None:
    tiny_detector.register()


def _save(run: Path, step: int) -> None:
    config = load_config(None, ASSIGNMENTS)
    tf.random.set_seed(step)
    detector = detector_from_config(config.model, CATEGORIES)
    parts = {MODEL_PART: variables_by_path(detector.variables)}
    tf.train.Checkpoint(**parts).write(checkpoint_path(run / "checkpoints", step))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    _describe(folder)
    return folder


def _describe(folder: Path, *assignments: str) -> None:
    folder.mkdir(exist_ok=True)
    config = assumed(
        load_config(None, [*ASSIGNMENTS, *assignments]), replicas=1
    )  # with all numbers, as training writes it
    (folder / "config.yaml").write_text(to_yaml(config))
    (folder / "categories.json").write_text(json.dumps(CATEGORIES))


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("examples")
    write_coco_shards(root / "Split-eval", 5)
    (root / "dataset.json").write_text(json.dumps({"categories": CATEGORIES, "splits": {"eval": {"images": 5}}}))
    return root


def _call(run: Path, data: Path, *flags: str) -> int:
    return pipeline_runner.main(["follow", "--checkpoints", str(run / "checkpoints"), "--data", str(data), *flags])


def _history(run: Path) -> list[Any]:
    return list(json.loads((run / "follow" / "history.json").read_text()))


def test_a_second_one_with_the_same_output_is_refused(
    run: Path, examples: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "ckpt-10.index").touch()
    with folder_holder(run / "follow") as process:
        assert _call(run, examples) == 1
        assert [path.name for path in (run / "follow").iterdir()] == [LOCK_FILE]
    assert f"follow: in use by process {process.pid} " in capsys.readouterr().err


@pytest.mark.slow
def test_it_ends_with_the_last_step(run: Path, examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second checkpoint comes while the first is evaluated; the training holds its folder meanwhile."""
    _save(run, 10)
    later = threading.Timer(0.5, _save, [run, 20])
    later.start()
    with folder_holder(run):
        assert _call(run, examples, "--timeout", "5", "--every", "--set", "evaluate.analysis.visualizations=2") == 0
    later.join()
    assert [entry["step"] for entry in _history(run)] == [10, 20]
    out = capsys.readouterr().out
    assert out.startswith("2 checkpoints evaluated. The best: ")
    assert "AR100" in out
    assert "undefined" in out
    values = [
        (event.step, value.tag)
        for path in (run / "follow").glob("events.*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    ]
    for step in (10, 20):
        tags = [tag for number, tag in values if number == step]
        assert {
            "Loss/total_loss",
            "Loss/classification_loss",
            "Loss/localization_loss",
            "DetectionBoxes_Precision/mAP",
        } < set(tags)
        assert "DetectionBoxes_PerformanceByCategory/mAP/kind 3" in tags
        assert [tag for tag in tags if tag.startswith("eval_side")] == [
            "eval_side_by_side_0_0",
            "eval_side_by_side_1_0",
        ]
    assert (run / "follow" / "best" / "metrics.json").is_file()


@pytest.mark.slow
def test_a_coco_data_set_another_metric_and_a_folder_of_ones_own(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run's folder is given instead of that of its checkpoints, and time runs out."""
    records, tree = coco_records(4)
    data = tmp_path / "data"
    data.mkdir()
    for record, entry in zip(records, tree["images"], strict=True):
        encoded = tf.train.Example.FromString(record).features.feature["image/encoded"].bytes_list.value[0]
        (data / entry["file_name"]).write_bytes(encoded)
    (data / "instances_val.json").write_text(json.dumps(tree))
    (data / "instances_train.json").write_text(json.dumps(tree))
    _save(run, 10)
    flags = ["--output", str(tmp_path / "own"), "--timeout", "0", "--set", "train.validation.metric=AR1"]
    assert pipeline_runner.main(["follow", "--checkpoints", str(run), "--data", str(data), *flags]) == 0
    assert capsys.readouterr().out.startswith("No new checkpoint for 0 minutes; the run has not ended")
    assert (tmp_path / "own" / "best" / "ckpt-10.index").is_file()
    assert not (run / "follow").exists()


@pytest.mark.slow
def test_it_evaluates_on_the_images_that_the_run_keeps(tmp_path: Path) -> None:
    run, examples = tmp_path / "run", tmp_path / "examples"
    _describe(run, "train.validation={every: 5, fraction: 0.3}")
    shards, _ = write_coco_shards(examples / "Split-train", 12)
    (examples / "dataset.json").write_text(json.dumps({"categories": CATEGORIES, "splits": {"train": {"images": 12}}}))
    _save(run, 20)
    kept = divide(RecordReader(shards), 0.3).validation
    assert _call(run, examples, "--timeout", "0") == 0
    chosen_on = json.loads((run / "follow" / "best" / "metrics.json").read_text())["chosen_on"]
    assert chosen_on == {"split": "train", "images": len(kept or ()), "metric": "AP"}


def test_a_run_that_stopped_early_has_ended(tmp_path: Path) -> None:
    from components.detection_trainer.follow import _is_last

    _describe(tmp_path, "train.validation.every=5", "train.validation.patience=1")
    assert not _is_last(10, str(tmp_path))
    write_history(
        tmp_path / "validation" / "history.json", [HistoryEntry(5, {"AP": 0.2}), HistoryEntry(10, {"AP": 0.1})]
    )
    assert _is_last(10, str(tmp_path))
    assert _is_last(20, str(tmp_path))


def _refusal(run: Path, data: Path, *flags: str, code: int, capsys: pytest.CaptureFixture[str]) -> str:
    assert _call(run, data, *flags) == code
    return capsys.readouterr().err


def test_a_run_that_never_begins(run: Path, examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = _refusal(run, examples, "--timeout", "0", code=1, capsys=capsys)
    assert "no checkpoint with a config.yaml above it has come" in message
    assert "--timeout waits longer" in message


def test_other_categories_are_refused(run: Path, examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "categories.json").write_text(json.dumps([*CATEGORIES[:-1], {"id": 41, "name": "lorry"}]))
    _save(run, 10)
    message = _refusal(run, examples, code=1, capsys=capsys)
    assert "its categories are not those of the run" in message
    assert "41 'lorry'" in message


def test_other_categories_are_refused_before_a_data_set_is_converted(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    others = {"images": [], "annotations": [], "categories": [{"id": 41, "name": "lorry"}]}
    (data / "annotations").mkdir(parents=True)
    for name in ("train", "val"):
        (data / "annotations" / f"instances_{name}.json").write_text(json.dumps(others))
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "ckpt-10.index").touch()
    monkeypatch.setattr(to_examples, "convert", lambda *args, **kwargs: pytest.fail("converted"))
    message = _refusal(run, data, code=1, capsys=capsys)
    assert f"{data}: its categories are not those of the run" in message
    assert "41 'lorry'" in message


def test_checkpoints_of_which_none_can_be_read(run: Path, examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _save(run, 10)
    next((run / "checkpoints").glob("*.data*")).write_bytes(b"")
    assert "no checkpoint could be evaluated" in _refusal(run, examples, "--timeout", "0", code=1, capsys=capsys)


@pytest.mark.parametrize("timeout", ["soon", "-1", "inf", "nan"])
def test_a_timeout_is_a_number_of_minutes(timeout: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        _call(tmp_path, tmp_path, "--timeout", timeout)
    assert stopped.value.code == 2


@pytest.mark.slow
def test_a_run_on_cloud_storage_is_followed_there(
    run: Path, examples: Path, gcs: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second checkpoint comes while the first is evaluated, and the results are those of the local run."""
    _save(run, 10)
    _save(run, 20)
    assert _call(run, examples, "--every", "--timeout", "0") == 0
    local = capsys.readouterr().out
    remote, late = f"{gcs.path}/run", run / "checkpoints" / "ckpt-20.index"
    for path in run.rglob("*"):
        if path.is_file() and "follow" not in path.parts and path != late:
            files.copy_file(path, f"{remote}/{path.relative_to(run)}")
    later = threading.Timer(0.5, files.copy_file, [late, f"{remote}/checkpoints/ckpt-20.index"])
    later.start()
    flags = ["--data", str(examples), "--every", "--timeout", "5"]
    assert pipeline_runner.main(["follow", "--checkpoints", remote, *flags]) == 0
    later.join()
    assert capsys.readouterr().out == local.replace(str(run), remote)
    assert read_json(f"{remote}/follow/history.json") == _history(run)
    ours, theirs = set(files.walk_files(f"{remote}/follow")), set(files.walk_files(run / "follow"))
    assert {name for name in ours ^ theirs if "events" not in name} == set()
    assert pipeline_runner.main(["follow", "--checkpoints", f"{remote}/checkpoints/", *flags]) == 0, "nothing to do"
