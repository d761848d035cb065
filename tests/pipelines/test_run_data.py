"""Data, folders and detectors that a run of the whole pipeline refuses."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.artifacts import SUMMARY_JSON
from tests.pipelines.small_run import run_pipeline

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


def _outside(data: Path) -> None:
    path = data / "annotations" / "instances_train.json"
    tree = json.loads(path.read_text())
    tree["annotations"][3].update(id=777, bbox=[100.0, 100.0, 60.0, 10.0])
    path.write_text(json.dumps(tree))


@pytest.mark.parametrize(
    ("spoil", "parts"),
    [
        (lambda data: (data / "annotations" / "instances_train.json").unlink(), ["'train'", "instances_val.json"]),
        (_outside, ["777", "outside", "data.on_fault=drop"]),
    ],
    ids=["no annotations", "box outside"],
)
def test_bad_data_is_one_message_and_leaves_nothing(
    spoil: Callable[[Path], object], parts: list[str], digits: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, root = tmp_path / "data", tmp_path / "run"
    shutil.copytree(digits, data)
    spoil(data)
    assert run_pipeline(root, data) == 1
    captured = capfd.readouterr()
    message = captured.err[captured.err.index("error: ") :]
    assert "Traceback" not in captured.err
    for part in parts:
        assert part in message
    assert not (root / SUMMARY_JSON).exists()
    assert not list(root.glob("artifacts/CocoExampleGen/examples/*/*"))


@pytest.mark.parametrize("key", ["run.root", "push.directory"])
def test_a_folder_that_cannot_be_written_is_named(
    key: str, digits: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assignments = (f"{key}={tmp_path / 'file' / 'below'}",)
    assert run_pipeline(tmp_path / "run", digits, assignments=assignments) == 1
    error = capfd.readouterr().err
    assert "Traceback" not in error
    assert str(tmp_path / "file") in error


@pytest.mark.parametrize("key", ["model.name=efficientdet-d00", "model.overrides={fpn_filter: 3}"])
def test_a_detector_that_does_not_exist_is_refused_before_anything_runs(
    key: str, digits: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_pipeline(tmp_path / "run", digits, assignments=(key,)) == 2
    assert "The nearest is" in capfd.readouterr().err
    assert not (tmp_path / "run" / "artifacts").exists()
