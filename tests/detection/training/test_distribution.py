"""Runs on several replicas and several processes equal the run on one replica with the same global batch."""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from schemas.artifacts import CHECKPOINTS, CONFIG_YAML, LOGS, SAVED_MODEL
from schemas.errors import ConfigError
from tests.detection.synthetic import rectangles, write_shards
from tests.detection.training.cluster_run import images_saved, log_of, run_small, start_workers
from tests.detection.training.tiny_run import checkpoint_values, only_steps

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _only_steps() -> Iterator[None]:
    """Of the runs in this process; those of two processes export a model."""
    with only_steps():
        yield


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_shards(tmp_path_factory.mktemp("records"), rectangles(10))


@pytest.fixture(scope="module")
def one_folder(tmp_path_factory: pytest.TempPathFactory, shards: list[str]) -> Path:
    output = tmp_path_factory.mktemp("one")
    with images_saved(output / "images.npy"):
        run_small(output, shards, "train.strategy=one_device")
    return output


@pytest.fixture(scope="module")
def two_replicas_folder(tmp_path_factory: pytest.TempPathFactory, shards: list[str]) -> Path:
    output = tmp_path_factory.mktemp("mirrored")
    with images_saved(output / "images.npy"):
        run_small(output, shards, "train.strategy=mirrored")
    return output


@pytest.fixture(scope="module")
def one_replica(one_folder: Path) -> dict[str, np.ndarray]:
    return checkpoint_values(one_folder, 20)


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory, shards: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("two")
    for number, worker in enumerate(start_workers(folder, shards, [], [])):
        assert worker.wait(300) == 0, log_of(folder, number)[-3000:]
    return folder


def _furthest(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    assert got.keys() == expected.keys()
    return max(float(np.abs(got[name] - value).max()) for name, value in expected.items())


def test_two_replicas_equal_one_after_20_steps(one_replica: dict[str, np.ndarray], two_replicas_folder: Path) -> None:
    assert _furthest(checkpoint_values(two_replicas_folder, 20), one_replica) < 2e-6


def test_two_processes_equal_one_replica_after_20_steps(one_replica: dict[str, np.ndarray], two_workers: Path) -> None:
    assert _furthest(checkpoint_values(two_workers / "run", 20), one_replica) < 2e-6


def test_two_processes_see_halves_of_what_one_replica_sees(one_folder: Path, two_workers: Path) -> None:
    """Pixel by pixel, augmented: process 0 has the first half of each batch, process 1 the second."""
    whole = np.load(one_folder / "images.npy")
    halves = [np.load(two_workers / f"images-{number}.npy") for number in (0, 1)]
    assert whole.shape == (2, 4, 32, 32, 3)
    np.testing.assert_array_equal(np.concatenate(halves, axis=1), whole)
    assert len(np.unique(whole.reshape(8, -1), axis=0)) == 8


def test_two_replicas_see_halves_of_what_one_sees(one_folder: Path, two_replicas_folder: Path) -> None:
    np.testing.assert_array_equal(np.load(two_replicas_folder / "images.npy"), np.load(one_folder / "images.npy"))


def test_without_synchronisation_replicas_normalise_on_their_own(
    one_replica: dict[str, np.ndarray], shards: list[str], tmp_path: Path
) -> None:
    run_small(tmp_path, shards, "train.strategy=mirrored", "train.sync_batch_norm=false")
    assert _furthest(checkpoint_values(tmp_path, 20), one_replica) > 1e-3


def test_the_chief_alone_writes(two_workers: Path) -> None:
    run = two_workers / "run"
    kept = {f"ckpt-{step}.{end}" for step in (10, 20) for end in ("index", "data-00000-of-00001")}
    assert {path.name for path in (run / CHECKPOINTS).iterdir()} == {"checkpoint", *kept}
    assert len(list((run / LOGS).iterdir())) == 1
    assert (run / SAVED_MODEL / "saved_model.pb").is_file()
    assert (run / CONFIG_YAML).is_file()
    assert not list((two_workers / "tmp-0").iterdir())
    assert not list((two_workers / "tmp-1").iterdir())


def test_where_a_process_is_ended_the_other_says_so_and_ends(two_workers: Path, shards: list[str]) -> None:
    """Both first go on from the checkpoint that is there."""
    chief, worker = start_workers(two_workers, shards, *[["train.steps=1000000", "train.checkpoint_every=40"]] * 2)
    _wait_for(two_workers / "run" / CHECKPOINTS / "ckpt-40.index", chief, worker)
    worker.terminate()
    assert worker.wait(60) == -signal.SIGTERM
    assert chief.wait(120) == 1
    assert "error: training stopped: worker 0 of the cluster no longer responds" in log_of(two_workers, 0)
    assert "Traceback" not in log_of(two_workers, 0)
    for number in (0, 1):
        assert "resuming from step 20 " in log_of(two_workers, number)
    assert not [path for path in (two_workers / "tmp-1").iterdir() if "autograph" not in path.name]


def _wait_for(path: Path, *processes: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not come"
        assert all(process.poll() is None for process in processes), "a process has ended"
        time.sleep(0.1)


def test_a_batch_that_does_not_divide_is_refused(shards: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train.batch_size = 5 does not divide evenly among 2 replicas. It is"):
        run_small(tmp_path, shards, "train.strategy=mirrored", "train.batch_size=5")
