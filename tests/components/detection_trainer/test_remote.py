"""The parameters of the trainer, and its inputs; what it trains is tested in tests/detection/training."""

from pathlib import Path
from typing import Any

import pytest

from detection.storage.atomic import write_json, write_text
from schemas.artifacts import CONFIG_YAML, DATASET_JSON, TRAIN_SPLIT, split_dir
from schemas.errors import ConfigError
from tests.detection.synthetic import rectangles, write_shards
from tests.detection.training.tiny_run import CATEGORIES, tiny_config

pytestmark = pytest.mark.slow


def _properties(*assignments: str) -> dict[str, Any]:
    from components.detection_trainer.identity import trainer_properties

    return trainer_properties(tiny_config(*assignments), TRAIN_SPLIT)


def test_its_properties_hold_all_that_matters_to_a_training() -> None:
    from components.detection_trainer.identity import REUSE_RULE, training_of

    weights = ("model.fetch_weights=false", "model.weights_cache=gs://bucket/weights")
    assignments = ("train.seed=3", "train.log_every=7", "run.name=mine", "data.window=2", *weights)
    config, properties = training_of(_properties(*assignments))
    assert config == tiny_config(*assignments)
    assert properties == REUSE_RULE.deciding(_properties(*assignments))
    validated = ("train.validation.every=2", "evaluate.batch_size=3", "evaluate.split=night")
    config, properties = training_of(_properties(*validated))
    assert config == tiny_config(*validated)
    assert properties["validation_split"] == "eval", "night judges"
    _, properties = training_of(_properties("train.validation.every=2"))
    assert properties["validation_split"] == "", "a part of the training images"


def test_what_does_not_matter_does_not_train_anew() -> None:
    others = ("push.directory=/elsewhere", "evaluate.thresholds.absolute={AP: 0.9}", "run.image=image:2")
    assert _properties() == _properties(*others, "evaluate.analysis.images=9", "run.resources.CocoEvaluator={cpu: 3}")
    validated = "train.validation.every=2"
    assert _properties(validated) == _properties(validated, *others)
    assert _properties() != _properties("train.log_every=7")


def test_it_compiles_without_its_initial_weights() -> None:
    from components.detection_trainer.identity import training_of
    from schemas.errors import DataError

    properties = _properties("train.init.checkpoint=gs://nowhere/ckpt-1")
    assert "first_weights" not in properties
    with pytest.raises(DataError, match="nowhere"):
        training_of(properties)


def test_a_submission_sets_parameters() -> None:
    from components.detection_trainer.identity import training_of

    submitted = {"data_root": "gs://b", "model_name": "efficientdet-d1", "train_steps": 9, "train_batch_size": 5}
    config, properties = training_of({**_properties(), **submitted})
    assert (config.data.root, config.model.name, config.train.steps, config.train.batch_size) == tuple(
        submitted.values()
    )
    assert properties != training_of(_properties())[1]
    with pytest.raises(ConfigError, match=r"parameters of this run: train\.steps = 0"):
        training_of({**_properties(), "train_steps": 0})


def test_it_starts_from_what_was_resolved_and_records_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfx.types import artifact_utils, standard_artifacts

    from components.detection_trainer import executor
    from components.history.execution import describe, resolve_to
    from components.history.queries import History
    from components.history.records import IDENTITY_PROPERTY, Output
    from components.history.store import config_path

    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(executor, "train", lambda config, **arguments: seen.append(arguments))
    monkeypatch.setattr(
        executor, "_publish", lambda working, model, *_: write_text(Path(model, CONFIG_YAML), "train: {}")
    )

    def resolved_to(kind: Any, name: str, entries: list[Any]) -> Any:
        artifact = kind()
        artifact.uri = str(tmp_path / name)
        resolve_to(artifact, entries)
        return artifact

    entries = []
    for span in (4, 3):
        examples = standard_artifacts.Examples()
        examples.uri = str(tmp_path / f"examples-{span}")
        examples.split_names = artifact_utils.encode_split_names([TRAIN_SPLIT])
        examples.set_int_custom_property("span", span)
        examples.set_string_custom_property(IDENTITY_PROPERTY, f"records of {span}")
        shards = Path(examples.uri, split_dir(TRAIN_SPLIT))
        shards.mkdir(parents=True)
        write_shards(shards, rectangles(3, seed=span))
        write_json(Path(examples.uri, DATASET_JSON), {"categories": CATEGORIES})
        entries.append(describe(examples))
    root = str(tmp_path / "run")
    properties = {**_properties(), "run_root": root}

    def trained(window: list[Any], base: list[Any], name: str) -> dict[str, Any]:
        outputs = {"model": [standard_artifacts.Model()], "model_run": [standard_artifacts.ModelRun()]}
        for key, [artifact] in outputs.items():
            artifact.uri = str(tmp_path / name / key)
        inputs = {
            "examples": [resolved_to(standard_artifacts.Examples, f"{name}-window", window)],
            "base_model": [resolved_to(standard_artifacts.Model, f"{name}-base", base)],
        }
        executor.Executor().Do(inputs, outputs, properties)
        return seen[-1]

    assert trained(entries, [], "first")["base_model"] is None
    folders = [Path(shard).parts[-3] for shard in seen[-1]["shards"]]
    assert folders == sorted(folders, reverse=True)
    assert set(folders) == {"examples-4", "examples-3"}
    [first] = History(root).models.values()
    base = str(tmp_path / "first" / "model")
    assert (
        trained(entries[::-1], [Output(base, "Model", {"identity": first.identity})], "second")["base_model"]
        == f"{base}/Format-Serving"
    )
    trained(entries[:1], [], "third")
    first, second, third = History(root).models.values()
    assert (first.uri, first.base_model) == (base, None)
    assert [Path(uri).name for uri in first.examples] == ["examples-4", "examples-3"]
    assert Path(config_path(root, str(first.config))).read_text() == "train: {}"
    assert (second.training, second.base_model) == (first.training, base)
    assert third.training != first.training, "another window"
