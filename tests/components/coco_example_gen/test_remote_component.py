"""The example gen of compiled pipelines: located when it runs; TFX takes 20 s to import: imported inside."""

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.config.config import DataConfig
from schemas.config.issues import IssuePolicies
from schemas.errors import ConfigError, DataError
from tests.components.coco_example_gen.data_set import write_data_set

pytestmark = pytest.mark.slow


def _component(**data: Any) -> Any:
    from tfx.orchestration.data_types import RuntimeParameter

    from components.coco_example_gen.component import CocoExampleGen

    parameters = {name: RuntimeParameter(name=name, ptype=str, default="") for name in ("data_root", "data_span")}
    return CocoExampleGen(DataConfig.model_validate(data), **parameters, run_root="gs://bucket/run")


def _properties(component: Any, **submitted: str) -> dict[str, Any]:
    from tfx.orchestration.data_types import RuntimeParameter

    given = {key: value for key, value in component.exec_properties.items() if value is not None}
    return {
        key: submitted.get(key, value.default) if isinstance(value, RuntimeParameter) else value
        for key, value in given.items()
    }


def test_it_reads_nothing_when_it_is_constructed() -> None:
    component = _component(root="gs://nowhere/{SPAN}", label_map="gs://nowhere/map", on_fault=IssuePolicies({}))
    assert component.id == "CocoExampleGen"
    with pytest.raises(ConfigError, match="no data set: give --data DIR"):
        _component()
    with pytest.raises(ConfigError, match=r"data\.root and data\.splits both name a data set"):
        _component(root="a", splits={"train": {"records": "b"}})


def test_the_parameters_of_a_submission_replace_keys_of_the_configuration(tmp_path: Path) -> None:
    from components.coco_example_gen.spans.resolution import REUSE_RULE, resolve

    for folder in ("1/v1", "1/v2", "2/v1", "2/v2"):
        write_data_set(tmp_path / folder)
    root = str(tmp_path / "{SPAN}/v{VERSION}")

    def resolved(data: dict[str, Any], **submitted: str) -> dict[str, Any]:
        return dict(REUSE_RULE.deciding(resolve(_properties(_component(**data), **submitted))))

    newest = resolved({"root": "gs://nowhere"}, data_root=root)
    assert (newest["span"], newest["version"]) == (2, 2)
    assert resolved({"root": "gs://nowhere"}, data_root=root, data_span="2") == newest, "the newest, said outright"
    first = resolved({"root": "x", "version": 1}, data_root=root, data_span="1970-01-02")
    assert (first["span"], first["version"]) == (1, 1)
    assert first["splits"] != newest["splits"]
    with pytest.raises(DataError, match="no span 7 found"):
        resolved({"root": "x"}, data_root=root, data_span="7")
    with pytest.raises(ConfigError, match=r"parameters of this run: data\.span = 'seven'"):
        resolved({"root": "x"}, data_root=root, data_span="seven")


def _executor_input(folder: Path, properties: dict[str, Any], *, schema: str) -> dict[str, Any]:
    examples = {"name": "a/1", "uri": f"{folder}/examples", "type": {"schemaTitle": "tfx.Examples"}}
    if schema == "2.0":
        inputs: dict[str, Any] = {
            "parameters": {
                key: {"intValue": value} if isinstance(value, int) else {"stringValue": value}
                for key, value in properties.items()
            }
        }
    else:
        inputs = {"parameterValues": properties}
    outputs = {"artifacts": {"examples": {"artifacts": [examples]}}, "outputFile": f"{folder}/output.json"}
    return {"inputs": inputs, "outputs": outputs}


@pytest.mark.parametrize("schema", ["2.0", "2.1"])
def test_its_driver_answers_as_a_backend_and_the_executor_read_it(tmp_path: Path, schema: str) -> None:
    from components.coco_example_gen.spans.kubeflow_driver import main
    from components.coco_example_gen.spans.resolution import resolve

    write_data_set(tmp_path / "data/4")
    properties = _properties(_component(root="gs://nowhere"), data_root=f"{tmp_path}/data/{{SPAN}}", data_span="")
    arguments = ["--json_serialized_invocation_args", json.dumps(_executor_input(tmp_path, properties, schema=schema))]
    if schema == "2.1":
        arguments += ["--json_serialized_inputs_spec_args", '{"parameters": {}}']
    main([*arguments, "--runner=DirectRunner"])
    answer = json.loads((tmp_path / "output.json").read_text())
    resolved = resolve(properties)
    assert answer["parameterValues"] == {
        key: resolved[key] for key in ("splits", "options", "span", "input_fingerprint", "data_source")
    }
    assert set(answer["parameters"]) == set(answer["parameterValues"])
    assert answer["parameters"]["span"] == {"intValue": "4"}
    [examples] = answer["artifacts"]["examples"]["artifacts"]
    # TFX's name of a custom property that is called like a property of the type.
    assert examples["metadata"]["custom:span"] == 4
    assert examples["metadata"]["input_fingerprint"] == resolved["input_fingerprint"]
    assert examples["metadata"]["data_source"] == f"{tmp_path}/data/{{SPAN}}"


def test_the_executor_resolves_where_no_driver_did_and_writes_a_record_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfx.types import standard_artifacts

    from components.coco_example_gen import executor
    from components.history.queries import History
    from components.history.records import DataRead

    write_data_set(tmp_path / "data")
    properties = _properties(_component(root=str(tmp_path / "data")), data_root=str(tmp_path / "data"))
    properties["run_root"] = str(tmp_path)
    examples = standard_artifacts.Examples()
    examples.uri = str(tmp_path / "examples")
    executor.Executor().Do({}, {"examples": [examples]}, properties)
    [record] = History(str(tmp_path)).examples.values()
    identity = examples.get_string_custom_property("identity")
    fingerprint = examples.get_string_custom_property("input_fingerprint")
    assert record == DataRead(str(tmp_path / "data"), 0, None, identity, examples.uri, fingerprint)
    assert (tmp_path / "examples/Split-train").is_dir()

    def refused(*arguments: Any, **options: Any) -> None:
        raise DataError("refused")

    monkeypatch.setattr(executor, "convert", refused)
    with pytest.raises(DataError, match="refused"):
        executor.Executor().Do({}, {"examples": [examples]}, properties)
    assert len(History(str(tmp_path)).examples) == 1
