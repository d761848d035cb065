"""Folders whose names have characters of glob patterns: for data; refused for checkpoints and SavedModels."""

import json
from pathlib import Path

import pytest

import pipeline_runner
from detection.datasets.demo_data import make_demo_data
from detection.storage.paths import literal_path
from detection.training.checkpoints.files import find_damage
from detection.weights.weight_source import WeightSource
from schemas.errors import ConfigError
from tests.detection.fake_detector import save_fake_detector

NAME = "a[1]*?\\b"
REFUSED = r"takes paths with one of \[ \] \* \? \\ for patterns"


def _call(command: str, *flags: str | Path) -> int:
    return pipeline_runner.main([command, *map(str, flags)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / NAME
    make_demo_data(root / "data", train_images=2, eval_images=2)
    return root


def test_data_may_be_there(folder: Path) -> None:
    ground_truth = json.loads((folder / "data/annotations/instances_val.json").read_text())
    assert _call("to-examples", "--data", folder / "data", "--output", folder / "examples") == 0
    assert _call("to-coco", "--examples", folder / "examples", "--split", "eval", "--output", folder / "back.json") == 0
    pattern = folder / "examples/Split-eval/*"
    assert _call("to-coco", "--examples", pattern, "--output", folder / "pattern.json") == 0
    for name in ("back.json", "pattern.json"):
        assert json.loads((folder / name).read_text())["annotations"] == ground_truth["annotations"]


def test_a_model_may_not(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = save_fake_detector(tmp_path / "model")
    model.rename(folder / "model")
    with pytest.raises(ConfigError, match=REFUSED):
        WeightSource(folder / "model")
    flags = ("--images", folder / "data/val", "--output", tmp_path / "detections.json")
    assert _call("predict", "--model", folder / "model", *flags) == 2
    assert "for patterns, and would not find its files there. Choose another folder" in capfd.readouterr().err


def test_a_training_may_not(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert _call("train", "--data", folder / "data", "--output", folder / "out") == 2
    assert f"--output {folder}/out: TensorFlow takes paths" in capfd.readouterr().err
    assert not (folder / "out").exists()
    with pytest.raises(ConfigError, match=REFUSED):
        find_damage(folder / "out/ckpt-1")


@pytest.mark.parametrize("character", "[]*?\\")
def test_each_character_is_refused_by_its_key(character: str) -> None:
    with pytest.raises(ConfigError, match=rf"^run\.root x.y: TensorFlow {REFUSED}"):
        literal_path(f"x{character}y", "run.root")
    assert literal_path("plain/folder") == "plain/folder"
