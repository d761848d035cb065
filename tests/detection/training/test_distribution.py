"""Runs on several replicas and several processes equal the run on one replica with the same global batch."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from schemas.artifacts import CHECKPOINTS, CONFIG_YAML, LOGS, SAVED_MODEL
from tests.detection.synthetic import rectangles, write_shards
from tests.detection.training.cluster_run import log_of, run_small, together
from tests.detection.training.tiny_run import checkpoint_values, only_steps

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _only_steps() -> Iterator[None]:
    """Of the runs in this process; those of two processes export a model."""
    with only_steps():
        yield


@pytest.fixture(scope="module")
def train() -> Iterator[Callable[..., None]]:
    with together() as train:
        yield train


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_shards(tmp_path_factory.mktemp("records"), rectangles(10))


@pytest.fixture(scope="module")
def one_replica(tmp_path_factory: pytest.TempPathFactory, shards: list[str]) -> dict[str, np.ndarray]:
    output = tmp_path_factory.mktemp("one")
    run_small(output, shards, "train.strategy=one_device")
    return checkpoint_values(output, 20)


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory, shards: list[str], train: Callable[..., None]) -> Path:
    folder = tmp_path_factory.mktemp("two")
    train(folder, shards)
    return folder


def _furthest(output: Path, expected: dict[str, np.ndarray]) -> float:
    got = checkpoint_values(output, 20)
    assert got.keys() == expected.keys()
    return max(float(np.abs(got[name] - value).max()) for name, value in expected.items())


def test_two_replicas_equal_one_after_20_steps(
    one_replica: dict[str, np.ndarray], shards: list[str], tmp_path: Path
) -> None:
    run_small(tmp_path, shards, "train.strategy=mirrored")
    assert _furthest(tmp_path, one_replica) < 2e-6


def test_two_processes_equal_one_replica_after_20_steps(one_replica: dict[str, np.ndarray], two_workers: Path) -> None:
    """So they see, pixel by pixel, the halves of what one replica sees."""
    assert _furthest(two_workers / "run", one_replica) < 2e-6


def test_the_chief_alone_writes(two_workers: Path) -> None:
    run = two_workers / "run"
    kept = {f"ckpt-{step}.{end}" for step in (10, 20) for end in ("index", "data-00000-of-00001")}
    assert {path.name for path in (run / CHECKPOINTS).iterdir()} == {"checkpoint", *kept}
    assert len(list((run / LOGS).iterdir())) == 1
    assert (run / SAVED_MODEL / "saved_model.pb").is_file()
    assert (run / CONFIG_YAML).is_file()
    assert _left_behind(two_workers) == []


def _left_behind(folder: Path) -> list[str]:
    """Temporary files; AutoGraph's go with a process that ends normally."""
    return [path.name for path in folder.glob("tmp-[01]/*") if "autograph" not in path.name]


@pytest.mark.extended  # test_workers.py shows what TensorFlow's errors become
def test_where_a_process_is_ended_the_other_says_so_and_ends(
    two_workers: Path, shards: list[str], train: Callable[..., None]
) -> None:
    """Both first go on from the checkpoint that is there."""
    endless = ["train.steps=1000000", "train.checkpoint_every=40"]
    there = two_workers / "run" / CHECKPOINTS / "ckpt-40.index"
    train(two_workers, shards, endless, until=there, expected=[1, -signal.SIGTERM])
    assert "error: training stopped: worker 0 of the cluster no longer responds" in log_of(two_workers, 0)
    assert "Traceback" not in log_of(two_workers, 0)
    for number in (0, 1):
        assert "resuming from step 20 " in log_of(two_workers, number)
    assert _left_behind(two_workers) == []
