"""Which of several machines makes the records; training itself is stubbed."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import detection.training.train
from pipelines import train_alone as verb
from pipelines.demo_data import make_demo_data
from pipelines.execute import execute_run
from pipelines.train_alone import train_alone
from schemas.config import Config
from schemas.config_io import load_config
from schemas.errors import CocoflowError, ConfigError


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("data")
    make_demo_data(folder, train_images=2, eval_images=1)
    return load_config(None, [f"data.root={folder}"])


@pytest.fixture(autouse=True)
def trained(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of each call of `train`."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(detection.training.train, "train", lambda config, **keywords: calls.append(keywords))
    return calls


def _is_worker(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": number}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(tree))


def test_the_chief_makes_the_records_and_the_others_wait_for_them(
    config: Config, trained: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _is_worker(0, monkeypatch)
    train_alone(config, str(tmp_path / "chief"))
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            shutil.copytree(tmp_path / "chief" / "examples", tmp_path / "worker" / "examples")

    _is_worker(1, monkeypatch)
    monkeypatch.setattr(time, "sleep", wait)
    train_alone(config, str(tmp_path / "worker"))
    assert len(waits) == 3
    chief, worker = ([Path(shard).name for shard in call["shards"]] for call in trained)
    assert worker == chief
    assert chief
    assert trained[0]["categories"] == trained[1]["categories"]
    assert (tmp_path / "chief" / "run.log").is_file()
    assert not (tmp_path / "worker" / "run.log").exists()


def test_records_that_never_come_are_an_error(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _is_worker(1, monkeypatch)
    monkeypatch.setattr(verb, "_PATIENCE_SECONDS", -1.0)
    with pytest.raises(CocoflowError, match=r"examples/\w{16}: the chief has not made the records there"):
        train_alone(config, str(tmp_path))


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
