"""Several machines validate: the chief evaluates, all stop at the same step."""

from pathlib import Path

import pytest

from detection.training.validation.history import read_history
from schemas.artifacts import CHECKPOINTS, HISTORY_JSON, SAVED_MODEL, VALIDATION
from tests.detection.training.cluster_run import log_of, start_workers
from tests.detection.training.evaluation_records import write_coco_shards


@pytest.mark.extended
def test_two_machines_stop_early_together(tmp_path: Path) -> None:
    """A rise of 1 there never is, so that the second evaluation ends the run."""
    shards, _ = write_coco_shards(tmp_path / "records", 10)
    keys = ["train.validation={every: 5, patience: 1, min_delta: 1.0, fraction: 0.3}"]
    for number, worker in enumerate(start_workers(tmp_path, shards, keys, keys)):
        assert worker.wait(500) == 0, log_of(tmp_path, number)[-3000:]
    output = tmp_path / "run"
    assert [entry.step for entry in read_history(output / VALIDATION / HISTORY_JSON)] == [5, 10]
    assert sorted(path.name for path in (output / CHECKPOINTS).glob("*.index")) == ["ckpt-10.index", "ckpt-5.index"]
    assert (output / SAVED_MODEL).is_dir()
    assert "training stops early" in log_of(tmp_path, 0)
    assert "on validation" not in log_of(tmp_path, 1)
    kept = "of 10 training images are kept to choose the checkpoint"
    assert all(kept in log_of(tmp_path, number) for number in range(2))
