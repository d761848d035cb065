"""The trainer as TFX calls it; what it trains is tested in tests/detection/training."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from detection.storage.atomic import write_json, write_text
from schemas.artifacts import (
    CHECKPOINTS,
    CONFIG_YAML,
    DATASET_JSON,
    INIT_REPORT_JSON,
    LABELS_JSON,
    LOGS,
    SAVED_MODEL,
    TRAIN_SPLIT,
    split_dir,
)
from schemas.config.config import Config
from schemas.config.config_io import load_config, to_yaml
from schemas.errors import DataError
from tests.detection.synthetic import rectangles, write_shards
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_run import CATEGORIES, SMALL, tiny_config

pytestmark = pytest.mark.slow


def _publish_config(working: Path, model: str, model_run: str, name: str, series: str) -> None:
    write_text(Path(model, CONFIG_YAML), "train: {}")


class _Call:
    """Arguments of one execution, its files below a folder."""

    def __init__(self, folder: Path, config: Config) -> None:
        from tfx.types import artifact_utils, standard_artifacts

        from components.detection_trainer.identity import trainer_properties

        self.root = folder / "run"
        self.examples = standard_artifacts.Examples()
        self.examples.uri = str(folder / "examples")
        self.examples.split_names = artifact_utils.encode_split_names([TRAIN_SPLIT])
        self.outputs = {"model": standard_artifacts.Model(), "model_run": standard_artifacts.ModelRun()}
        for key, artifact in self.outputs.items():
            artifact.uri = str(folder / key)
            Path(artifact.uri).mkdir(parents=True)
        self.properties: dict[str, str] = {"run_root": str(self.root), **trainer_properties(config, TRAIN_SPLIT)}
        shards = folder / "examples" / split_dir(TRAIN_SPLIT)
        shards.mkdir(parents=True)
        write_shards(shards, rectangles(6))
        write_json(folder / "examples" / DATASET_JSON, {"categories": CATEGORIES})
        write_text(self.root / CONFIG_YAML, to_yaml(config))

    def do(self) -> None:
        from components.detection_trainer.executor import Executor

        outputs: dict[str, list[Any]] = {key: [artifact] for key, artifact in self.outputs.items()}
        Executor().Do({"examples": [self.examples]}, outputs, self.properties)


def test_a_failed_execution_goes_on_and_publishes_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from components.detection_trainer import executor
    from components.detection_trainer.working_folder import remove_served

    tiny_detector.register()
    call = _Call(tmp_path, tiny_config(*SMALL, "train.steps=2", "run.name=mine"))

    def full_disk(*paths: Path) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(executor, "_publish", full_disk)
        with pytest.raises(OSError, match="no space left"):
            call.do()
    assert not list((tmp_path / "model").iterdir())
    with caplog.at_level(logging.INFO, logger="cocoflow.trainer"):
        call.do()
    assert "resuming from step 2" in caplog.text
    assert (tmp_path / "model" / "Format-Serving" / "saved_model.pb").is_file()
    assert load_config(tmp_path / "model" / CONFIG_YAML).run.name == "mine"
    assert (tmp_path / "model_run" / CHECKPOINTS / "ckpt-2.index").is_file()
    assert list((tmp_path / "model_run" / LOGS).glob("events.*"))
    remove_served(call.root / "training")
    assert not list((call.root / "training").iterdir())
    assert json.loads((tmp_path / "model_run" / LABELS_JSON).read_text()) == CATEGORIES
    assert not (tmp_path / "model" / INIT_REPORT_JSON).exists()


def test_a_longer_training_goes_on_from_before_the_decay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only where nothing but the length differs; whoever trains it again goes on from the same one."""
    from components.detection_trainer import executor

    tiny_detector.register()
    finished: list[SimpleNamespace] = []
    monkeypatch.setattr(executor, "History", lambda root: SimpleNamespace(models=dict(enumerate(finished))))

    def trained(steps: int | str, *others: str) -> str:
        config = tiny_config(*SMALL, "train.schedule.hold_steps=auto", f"train.steps={steps}", *others)
        call = _Call(tmp_path / f"{steps} {'.'.join(others)} {len(finished)}", config)
        call.properties["run_root"] = str(tmp_path / "run")
        call.do()
        identity: str = call.outputs["model"].get_string_custom_property("identity")
        finished.append(SimpleNamespace(model_run=call.outputs["model_run"].uri, identity=identity))
        return identity

    shorter = trained(10)
    with caplog.at_level(logging.INFO, logger="cocoflow.trainer"):
        longer = trained(20)
    assert "going on from step 7, before the learning rate decayed: 20 steps instead of 10" in caplog.text
    monkeypatch.setattr(executor, "train", lambda config, **arguments: None)
    monkeypatch.setattr(executor, "_publish", _publish_config)
    del finished[1:]
    assert trained(20, "train.log_every=3") == longer
    del finished[1:]
    other_seed, fewer = trained(20, "train.seed=1"), trained(9)
    finished.clear()
    assert len({shorter, longer, other_seed, fewer, trained(20), trained(9)}) == 5, "the last goes on from none, too"


def test_a_budget_goes_on_where_it_means_more_steps() -> None:
    from components.detection_trainer.executor import _steps_after

    shorter = tiny_config("train.batch_size=8", "train.steps=10")  # of 64 x 64 pixels
    for assignments, steps in ((["train.budget=0.1"], 58), (["train.steps=20"], 20)):
        assert _steps_after(load_config(None, assignments), shorter) == steps


def test_what_a_warm_start_took_is_told_beside_the_configuration(tmp_path: Path) -> None:
    from components.detection_trainer.executor import _publish

    working = tmp_path / "working"
    for folder in (SAVED_MODEL, CHECKPOINTS, LOGS):
        (working / folder).mkdir(parents=True)
    for name in (CONFIG_YAML, LABELS_JSON, INIT_REPORT_JSON):
        (working / name).write_text(name)
    _publish(working, str(tmp_path / "model"), str(tmp_path / "model_run"), "0123", "4567")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "Format-Serving",
        CONFIG_YAML,
        INIT_REPORT_JSON,
    ]


def test_other_sections_do_not_train_anew() -> None:
    from components.detection_trainer.identity import REUSE_RULE, trainer_properties

    def properties(*assignments: str) -> dict[str, str]:
        return dict(REUSE_RULE.deciding(trainer_properties(tiny_config(*assignments), TRAIN_SPLIT)))

    assert properties() == properties("evaluate.thresholds.absolute={AP: 0.9}", "push.directory=/elsewhere")
    assert properties() == properties("train.log_every=7", "train.checkpoint_every=1", "train.keep_checkpoints=9")
    assert properties() == properties("train.summaries.images_every=0", "train.profile={start_step: 1, steps: 2}")
    assert properties() == properties("evaluate.split=night")
    assert properties() != properties("train.seed=1")
    validated = "train.validation.every=2"
    assert properties(validated) != properties(validated, "evaluate.split=night")
    assert json.dumps(properties())


def test_weights_count_as_they_are_named(tmp_path: Path) -> None:
    """What can be fetched, and from where, does not train anew; the content of a file that the user names does."""
    from components.detection_trainer.identity import REUSE_RULE, trainer_properties

    def properties(*assignments: str) -> dict[str, str]:
        return dict(REUSE_RULE.deciding(trainer_properties(tiny_config(*assignments), TRAIN_SPLIT)))

    assert properties() == properties("model.fetch_weights=false", "model.weights_cache=gs://elsewhere/weights")
    named = [properties(f"model.weights={weights}")["settings"] for weights in ("auto", "coco", "imagenet", "none")]
    assert len(set(named)) == 4
    (tmp_path / "b0.h5").write_bytes(b"weights")
    file = f"model.weights={tmp_path / 'b0.h5'}"
    before = properties(file)
    (tmp_path / "b0.h5").write_bytes(b"others")
    after = properties(file)
    assert before["settings"] == after["settings"]
    assert before["first_weights"] != after["first_weights"]


def test_the_working_folder_follows_from_what_the_examples_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from components.detection_trainer import executor

    seen: list[Path] = []
    monkeypatch.setattr(executor, "train", lambda config, **arguments: seen.append(arguments["output"]))
    monkeypatch.setattr(executor, "_publish", _publish_config)

    def folder_of(call: _Call) -> str:
        call.do()
        return seen[-1].name

    def changed(name: str) -> _Call:
        call = _Call(tmp_path / name, tiny_config())
        call.examples.id = 77
        return call

    first = folder_of(changed("first"))
    assert folder_of(changed("other place")) == first
    other = changed("other records")
    write_shards(Path(other.examples.uri, split_dir(TRAIN_SPLIT)), rectangles(6, seed=1))
    assert folder_of(other) != first
    renamed = changed("other categories")
    write_json(Path(renamed.examples.uri, DATASET_JSON), {"categories": [{**CATEGORIES[0], "name": "x"}]})
    assert folder_of(renamed) != first
    assert folder_of(_Call(tmp_path / "config", tiny_config("train.seed=1"))) != first
    assert folder_of(_Call(tmp_path / "watched", tiny_config("train.log_every=77"))) == first


def test_the_newest_span_is_validated_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tfx.types import artifact_utils

    from components.detection_trainer import executor

    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(executor, "train", lambda config, **arguments: seen.append(arguments))
    monkeypatch.setattr(executor, "_publish", _publish_config)
    call = _Call(tmp_path, tiny_config("train.validation={every: 2, split: eval}"))
    call.examples.set_int_custom_property("span", 4)
    outputs: dict[str, list[Any]] = {key: [artifact] for key, artifact in call.outputs.items()}
    spans = [_another_span(call, 3, CATEGORIES), call.examples]
    with pytest.raises(DataError, match="no split 'eval', only train"):
        executor.Executor().Do({"examples": spans}, outputs, call.properties)
    call.examples.split_names = artifact_utils.encode_split_names([TRAIN_SPLIT, "eval"])
    folder = Path(call.examples.uri, split_dir("eval"))
    folder.mkdir()
    shards = write_shards(folder, rectangles(2))
    executor.Executor().Do({"examples": spans}, outputs, call.properties)
    assert (seen[-1]["validation_shards"], seen[-1]["curve_shards"]()) == (shards, [])
    assert len(seen[-1]["shards"]) == 4


def test_the_split_that_judges_is_at_hand_to_show_how_the_training_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfx.types import artifact_utils

    from components.detection_trainer import executor

    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(executor, "train", lambda config, **arguments: seen.append(arguments))
    monkeypatch.setattr(executor, "_publish", _publish_config)
    call = _Call(tmp_path, tiny_config("train.validation.every=auto", "train.steps=300"))
    call.do()
    call.examples.split_names = artifact_utils.encode_split_names([TRAIN_SPLIT, "eval"])
    folder = Path(call.examples.uri, split_dir("eval"))
    folder.mkdir()
    for count in (2, 3):
        shards = write_shards(folder, rectangles(count))
        call.do()
    assert [arguments["curve_shards"]() for arguments in seen] == [[], shards, shards]
    assert len({arguments["output"] for arguments in seen}) == 1, "it does not decide what is learnt"
    assert load_config(None, ["train.validation.every=auto", "train.steps=299"]).curve_split is None, "a try"


def test_records_that_are_not_whole_are_refused(tmp_path: Path) -> None:
    call = _Call(tmp_path, tiny_config())
    shard = min((tmp_path / "examples" / split_dir(TRAIN_SPLIT)).iterdir())
    shard.write_bytes(shard.read_bytes()[:-3])
    with pytest.raises(DataError, match="not a complete uncompressed TFRecord"):
        call.do()


def test_a_missing_split_is_named(tmp_path: Path) -> None:
    call = _Call(tmp_path, tiny_config())
    call.properties["split"] = "night"
    with pytest.raises(DataError, match="no split 'night', only train"):
        call.do()


def _another_span(call: _Call, span: int, categories: list[dict[str, Any]]) -> Any:
    from tfx.types import artifact_utils, standard_artifacts

    examples = standard_artifacts.Examples()
    examples.uri = str(Path(call.examples.uri).with_name(f"span-{span}"))
    examples.split_names = artifact_utils.encode_split_names([TRAIN_SPLIT])
    examples.set_int_custom_property("span", span)
    shards = Path(examples.uri) / split_dir(TRAIN_SPLIT)
    shards.mkdir(parents=True)
    write_shards(shards, rectangles(3))
    write_json(Path(examples.uri, DATASET_JSON), {"categories": categories})
    return examples


def test_a_base_model_is_started_from_and_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tfx.types import standard_artifacts

    from components.detection_trainer import executor

    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(executor, "train", lambda config, **arguments: seen.append(arguments))
    monkeypatch.setattr(executor, "_publish", _publish_config)
    call = _Call(tmp_path, tiny_config("train.init.from_previous_model=true"))
    outputs: dict[str, list[Any]] = {key: [artifact] for key, artifact in call.outputs.items()}

    def trained(*bases: tuple[str, str]) -> dict[str, Any]:
        models = [standard_artifacts.Model() for _ in bases]
        for (identity, uri), model in zip(bases, models, strict=True):
            model.uri = uri
            model.set_string_custom_property("identity", identity)
        executor.Executor().Do({"examples": [call.examples], "base_model": models}, outputs, call.properties)
        told = [outputs["model"][0].get_string_custom_property(name) for name in ("training", "identity")]
        return {**seen[-1], "mirror": None, "told": told}

    afresh, third, eighth = trained(), trained(("3", "/models/3")), trained(("8", "/models/8"))
    assert [one["base_model"] for one in (afresh, third, eighth)] == [
        None,
        "/models/3/Format-Serving",
        "/models/8/Format-Serving",
    ]
    assert len({one["output"] for one in (afresh, third, eighth)}) == 3
    trainings, identities = zip(*(one["told"] for one in (afresh, third, eighth)), strict=True)
    assert len(set(trainings)) == 1
    assert list(identities) == [one["output"].name for one in (afresh, third, eighth)]
    elsewhere = trained(("3", "/copy/of/3"))
    assert elsewhere["output"] == third["output"], "the same base model"


def test_the_records_of_several_spans_are_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from components.detection_trainer import executor

    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(executor, "train", lambda config, **arguments: seen.append(arguments))
    monkeypatch.setattr(executor, "_publish", _publish_config)

    def trained(spans: list[Any]) -> dict[str, Any]:
        executor.Executor().Do({"examples": spans}, outputs, call.properties)
        return seen[-1]

    call = _Call(tmp_path, tiny_config())
    outputs: dict[str, list[Any]] = {key: [artifact] for key, artifact in call.outputs.items()}
    call.examples.set_int_custom_property("span", 4)
    older = _another_span(call, 3, [{**category, "supercategory": "x"} for category in reversed(CATEGORIES)])
    both = trained([older, call.examples])
    files = [sorted(Path(folder.uri, split_dir(TRAIN_SPLIT)).iterdir()) for folder in (call.examples, older)]
    assert both["shards"] == [str(path) for path in files[0] + files[1]]
    assert both["categories"] == CATEGORIES, "the newest span's"
    assert trained([call.examples, older])["output"] == both["output"]
    alone = trained([call.examples])
    assert alone["shards"] == [str(path) for path in files[0]]
    assert alone["output"] != both["output"]


def test_spans_of_different_categories_are_refused(tmp_path: Path) -> None:
    from components.detection_trainer.executor import Executor

    call = _Call(tmp_path, tiny_config())
    call.examples.set_int_custom_property("span", 12)
    older = _another_span(call, 11, [*CATEGORIES[:-1], {**CATEGORIES[-1], "name": "lorry"}])
    outputs: dict[str, list[Any]] = {key: [artifact] for key, artifact in call.outputs.items()}
    with pytest.raises(DataError, match=r"span 12 \(.*examples\) and span 11 \(.*span-11\) .*'lorry'.*data\.window=N"):
        Executor().Do({"examples": [older, call.examples]}, outputs, call.properties)
    assert not list((tmp_path / "model").iterdir())
