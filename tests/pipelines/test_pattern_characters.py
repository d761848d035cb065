"""Folders whose names have characters of glob patterns: TensorFlow and Beam take paths for patterns."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import pipeline_runner
from detection.storage.literal_paths import literal_path
from detection.training.checkpoints.files import checkpoint_steps
from detection.weights.weight_source import WeightSource
from pipelines.demo_data import make_demo_data
from tests.detection.training import tiny_detector

NAME = "a[1]*?\\b"
ASSIGNMENTS = (
    "model.name=tiny",
    "train.steps=4",
    "train.checkpoint_every=1",
    "train.keep_checkpoints=2",
    "train.batch_size=2",
    "train.validation={every: 2, split: eval}",
)


def _call(command: str, *flags: str | Path, assignments: tuple[str, ...] = ()) -> int:
    sets = [part for setting in assignments for part in ("--set", setting)]
    return pipeline_runner.main([command, *map(str, flags), *sets])


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained detector (`out`) and its data (`data`)."""
    tiny_detector.register()
    root = tmp_path_factory.mktemp("runs") / NAME
    make_demo_data(root / "data", train_images=6, eval_images=3)
    assert _call("train", "--data", root / "data", "--output", root / "out", assignments=ASSIGNMENTS) == 0
    return root


@pytest.mark.slow
def test_training_removes_old_checkpoints_and_goes_on(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / NAME
    shutil.copytree(folder / "out", out)
    assert checkpoint_steps(out / "checkpoints") == [3, 4]
    assignments = (*ASSIGNMENTS, "train.steps=5")
    assert _call("train", "--data", folder / "data", "--output", out, assignments=assignments) == 0
    assert checkpoint_steps(out / "checkpoints") == [4, 5]
    assert "resuming from step 4" in (out / "run.log").read_text()
    assert not list(tmp_path.glob("*.*")), "nothing is written elsewhere"


@pytest.mark.slow
@pytest.mark.parametrize("source", ["out", "out/checkpoints", "out/checkpoints/ckpt-3", "out/saved_model"])
def test_weights_to_start_from(folder: Path, source: str) -> None:
    weights = WeightSource(folder / source)
    assert str(weights.prefix).startswith(str(folder))
    assert len(weights.shapes) == 14
    assert all(np.isfinite(weights.read(name)).all() for name in weights.shapes)


@pytest.mark.slow
def test_following_evaluating_and_predicting_agree(folder: Path, tmp_path: Path) -> None:
    """All metrics are those of the same SavedModel and records in a folder of a plain name."""
    model, ground_truth, images = (
        folder / "out/saved_model",
        folder / "data/annotations/instances_val.json",
        folder / "data/val",
    )
    flags = ("--images", images, "--ground-truth", ground_truth)
    assert _call("predict", "--model", model, *flags, "--output", folder / "detections.json") == 0
    plain = tmp_path / "plain"
    shutil.copytree(model, plain)
    assert _call("predict", "--model", plain, *flags, "--output", tmp_path / "detections.json") == 0
    assert _read(folder / "detections.json") == _read(tmp_path / "detections.json") != []

    assert _call("to-examples", "--data", folder / "data", "--output", folder / "examples") == 0
    assert _call("to-coco", "--examples", folder / "examples", "--split", "eval", "--output", folder / "back.json") == 0
    assert _read(folder / "back.json")["annotations"] == _read(ground_truth)["annotations"]
    pattern = folder / "examples/Split-eval/*"
    assert _call("to-coco", "--examples", pattern, "--output", folder / "pattern.json") == 0
    assert _read(folder / "pattern.json")["annotations"] == _read(ground_truth)["annotations"]

    checkpoints = folder / "out/checkpoints"
    assert _call("follow", "--checkpoints", checkpoints, "--data", folder / "examples", "--timeout", "0") == 0
    assert _call("evaluate", "--model", model, "--examples", folder / "examples", "--output", folder / "eval") == 0
    evaluated = _read(folder / "eval/metrics.json")["stats"]
    last = _read(folder / "out/follow/history.json")[-1]
    assert last["step"] == 4
    np.testing.assert_allclose(list(last["metrics"].values()), evaluated, atol=1e-12)
    assert _read(folder / "eval/detections.json") == _read(tmp_path / "detections.json")


def test_a_literal_path_is_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert literal_path("plain/folder") == "plain/folder"
    inner = tmp_path / "x[1]" / "plain" / "y?" / "ckpts"
    inner.mkdir(parents=True)
    tf.train.Checkpoint(x=tf.Variable(3.0)).write(str(inner / "ckpt-1"))
    with pytest.raises(tf.errors.NotFoundError):
        tf.train.load_checkpoint(str(inner / "ckpt-1"))
    monkeypatch.chdir(tmp_path)
    for path in (inner / "ckpt-1", "x[1]/plain/y?/ckpts/ckpt-1"):
        reader = tf.train.load_checkpoint(literal_path(path))
        assert reader.get_tensor("x/.ATTRIBUTES/VARIABLE_VALUE") == 3.0
    assert literal_path(inner) == literal_path(inner)
    assert Path(literal_path(tmp_path / "x[1]")).resolve() == tmp_path / "x[1]"
