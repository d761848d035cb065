"""With TFX's own artifacts, which take it 20 s to import: imported inside."""

import json
from pathlib import Path
from typing import Any

import pytest

from components.saved_model_pusher.validate import Validation
from detection.storage.atomic import write_bytes
from detection.storage.files import read_bytes
from schemas.config.config import PushConfig, PushValidationConfig
from schemas.config.config_io import load_config
from schemas.errors import CocoflowError, DataError, RefusedModelError
from tests.components.saved_model_pusher.served_models import evaluated_sample
from tests.detection.fake_detector import save_fake_detector
from tests.storage_emulator.fixture import Bucket
from tests.vertex_service.fixture import PROJECT, LoopbackVertex

pytestmark = pytest.mark.slow

DEFAULTS: dict[str, Any] = {"config": PushConfig().model_dump_json(), "score_thresholds": 0}


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
    Executor().Do(inputs, {"pushed_model": [pushed]}, DEFAULTS | properties)
    return pushed


def test_a_pushed_version_is_registered(tmp_path: Path, model: Any, vertex_over_rest: LoopbackVertex) -> None:
    from tfx.types import standard_artifacts

    from components.saved_model_pusher.executor import Executor
    from components.saved_model_pusher.model_registry import Registration

    vertex = vertex_over_rest
    folder = f"{vertex.bucket.path}/serving"
    settings = ["push.vertex.model_registry=true", f"push.directory={folder}"]
    registration = Registration.of(load_config(None, [*settings, f"run.vertex.project={PROJECT}"]))
    assert registration is not None
    pushed = standard_artifacts.PushedModel()
    pushed.uri = str(tmp_path / "pushed")
    properties = {"push_directory": folder, "registration": registration.model_dump_json()}
    for blessed in (0, 1, 1):
        inputs = {"model": [model], "model_blessing": [blessing(blessed)]}
        Executor().Do(inputs, {"pushed_model": [pushed]}, DEFAULTS | properties)
        assert bool(vertex.kept("/models/")) == bool(blessed)
    registered = pushed.get_string_custom_property("registered_model")
    [kept] = [name for name in vertex.kept("/models/") if "@" in name]
    assert registered == kept
    assert vertex.kept(kept)[kept]["artifactUri"] == pushed.get_string_custom_property("pushed_destination")


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
def test_pushes_are_recorded_in_the_history(tmp_path: Path, model: Any, blessed: int) -> None:
    from components.history.queries import History

    push(tmp_path, {"model": [model], "model_blessing": [blessing(blessed)]}, run_root=str(tmp_path))
    versions = list((tmp_path / "serving").glob("*"))
    assert len(versions) == blessed
    pushes = [(one.destination, one.version, one.model) for one in History(str(tmp_path)).pushes.values()]
    assert pushes == [(str(one), one.name, model.uri) for one in versions]


def test_a_model_on_cloud_storage_is_pushed_there_and_recorded(tmp_path: Path, model: Any, gcs: Bucket) -> None:
    from tfx.types import standard_artifacts

    from components.saved_model_pusher.executor import Executor

    write_bytes(f"{gcs.path}/model/Format-Serving/saved_model.pb", b"graph")
    model.uri = f"{gcs.path}/model"
    pushed = standard_artifacts.PushedModel()
    pushed.uri = f"{gcs.path}/pushed"
    Executor().Do({"model": [model]}, {"pushed_model": [pushed]}, DEFAULTS | {"push_directory": f"{gcs.path}/serving"})
    destination = pushed.get_string_custom_property("pushed_destination")
    assert destination == f"{gcs.path}/serving/{pushed.get_string_custom_property('pushed_version')}"
    assert read_bytes(f"{destination}/saved_model.pb") == b"graph"
    assert json.loads(read_bytes(f"{pushed.uri}/pushed.json"))["destination"] == destination


def test_the_validation_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tfx.types import standard_artifacts

    from components.saved_model_pusher import push as pushing
    from components.saved_model_pusher.executor import Executor

    folders = [tmp_path / name for name in ("model", "evaluation", "pushed")]
    artifacts = [standard_artifacts.Model(), standard_artifacts.ModelEvaluation(), standard_artifacts.PushedModel()]
    for artifact, folder in zip(artifacts, folders, strict=True):
        artifact.uri = str(folder)
    saved_model = save_fake_detector(folders[0] / "Format-Serving")
    evaluated_sample(folders[1], saved_model, images=3)
    validation = Validation(1, 7, 0, {"detection_boxes": 0.0}, 0.01, {"total": 1.0})
    asked = []

    def validate(*_: Any, **given: Any) -> Validation:
        asked.append(given)
        return validation

    monkeypatch.setattr(pushing, "validate", validate)
    options = PushConfig(validation=PushValidationConfig(images=1, tolerance=0.01), warmup_requests=1)
    Executor().Do(
        {"model": artifacts[:1], "model_evaluation": artifacts[1:2]},
        {"pushed_model": artifacts[2:]},
        {"push_directory": str(tmp_path / "serving"), "config": options.model_dump_json(), "score_thresholds": 0},
    )
    [given] = asked
    assert (given["images"], given["tolerance"]) == (1, 0.01)
    assert json.loads((folders[2] / "validation.json").read_text()) == validation._asdict()
    [version] = (tmp_path / "serving").iterdir()
    assert (version / "assets.extra/tf_serving_warmup_requests").is_file()
    assert not (version / "assets.extra/score_thresholds.json").exists()


def failing(error: Exception) -> Any:
    def fail(*_: Any) -> None:
        raise error

    return fail


def test_a_refusal_is_recorded_until_the_model_is_pushed(
    tmp_path: Path, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from components.history.queries import History
    from components.saved_model_pusher import executor

    inputs, root = {"model": [model], "model_blessing": [blessing(1)]}, str(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(executor, "push", failing(RefusedModelError("its scores are NaN")))
        with pytest.raises(RefusedModelError, match="its scores are NaN"):
            push(tmp_path, inputs, run_root=root)
    assert History(root).refused == {model.uri}
    (tmp_path / "pushed").rmdir()
    assert push(tmp_path, inputs, run_root=root).get_int_custom_property("pushed") == 1
    assert History(root).refused == set()


@pytest.mark.parametrize("error", [DataError("no space"), CocoflowError("no connection"), KeyError("bug")])
def test_another_failure_is_no_refusal(
    tmp_path: Path, model: Any, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    from components.history.queries import History
    from components.history.store import read_executions
    from components.saved_model_pusher import executor

    monkeypatch.setattr(executor, "push", failing(error))
    with pytest.raises(type(error)):
        push(tmp_path, {"model": [model]}, run_root=str(tmp_path))
    assert History(str(tmp_path)).refused == set()
    assert [one.state for one in read_executions(str(tmp_path), "SavedModelPusher")] == ["failed"]


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
    evaluations = types.Channel(type=standard_artifacts.ModelEvaluation)
    pusher = SavedModelPusher(
        model=models,
        model_blessing=blessings,
        model_evaluation=evaluations,
        push_directory="serving",
        config=PushConfig(directory="not read", keep_versions=3),
        score_thresholds=True,
    )
    assert pusher.inputs == {"model": models, "model_blessing": blessings, "model_evaluation": evaluations}
    options = json.loads(pusher.exec_properties.pop("config"))
    assert (options["keep_versions"], "directory" in options) == (3, False)
    assert pusher.exec_properties == {"push_directory": "serving", "score_thresholds": 1, "run_root": None}
    assert pusher.outputs["pushed_model"].type is standard_artifacts.PushedModel
    assert set(SavedModelPusher(model=models, push_directory="serving").inputs) == {"model"}
