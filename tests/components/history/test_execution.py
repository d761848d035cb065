"""Executions write a record last, and artifacts stand for others; TFX takes 20 s to import: imported inside."""

from pathlib import Path
from typing import Any

import pytest
from ml_metadata.proto import metadata_store_pb2

from schemas.errors import DataError

pytestmark = pytest.mark.slow


def _artifact(kind: str, uri: Path, **properties: Any) -> Any:
    from tfx.types import standard_artifacts

    artifact = getattr(standard_artifacts, kind)()
    artifact.uri = str(uri)
    for name, value in properties.items():
        setter = artifact.set_int_custom_property if isinstance(value, int) else artifact.set_string_custom_property
        setter(name, value)
    return artifact


def _execute(root: Path, work: Any, *, outputs: Path, inputs: Any = None) -> Any:
    """Runs a recorded component that makes a model; returns its output."""
    from tfx.dsl.components.base.base_executor import BaseExecutor

    from components.history.execution import recorded

    class Executor(BaseExecutor):
        Do = recorded("DetectionTrainer")(work)

    model = _artifact("Model", outputs)
    Executor().Do(inputs or {}, {"model": [model]}, {"run_root": str(root), "steps": 3})
    return model


def _train(executor: Any, inputs: Any, outputs: Any, parameters: dict[str, Any]) -> None:
    outputs["model"][0].set_string_custom_property("training", "t")
    parameters["resolved"] = "by itself"


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("artifacts/DetectionTrainer/model/mine.v2.3", ("mine.v2", 3)),
        ("artifacts/cocoflow/run-7/DetectionTrainer/model", ("run-7", 1)),
        ("artifacts/1234/job-7/DetectionTrainer_-99/model", ("job-7", 1)),
        ("artifacts/DetectionTrainer/model/5", ("notebook", 1)),
        ("elsewhere", ("notebook", 1)),
    ],
)
def test_an_execution_is_recorded_with_its_run(folder: str, expected: tuple[str, int], tmp_path: Path) -> None:
    from components.history.store import read_executions

    examples = _artifact("Examples", tmp_path / "e")
    model = _execute(tmp_path, _train, outputs=tmp_path / folder, inputs={"examples": [examples]})
    [record] = read_executions(str(tmp_path), "DetectionTrainer")
    assert (record.run, record.attempt, record.state, record.error) == (*expected, "done", None)
    assert record.inputs == {"examples": [examples.uri]}
    assert record.parameters == {"steps": 3, "resolved": "by itself"}
    assert record.output("model").uri == model.uri
    assert record.output("model").properties == {"training": "t"}


def test_a_failed_execution_is_recorded_with_its_reason(tmp_path: Path) -> None:
    from components.history.store import read_executions

    def fail(*_: Any) -> None:
        raise DataError("no records.\n" + "x" * 1000)

    with pytest.raises(DataError, match="no records"):
        _execute(tmp_path, fail, outputs=tmp_path / "m")
    [record] = read_executions(str(tmp_path), "DetectionTrainer")
    assert (record.state, record.outputs) == ("failed", {})
    assert record.error is not None
    assert record.error.kind == "DataError"
    assert record.error.text.startswith("no records.\\nxxx")
    assert len(record.error.text) == 500


def test_a_record_that_cannot_be_written_fails_the_component(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("a file")
    with pytest.raises(DataError, match="history"):
        _execute(tmp_path, _train, outputs=tmp_path / "m")


def test_an_artifact_stands_for_others(tmp_path: Path) -> None:
    from tfx.types import artifact_utils

    from components.history.execution import describe, resolve_to, resolved
    from components.history.records import Output

    first, second = (_artifact("Examples", tmp_path / name, span=1, identity=name) for name in ("a", "b"))
    second.split_names = artifact_utils.encode_split_names(["train"])
    window = _artifact("Examples", tmp_path / "window")
    resolve_to(window, [describe(one) for one in (second, first)])
    restored = resolved([window, first])
    assert [describe(one) for one in restored] == [describe(one) for one in (second, first, first)]
    base = _artifact("Model", tmp_path / "none")
    resolve_to(base, [])
    assert resolved([base]) == []
    resolve_to(base, [Output("gs://models/3", "Model", {"ratio": 0.5})])
    [model] = resolved([base])
    assert (model.type_name, model.uri, model.get_float_custom_property("ratio")) == ("Model", "gs://models/3", 0.5)


def test_the_key_is_of_everything_but_the_place_of_the_root() -> None:
    from components.history.execution import ReuseRule

    def key(root: str, component: str = "c", code: str = "1", **given: Any) -> str:
        parameters = {"run_root": root, "a": 1, "directory": f"{root}/serving", "none": None} | given
        rule, inputs = ReuseRule(code), {"i": [f"{root}/x", "gs://y"]}
        return rule.key(component, parameters=parameters, inputs=inputs, root=root)

    assert key("/one") == key("/two") == key("gs://b/three", absent=None)
    changed = [key("/one", "d"), key("/one", code="2"), key("/one", a=2), key("/one", a="1"), key("/one", b=1)]
    assert len({key("/one"), *changed}) == 6


def test_properties_are_read_as_ml_metadata_and_as_kubeflow_hold_them() -> None:
    from components.history.execution import properties_of

    artifact = metadata_store_pb2.Artifact()
    artifact.properties["split_names"].string_value = '["train"]'
    artifact.custom_properties["version"].int_value = 3
    artifact.custom_properties["is_external"].int_value = 1
    for name, value in (("span", 2), ("data_source", "/data")):
        artifact.custom_properties[name].struct_value.update({"__value__": value})
    found = properties_of(artifact)
    assert found == {"split_names": '["train"]', "version": 3, "span": 2, "data_source": "/data"}
    assert isinstance(found["span"], int)


def test_long_parameters_are_recorded_by_their_digest() -> None:
    from components.history.execution import recorded_parameters

    recorded = recorded_parameters({"run_root": "/r", "long": "x" * 5000, "none": None, "steps": 3})
    assert set(recorded) == {"long", "steps"}
    assert str(recorded["long"]).startswith("sha256:")
