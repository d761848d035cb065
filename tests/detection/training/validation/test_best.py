"""The folder of the best checkpoint, whatever happens to it on the way."""

import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from detection.training.checkpoints.files import checkpoint_path, remove_checkpoint
from detection.training.validation import best as best_module
from detection.training.validation.best import BestCheckpoint
from schemas.errors import DataError
from tests.detection.training.validation.scripted import save_checkpoint


def _offer(best: BestCheckpoint, folder: Path, step: int, value: float) -> bool:
    save_checkpoint(folder, step)
    report: dict[str, Any] = {"iou_type": "bbox", "metrics": {"AP": 0.0, "AR100": value}}
    return best.offer(folder, step, report=report, metric="AR100")


def _stored_step(path: str) -> int:
    return int(tf.train.load_checkpoint(path).get_tensor("step/.ATTRIBUTES/VARIABLE_VALUE"))


def test_the_better_one_takes_the_place_of_the_other(tmp_path: Path) -> None:
    best = BestCheckpoint(tmp_path / "best")
    assert [best.step] == [None]
    answers = [_offer(best, tmp_path, step, value) for step, value in [(2, 0.1), (4, 0.3), (6, 0.3), (8, 0.2)]]
    assert answers == [True, True, False, False]
    assert best.step == 4
    assert best.figures == {"AP": 0.0, "AR100": 0.3}
    remove_checkpoint(tmp_path, 4)
    assert _stored_step(best.path) == 4
    assert json.loads((tmp_path / "best" / "metrics.json").read_text()) == {
        "step": 4,
        "iou_type": "bbox",
        "metrics": {"AP": 0.0, "AR100": 0.3},
    }
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == [
        "ckpt-4.data-00000-of-00001",
        "ckpt-4.index",
        "metrics.json",
    ]


def test_the_same_step_again_takes_its_own_place(tmp_path: Path) -> None:
    """As after a kill; on a device that is not deterministic the figure differs."""
    best = BestCheckpoint(tmp_path / "best")
    assert _offer(best, tmp_path, 4, 0.3)
    assert _offer(best, tmp_path, 4, 0.2)
    assert _offer(best, tmp_path, 6, 0.25)


def test_a_kill_between_link_and_metrics_leaves_the_earlier_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = BestCheckpoint(tmp_path / "best")
    _offer(best, tmp_path, 2, 0.1)

    def killed(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(best_module, "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            _offer(best, tmp_path, 4, 0.3)
    assert best.path == checkpoint_path(tmp_path / "best", 2)
    assert _offer(best, tmp_path, 4, 0.3)
    assert _stored_step(best.path) == 4
    assert not list((tmp_path / "best").glob("ckpt-2*"))


def test_a_checkpoint_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    best = BestCheckpoint(tmp_path / "best")
    with pytest.raises(FileNotFoundError):
        best.offer(tmp_path, 2, report={"metrics": {"AP": 1.0}}, metric="AP")
    assert best.step is None


def test_no_best_is_an_error_that_tells_the_way_out(tmp_path: Path) -> None:
    best = BestCheckpoint(tmp_path / "best")
    with pytest.raises(DataError, match=r"no best checkpoint is there any more.*export=final"):
        _ = best.path
    _offer(best, tmp_path, 2, 0.1)
    remove_checkpoint(tmp_path / "best", 2)
    with pytest.raises(DataError, match="no best checkpoint is there any more"):
        _ = best.path
