"""Which of several machines makes the records; training itself is stubbed."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import detection.training.distributed.strategy
import detection.training.train
from components.coco_example_gen.spans.fingerprint import DataState
from detection.datasets.demo_data import make_demo_data
from detection.storage import files
from detection.storage.file_system import LOCK_FILE
from detection.storage.files import read_text
from pipelines.runs.execute import execute_run
from pipelines.runs.train_alone import train_alone
from schemas.artifacts import DATASET_JSON, SAVED_MODEL
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.errors import CocoflowError, ConfigError, DataError
from tests.folder_holder import folder_holder
from tests.storage_emulator.fixture import Bucket


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("data")
    make_demo_data(folder, train_images=2, eval_images=1)
    model = ("model.name=efficientdet-nano", "model.overrides={neck: {filters: 16, cells: 1}, head: {layers: 1}}")
    return load_config(None, [f"data.root={folder}", *model])


@pytest.fixture(autouse=True)
def trained(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each call of `train`."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(detection.training.train, "train", lambda config, **keywords: calls.append(keywords))
    # A real one would wait for the other machine.
    alone = tf.distribute.OneDeviceStrategy("/cpu:0")
    monkeypatch.setattr(detection.training.distributed.strategy, "make_strategy", lambda kind, tpu: alone)
    return calls


def _is_worker(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": number}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(tree))


def test_the_chief_makes_the_records_and_the_log_and_the_others_read_them(
    config: Config, trained: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _is_worker(0, monkeypatch)
    train_alone(config, str(tmp_path))
    (tmp_path / "run.log").unlink()
    before = sorted(tmp_path.rglob("*"))
    _is_worker(1, monkeypatch)
    train_alone(config, str(tmp_path))
    assert sorted(tmp_path.rglob("*")) == before
    assert trained[0]["shards"] == trained[1]["shards"] != []
    assert trained[0]["categories"] == trained[1]["categories"]


def test_a_training_of_its_own_is_refused_and_another_machine_of_the_same_is_not(
    config: Config, trained: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_alone(config, str(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with folder_holder(tmp_path) as process:
        with pytest.raises(CocoflowError, match=f"in use by process {process.pid} .* another folder with --output"):
            train_alone(config, str(tmp_path))
        _is_worker(0, monkeypatch)
        with pytest.raises(CocoflowError, match="in use by"):
            train_alone(config, str(tmp_path))
        (tmp_path / LOCK_FILE).rename(tmp_path.parent / LOCK_FILE)
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
        _is_worker(1, monkeypatch)
        train_alone(config, str(tmp_path))
    assert len(trained) == 2


def test_where_the_chief_s_records_are_not_seen_that_is_said(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _is_worker(1, monkeypatch)
    with pytest.raises(
        DataError, match=r"examples/\w{16}: the chief's records are not there. All machines need to see"
    ):
        train_alone(config, str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_records_of_unchanged_data_are_made_once(
    config: Config, trained: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_alone(config, str(tmp_path))
    monkeypatch.setattr("components.coco_example_gen.conversion.convert", None)
    train_alone(config, str(tmp_path))
    assert trained[0]["shards"] == trained[1]["shards"]


def test_a_pipeline_is_not_run_by_each_of_several_machines(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    _is_worker(0, monkeypatch)
    with pytest.raises(ConfigError, match="names 2 machines, each of which would run the whole pipeline"):
        execute_run(config, runner="local")


def test_damaged_records_of_an_earlier_call_are_named(
    config: Config, trained: list[dict[str, Any]], tmp_path: Path
) -> None:
    train_alone(config, str(tmp_path))
    [dataset] = (tmp_path / "examples").glob(f"*/{DATASET_JSON}")
    dataset.write_text('{"categories": [[1, "cat"]]}')
    with pytest.raises(DataError, match=r"item 1: .* Write one with id, name") as raised:
        train_alone(config, str(tmp_path))
    assert str(dataset) in str(raised.value)
    assert len(trained) == 1


def test_on_cloud_storage_the_chief_publishes_and_the_others_read(
    config: Config, trained: list[dict[str, Any]], gcs: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = f"{gcs.path}/out"

    def train(config: Config, **keywords: Any) -> None:
        trained.append(keywords | {"records": [Path(shard).read_bytes() for shard in keywords["shards"]]})
        folder: Path = keywords["output"]
        for name in ("logs/events", f"{SAVED_MODEL}/saved_model.pb"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(str(len(trained)))

    monkeypatch.setattr(detection.training.train, "train", train)
    _is_worker(0, monkeypatch)
    assert train_alone(config, output) == f"{output}/{SAVED_MODEL}"
    before = {name: state.version for name, state in files.walk_states(output).items()}
    assert {"run.log", "logs/events", f"{SAVED_MODEL}/saved_model.pb"} < before.keys()
    assert not [name for name in before if name.endswith((".lock", ".unfinished"))]
    _is_worker(1, monkeypatch)
    train_alone(config, output)
    assert {name: state.version for name, state in files.walk_states(output).items()} == before
    assert trained[0]["records"] == trained[1]["records"] != []
    _is_worker(0, monkeypatch)
    train_alone(config, output)
    assert read_text(f"{output}/{SAVED_MODEL}/saved_model.pb") == "3"


def test_what_fails_on_cloud_storage_leaves_its_log(
    config: Config, gcs: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(config: Config, *, output: Path, **keywords: Any) -> None:
        raise CocoflowError(f"diverged: see {output}/nonfinite")

    monkeypatch.setattr(detection.training.train, "train", train)
    with pytest.raises(CocoflowError, match=f"diverged: see {gcs.path}/out/nonfinite"):
        train_alone(config, f"{gcs.path}/out")
    assert files.is_file(f"{gcs.path}/out/run.log")


def test_an_output_in_the_place_of_a_file_is_refused_before_tensorflow_does_anything(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("pipelines.runs.train_alone.quiet_run", None)
    with pytest.raises(DataError, match=r"--output .*/file: this is a file\. Name a folder\."):
        train_alone(config, str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"--output .*/file/out: cannot write: .*/file is a file\."):
        train_alone(config, str(tmp_path / "file" / "out"))


def _leave(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=free))


def test_a_disk_without_room_for_the_checkpoints_is_refused_before_data_is_read(
    config: Config, trained: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("components.coco_example_gen.conversion.convert", None)
    keeps = config.train.model_copy(update={"keep_checkpoints": 1000, "checkpoint_every": 1})
    keeps_all = config.model_copy(update={"train": keeps})
    _leave(60_000_000, monkeypatch)
    message = r"/out: needs at least 2,\d+ MB, .* has 60 MB free\. Free space, lower train\.keep_checkpoints"
    with pytest.raises(CocoflowError, match=message):
        train_alone(keeps_all, str(tmp_path / "out"))
    assert not (tmp_path / "out" / "examples").exists()
    assert trained == []


def test_a_disk_without_room_for_the_records_is_refused_before_they_are_made(
    config: Config, trained: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("components.coco_example_gen.conversion.convert", None)
    monkeypatch.setattr(
        "components.coco_example_gen.spans.fingerprint.data_state", lambda *files: DataState("state", 70_000_000, 0.0)
    )
    _leave(60_000_000, monkeypatch)
    with pytest.raises(CocoflowError, match=r"/examples: needs at least 70 MB, and .* has 60 MB free\."):
        train_alone(config, str(tmp_path / "out"))
    assert trained == []


@pytest.mark.parametrize("output", ["s3://bucket/out", "gs:/bucket/out"])
def test_an_output_that_cannot_be_is_refused_by_name(config: Config, output: str) -> None:
    with pytest.raises(ConfigError, match=f"--output {output}"):
        train_alone(config, output)
