"""The components of compiled pipelines decide as the resolvers do, on the same histories.

TFX takes 20 s to import: imported inside.
"""

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config.config_io import load_config

pytestmark = pytest.mark.slow

WARM = "train.init.from_previous_model=true"
# Blessed, refused, seed of the training, its base model.
MODELS = st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 2), st.integers(0, 6)), max_size=6)


def _artifact(kind: Any, number: int, folder: Path) -> Any:
    artifact = kind()
    artifact.id, artifact.uri = number, str(folder / f"{kind.TYPE_NAME}-{number}")
    return artifact


def _blessing(number: int, model: int, *, blessed: bool, folder: Path) -> Any:
    from tfx.types import standard_artifacts

    blessing = _artifact(standard_artifacts.ModelBlessing, number, folder)
    blessing.set_int_custom_property("blessed", int(blessed))
    blessing.set_int_custom_property("current_model_id", model)
    return blessing


def _do(executor: Any, inputs: dict[str, Any], kind: Any, key: str, folder: Path, **properties: Any) -> list[str]:
    """Runs a component; the URIs of the artifacts that it resolves to."""
    from components.history.stand_ins import resolved

    output = kind()
    output.uri = str(folder / "output")
    Path(output.uri).mkdir(exist_ok=True)
    lists = {name: [artifact] for name, artifact in inputs.items()}
    executor().Do(lists, {key: [output]}, {"run_root": str(folder), **properties})
    return [artifact.uri for artifact in resolved([output])]


def _record(folder: Path, component: str, inputs: dict[str, list[str]], outputs: dict[str, Any]) -> None:
    from components.history.records import Record, write_record

    made = {name: [output] for name, output in outputs.items()}
    write_record(str(folder), Record(component, "done", inputs=inputs, outputs=made), started=datetime.now(UTC))


def _record_model(folder: Path, *, uri: str, training: str, base_model: str | None) -> None:
    from components.history.records import Output

    inputs = {"base_model": [base_model] if base_model else []}
    _record(folder, "DetectionTrainer", inputs, {"model": Output(uri, "Model", {"training": training})})


def _record_verdict(folder: Path, *, model: str, blessed: bool) -> None:
    from components.history.records import Output

    blessing = Output("", "ModelBlessing", {"blessed": int(blessed)})
    outputs = {"evaluation": Output("", "ModelEvaluation"), "blessing": blessing}
    _record(folder, "CocoEvaluator", {"model": [model]}, outputs)


@settings(max_examples=40)
@given(models=MODELS, chosen=st.integers(0, 6))
def test_the_baseline(models: list[tuple[bool, bool, int, int]], chosen: int) -> None:
    from tfx.types import standard_artifacts

    from components.history.read import record_refusal
    from pipelines.resolvers.baseline import PreviousBlessedModelStrategy, RecordedBaseline

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        artifacts = [_artifact(standard_artifacts.Model, number, folder) for number in range(1, len(models) + 2)]
        candidate = artifacts[min(chosen, len(models))]
        blessings = []
        facts = [*models, (False, False, 0, 0)]
        for number, (model, (blessed, refused, _, _)) in enumerate(zip(artifacts, facts, strict=True)):
            if refused:
                record_refusal(model.uri, "NaN")
            _record_model(folder, uri=model.uri, training="", base_model=None)
            _record_verdict(folder, model=model.uri, blessed=blessed)
            blessings.append(_blessing(100 + number, model.id, blessed=blessed, folder=folder))
        inputs = {"candidate": [candidate], "model": artifacts, "model_blessing": blessings}
        expected = PreviousBlessedModelStrategy().resolve_artifacts(None, inputs)["model"]
        recorded = _do(
            RecordedBaseline.EXECUTOR_SPEC.executor_class,
            {"candidate": candidate},
            standard_artifacts.Model,
            "model",
            folder,
        )
        assert recorded == [model.uri for model in expected]
        older = zip(artifacts[: artifacts.index(candidate)], models, strict=False)
        usable = [model.uri for model, (blessed, refused, _, _) in older if blessed and not refused]
        assert recorded == usable[-1:]


@settings(max_examples=40)
@given(models=MODELS, seed=st.integers(0, 2))
def test_the_base_model(models: list[tuple[bool, bool, int, int]], seed: int) -> None:
    """Trainings of seeds 0 to 2, each from an earlier model or none; the training of `seed` asks."""
    from tfx.types import standard_artifacts

    from components.detection_trainer.identity import (
        remote_properties,
        training_identity,
        training_properties,
    )
    from components.history.read import IDENTITY_PROPERTY, record_refusal
    from pipelines.resolvers.base_model import BaseModelStrategy, RecordedBaseModel
    from schemas.config.runtime_parameters import default_value

    configs = [load_config(None, [WARM, f"train.seed={number}"]) for number in range(3)]
    properties = [training_properties(config, "train") for config in configs]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        examples = _artifact(standard_artifacts.Examples, 1, folder)
        examples.set_string_custom_property(IDENTITY_PROPERTY, "records")
        artifacts: list[Any] = []
        blessings = []
        for number, (blessed, refused, trained, base) in enumerate(models):
            model = _artifact(standard_artifacts.Model, number + 2, folder)
            if refused:
                record_refusal(model.uri, "NaN")
            earlier = artifacts[base % len(artifacts)] if artifacts and base else None
            model.set_string_custom_property("training", training_identity(properties[trained], [examples]))
            model.set_int_custom_property("base_model_id", earlier.id if earlier else 0)
            _record_model(
                folder,
                uri=model.uri,
                training=training_identity(properties[trained], [examples]),
                base_model=earlier.uri if earlier else None,
            )
            _record_verdict(folder, model=model.uri, blessed=blessed)
            artifacts.append(model)
            blessings.append(_blessing(100 + number, model.id, blessed=blessed, folder=folder))
        inputs = {"examples": [examples], "model": artifacts, "model_blessing": blessings}
        expected = BaseModelStrategy(properties[seed]).resolve_artifacts(None, inputs)["model"]
        submitted = {
            key: default_value(configs[seed], key)
            for key in ("data_root", "model_name", "train_steps", "train_batch_size")
        }
        recorded = _do(
            RecordedBaseModel.EXECUTOR_SPEC.executor_class,
            {"examples": examples},
            standard_artifacts.Model,
            "model",
            folder,
            **remote_properties(configs[seed], "train"),
            **submitted,
        )
        assert recorded == [model.uri for model in expected]


READ = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([None, 1, 2]), st.sampled_from(["a", "b"])), min_size=1, max_size=8
)


@settings(max_examples=40)
@given(read=READ, own=st.integers(0, 7), spans=st.integers(1, 4))
def test_the_window(read: list[tuple[int, int | None, str]], own: int, spans: int) -> None:
    from tfx.types import artifact_utils, standard_artifacts

    from components.coco_example_gen.spans.resolution import DATA_SOURCE_KEY
    from components.history.stand_ins import describe
    from pipelines.resolvers.span_window import RecordedWindow, SpanWindowStrategy

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        artifacts = []
        for number, (span, version, source) in enumerate(read):
            examples = _artifact(standard_artifacts.Examples, number + 1, folder)
            examples.split_names = artifact_utils.encode_split_names(["train"])
            examples.set_int_custom_property("span", span)
            if version is not None:
                examples.set_int_custom_property("version", version)
            examples.set_string_custom_property(DATA_SOURCE_KEY, source)
            _record(folder, "CocoExampleGen", {}, {"examples": describe(examples)})
            artifacts.append(examples)
        newest = artifacts[own % len(artifacts)]
        inputs = {"newest": [newest], "examples": artifacts}
        expected = SpanWindowStrategy(spans).resolve_artifacts(None, inputs)["examples"]
        kind = standard_artifacts.Examples
        recorded = _do(
            RecordedWindow.EXECUTOR_SPEC.executor_class, {"newest": newest}, kind, "examples", folder, spans=spans
        )
        assert recorded == [examples.uri for examples in expected]
        chosen = [read[artifacts.index(examples)] for examples in expected]
        assert expected[0] is newest
        assert {source for _, _, source in chosen} == {newest.get_string_custom_property(DATA_SOURCE_KEY)}
        numbers = [span for span, _, _ in chosen]
        assert numbers == sorted(set(numbers), reverse=True)
        assert numbers[0] - numbers[-1] < spans
