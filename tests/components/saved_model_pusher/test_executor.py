"""With TFX's own artifacts, which take it 20 s to import: imported inside."""

import json
from pathlib import Path
from typing import Any

import pytest

from detection.storage.atomic import write_bytes
from detection.storage.reading import read_bytes
from schemas.errors import DataError
from tests.storage_emulator.fixture import Bucket

pytestmark = pytest.mark.slow


@pytest.fixture
def model(tmp_path: Path) -> Any:
    from tfx.types import standard_artifacts

    artifact = standard_artifacts.Model()
    artifact.uri = str(tmp_path / "model")
    serving = tmp_path / "model" / "Format-Serving"
    serving.mkdir(parents=True)
    (serving / "saved_model.pb").write_bytes(b"graph")
    return artifact


def push(tmp_path: Path, inputs: dict[str, list[Any]], **properties: str) -> Any:
    from tfx.types import standard_artifacts

    from components.saved_model_pusher.executor import Executor

    pushed = standard_artifacts.PushedModel()
    pushed.uri = str(tmp_path / "pushed")
    Path(pushed.uri).mkdir()
    properties |= {"push_directory": str(tmp_path / "serving")}
    Executor().Do(inputs, {"pushed_model": [pushed]}, properties)
    return pushed


def blessing(blessed: int) -> Any:
    from tfx.types import standard_artifacts

    artifact = standard_artifacts.ModelBlessing()
    artifact.set_int_custom_property("blessed", blessed)
    return artifact


def test_a_blessed_model_is_pushed_and_recorded_as_tfx_does(tmp_path: Path, model: Any) -> None:
    pushed = push(tmp_path, {"model": [model], "model_blessing": [blessing(1)]})
    [version] = (tmp_path / "serving").iterdir()
    assert (version / "saved_model.pb").read_bytes() == b"graph"
    assert pushed.get_int_custom_property("pushed") == 1
    assert pushed.get_string_custom_property("pushed_destination") == str(version)
    assert pushed.get_string_custom_property("pushed_version") == version.name
    pointer = {"destination": str(version), "version": version.name, "model": model.uri}
    assert json.loads((tmp_path / "pushed" / "pushed.json").read_text()) == pointer


@pytest.mark.parametrize("blessed", [1, 0])
def test_a_compiled_pipeline_records_its_pushes_in_the_history(tmp_path: Path, model: Any, blessed: int) -> None:
    from components.history import read_pushes

    folder = str(tmp_path / "history")
    push(tmp_path, {"model": [model], "model_blessing": [blessing(blessed)]}, history=folder)
    versions = list((tmp_path / "serving").glob("*"))
    assert len(versions) == blessed
    assert [record[:3] for record in read_pushes(folder)] == [(str(one), one.name, model.uri) for one in versions]


def test_a_model_on_cloud_storage_is_pushed_there_and_recorded(tmp_path: Path, model: Any, gcs: Bucket) -> None:
    from tfx.types import standard_artifacts

    from components.saved_model_pusher.executor import Executor

    write_bytes(f"{gcs.path}/model/Format-Serving/saved_model.pb", b"graph")
    model.uri = f"{gcs.path}/model"
    pushed = standard_artifacts.PushedModel()
    pushed.uri = f"{gcs.path}/pushed"
    Executor().Do({"model": [model]}, {"pushed_model": [pushed]}, {"push_directory": f"{gcs.path}/serving"})
    destination = pushed.get_string_custom_property("pushed_destination")
    assert destination == f"{gcs.path}/serving/{pushed.get_string_custom_property('pushed_version')}"
    assert read_bytes(f"{destination}/saved_model.pb") == b"graph"
    assert json.loads(read_bytes(f"{pushed.uri}/pushed.json"))["destination"] == destination


@pytest.mark.parametrize("blessings", [[0], [], [1, 0]])
def test_without_a_blessing_nothing_is_written(tmp_path: Path, model: Any, blessings: list[int]) -> None:
    pushed = push(tmp_path, {"model": [model], "model_blessing": [blessing(value) for value in blessings]})
    assert pushed.get_int_custom_property("pushed") == 0
    assert not pushed.has_custom_property("pushed_destination")
    assert not (tmp_path / "serving").exists()
    assert list((tmp_path / "pushed").iterdir()) == []


def test_where_nothing_gives_blessings_every_model_is_pushed(tmp_path: Path, model: Any) -> None:
    assert push(tmp_path, {"model": [model]}).get_int_custom_property("pushed") == 1


def test_a_push_directory_that_is_a_file_fails_the_component(tmp_path: Path, model: Any) -> None:
    (tmp_path / "serving").write_text("")
    with pytest.raises(DataError, match=r"serving: cannot push"):
        push(tmp_path, {"model": [model]})


def test_a_folder_without_a_model_fails_the_component(tmp_path: Path, model: Any) -> None:
    (Path(model.uri) / "Format-Serving" / "saved_model.pb").unlink()
    with pytest.raises(DataError, match=r"no saved_model\.pb"):
        push(tmp_path, {"model": [model]})


def test_the_component_is_wired_by_its_spec() -> None:
    from tfx import types
    from tfx.types import standard_artifacts

    from components.saved_model_pusher.component import SavedModelPusher

    models = types.Channel(type=standard_artifacts.Model)
    blessings = types.Channel(type=standard_artifacts.ModelBlessing)
    pusher = SavedModelPusher(model=models, model_blessing=blessings, push_directory="serving")
    assert pusher.inputs == {"model": models, "model_blessing": blessings}
    assert pusher.exec_properties == {"push_directory": "serving", "history": None}
    assert pusher.outputs["pushed_model"].type is standard_artifacts.PushedModel
    assert set(SavedModelPusher(model=models, push_directory="serving").inputs) == {"model"}
