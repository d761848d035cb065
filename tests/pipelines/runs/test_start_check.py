"""Mistakes that `run` and `train` find before they read data: here data that is read fails the test."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import components.coco_example_gen.conversion
import pipeline_runner
import pipelines.runs.execute
from components.coco_example_gen.spans.dataset_files import categories_of, files_of
from components.history.records import Execution
from components.history.store import write_execution
from detection.datasets.demo_data import make_demo_data
from detection.training.build_step import state_from_config
from detection.training.resolve import assumed
from schemas.config.config_io import load_config
from tests.detection.training import tiny_detector
from tests.pipelines.recorded_root import local_root

DIGITS = [str(number) for number in range(10)]


class DataWasReadError(Exception):
    """The checks are over and let everything pass."""


@pytest.fixture(autouse=True)
def _data_is_not_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_detector.register()

    def fail(*_arguments: object, **_keywords: object) -> None:
        raise DataWasReadError

    monkeypatch.setattr(components.coco_example_gen.conversion, "convert", fail)
    monkeypatch.setattr(pipelines.runs.execute, "_run_pipeline", fail)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make_demo_data(folder, train_images=2, eval_images=1)
    return folder


def _save(folder: Path, *assignments: str, categories: list[str] | None = None, spoil: bool = False) -> str:
    """A checkpoint as a training of `model.name=tiny` with ten classes leaves it."""
    tiny_detector.register()
    folder.mkdir(exist_ok=True)
    config = assumed(load_config(None, ["model.name=tiny", *assignments]), replicas=1)
    state = state_from_config(config, [{}] * len(categories or DIGITS), strategy=tf.distribute.get_strategy())
    if spoil:
        assert state.ema is not None
        for weight in state.ema.weights.values():
            weight.assign(np.full(weight.shape, np.nan))
    manager = tf.train.CheckpointManager(state.checkpoint(), str(folder / "checkpoints"), max_to_keep=1)
    if categories is not None:
        entries = [{"id": number, "name": name} for number, name in enumerate(categories, 1)]
        (folder / "categories.json").write_text(json.dumps(entries))
    return str(manager.save(checkpoint_number=5))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("saved")
    (folder / "damaged.index").write_bytes(b"no checkpoint")
    return {
        "GOOD": _save(folder / "good"),
        "WIDER": _save(folder / "wider", "model.overrides={filters: 16}"),
        "OTHERS": _save(folder / "others", categories=[*DIGITS[:-1], "ten"]),
        "NAN": _save(folder / "nan", spoil=True),
        "DAMAGED": str(folder / "damaged"),
        "NOWHERE": str(folder / "nowhere"),
    }


def _call(command: str, data: Path, folder: Path, *assignments: str) -> int:
    place = ["--output", str(folder)] if command == "train" else ["--set", f"run.root={folder}"]
    sets = [part for setting in ("model.name=tiny", *assignments) for part in ("--set", setting)]
    return pipeline_runner.main([command, "--data", str(data), *place, *sets])


MISTAKES = {
    "a detector that does not exist": (["model.name=tinny"], 2, "no such detector. The nearest is tiny"),
    "an override that does not exist": (["model.overrides={filter: 3}"], 2, "The nearest is filters"),
    "levels that do not fit": (
        ["model.name=efficientdet-nano", "model.overrides={max_level: 4}"],
        2,
        "include its deepest level, 5",
    ),
    "frozen by no name": (["train.freeze=[bone]"], 2, "train.freeze: 'bone' matches no variable"),
    "trained by no name": (["train.trainable=[bone]"], 2, "train.trainable: 'bone' matches no variable"),
    "nothing left": (["train.freeze=['.*']"], 2, "leave no variable to train"),
    "decay left out by no name": (
        ["train.optimizer.weight_decay=1e-4", "train.optimizer.weight_decay_exclude=[bone]"],
        2,
        "train.optimizer.weight_decay_exclude: 'bone' matches no variable",
    ),
    "crowds that cannot be left out": (["train.crowds=ignore"], 2, "tiny does not support ignored crowds"),
    "masks that validation would need": (
        ["train.validation={every: 5, metric: segm/AP}"],
        2,
        "train.validation.metric requests segm: tiny has no masks. Remove it, or choose a Mask R-CNN.",
    ),
    "keypoints that the evaluation would need": (
        ["evaluate.iou_types=[keypoints]"],
        2,
        "evaluate.iou_types requests keypoints: tiny has no keypoints. Remove it, or choose a CenterNet with",
    ),
    "a batch beyond the memory": (["train.batch_size=1000000000"], 2, "a training step needs at least"),
    "no cluster": (["train.strategy=multi_worker"], 2, "neither TF_CONFIG nor CLUSTER_SPEC names the machines"),
    "no checkpoint": (["train.init.checkpoint=NOWHERE"], 1, "nowhere: no such file or folder"),
    "a damaged checkpoint": (["train.init.checkpoint=DAMAGED"], 1, "cannot be read as a checkpoint"),
    "a diverged checkpoint": (["train.init.checkpoint=NAN"], 1, "is not finite"),
    "another shape": (["train.init.checkpoint=WIDER"], 1, "12 have another shape"),
    "other categories": (
        ["train.init={checkpoint: OTHERS, fine_tune_type: full}"],
        1,
        "full requires equal categories; only in the data set: 9; only in the checkpoint: ten",
    ),
    "skipped by no name": (["train.init={checkpoint: GOOD, skip: [bone]}"], 2, "train.init.skip: 'bone' matches no"),
    "renamed by no name": (["train.init={checkpoint: GOOD, rename: [[x, y]]}"], 2, "'x' changes no name"),
    "no EMA weights": (
        ["train.init={checkpoint: PLAIN, weights: averaged}"],
        1,
        "has no EMA weights. Set train.init.weights=raw or auto",
    ),
    "weights of no backbone": (["model.backbone_weights=imagenet"], 2, "tiny has no ImageNet weights"),
    "no weights file": (
        ["model.name=efficientdet-d0", "model.backbone_weights=NOWHERE"],
        1,
        "nowhere: no such weights file",
    ),
}


OF_EVALUATION = ("keypoints that the evaluation would need",)
BOTH_COMMANDS = ("frozen by no name", "no cluster", "no checkpoint", "another shape", "other categories")


@pytest.mark.parametrize(
    ("command", "mistake"),
    [
        *(("train", mistake) for mistake in MISTAKES if mistake not in OF_EVALUATION),
        *(("run", mistake) for mistake in (*BOTH_COMMANDS, *OF_EVALUATION)),
    ],
)
def test_mistakes_are_told_before_data_is_read(
    command: str, mistake: str, *, data: Path, saved: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assignments, code, message = MISTAKES[mistake]
    if "PLAIN" in assignments[0]:
        saved = saved | {"PLAIN": _save(tmp_path / "plain", "train.ema.enabled=false")}
    for name, path in saved.items():
        assignments = [setting.replace(name, path) for setting in assignments]
    assert _call(command, data, tmp_path / "out", *assignments) == code
    shown = capfd.readouterr().err
    assert message in shown
    assert "Traceback" not in shown


def test_a_checkpoint_of_another_detector_to_go_on_from(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _save(tmp_path)
    with pytest.raises(DataWasReadError):
        _call("train", data, tmp_path, "train.init.checkpoint=its/source/is/gone")
    assert _call("train", data, tmp_path, "model.overrides={filters: 16}") == 1
    assert "ckpt-5: does not fit this configuration" in capfd.readouterr().err


@pytest.mark.parametrize("command", ["run", "train"])
@pytest.mark.parametrize(
    "assignments",
    [
        [],
        ["train.init={checkpoint: GOOD, fine_tune_type: full}"],
        ["train.init.checkpoint=OTHERS"],
        ["train.init={checkpoint: GOOD, skip: [tiny/head]}"],
    ],
)
def test_what_is_right_passes(
    command: str, assignments: list[str], data: Path, saved: dict[str, str], *, tmp_path: Path
) -> None:
    for name, path in saved.items():
        assignments = [setting.replace(name, path) for setting in assignments]
    with pytest.raises(DataWasReadError):
        _call(command, data, tmp_path, *assignments)


def test_weights_that_a_later_run_may_not_need_are_not_asked_for(
    data: Path, saved: dict[str, str], tmp_path: Path
) -> None:
    """A blessed model goes before the checkpoint, once there may be one."""
    assignments = f"train.init={{checkpoint: {saved['WIDER']}, from_previous_model: true}}"
    assert _call("run", data, tmp_path, assignments) == 1
    write_execution(str(tmp_path), Execution("DetectionTrainer", "done"), started=datetime.now(UTC))
    with pytest.raises(DataWasReadError):
        _call("run", data, tmp_path, assignments)


@pytest.mark.parametrize(("command", "assignments"), [("run", ()), ("train", ("train.validation.every=1",))])
def test_more_categories_than_an_evaluation_has_memory_for(
    command: str, assignments: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The evaluator would refuse them, after the training."""
    categories = [{"id": number, "name": f"kind {number}"} for number in range(6000)]
    (tmp_path / "data" / "annotations").mkdir(parents=True)
    for name in ("train", "val"):
        path = tmp_path / "data" / "annotations" / f"instances_{name}.json"
        path.write_text(json.dumps({"images": [], "annotations": [], "categories": categories}))
    assert _call(command, tmp_path / "data", tmp_path / "out", *assignments) == 1
    assert "6000 categories: an analysis (report, comparison) would need about" in capfd.readouterr().err


def test_a_root_that_tfx_would_take_for_a_pattern_is_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _call("run", data, tmp_path / "a[1]*?") == 2
    assert "takes paths with one of [ ] * ? \\ for patterns" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_known_categories_the_rest_is_checked(
    shared_data: Path, saved: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    records = shared_data / "tfrecords" / "raccoon" / "test.record"
    source = [f"data.splits={{train: {{records: {records}}}}}", "model.name=tiny"]
    assert categories_of(files_of(load_config(None, source).data), load_config(None, source).data) is None

    def train(*assignments: str) -> int:
        sets = [part for setting in (*source, *assignments) for part in ("--set", setting)]
        return pipeline_runner.main(["train", "--output", str(tmp_path / "out"), *sets])

    with pytest.raises(DataWasReadError):
        train(f"train.init={{checkpoint: {saved['OTHERS']}, fine_tune_type: full}}")
    assert train(f"train.init={{checkpoint: {saved['WIDER']}, fine_tune_type: full}}") == 1
    assert "12 have another shape" in capfd.readouterr().err
    assert train("data.label_map=nowhere.pbtxt") == 1
    assert "nowhere.pbtxt" in capfd.readouterr().err


def _categories(source: Path) -> Any:
    config = load_config(None, [f"data.root={source}"])
    return categories_of(files_of(config.data), config.data)


@pytest.mark.parametrize("name", ["coco2017_ccby", "raccoon", "dali_masks"])
def test_categories_of_real_files(shared_data: Path, name: str) -> None:
    expected = json.loads((shared_data / name / "instances_train.json").read_text())["categories"]
    keypoints = shared_data / name / "person_keypoints_train.json"
    if keypoints.exists():
        (person,) = json.loads(keypoints.read_text())["categories"]
        expected = [person if category["id"] == person["id"] else category for category in expected]
    assert _categories(shared_data / name) == expected


def test_renumbered_categories_are_told_before_the_data_are_read(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = local_root(tmp_path)
    model = Path(root) / "artifacts/model/2/Format-Serving/assets.extra"
    names = ["one", "zero", *DIGITS[2:]]
    (model / "categories.json").write_text(json.dumps([{"id": at, "name": name} for at, name in enumerate(names)]))
    assert _call("run", data, Path(root)) == 1
    written = " ".join(capfd.readouterr().err.split())
    assert "category ids mean other things than to the last blessed model: " in written
    with pytest.raises(DataWasReadError):
        _call("run", data, Path(root), "evaluate.accept_renumbered_categories=true")
