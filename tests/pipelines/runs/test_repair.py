"""Runs of little pipelines over damaged outputs and after kills; TFX takes 20 s to import: imported inside."""

import logging
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.folders import RunLayout
from pipelines.metadata_database import MetadataDatabase
from schemas.config.config import Config, PushConfig
from schemas.errors import CocoflowError, DataError

pytestmark = pytest.mark.slow

CACHED = {"StubTrainer": "CACHED", "Resolver": "COMPLETE", "StubEvaluator": "CACHED", "SavedModelPusher": "CACHED"}


class Runs:
    """Repairs, runs and records the stub pipeline as `run` does."""

    def __init__(self, root: Path) -> None:
        self.layout = RunLayout(Config.model_validate({"run": {"root": str(root)}}))
        self.database, self.artifacts = MetadataDatabase.of_file(self.layout.metadata), Path(self.layout.artifacts)
        self.push_directory = Path(self.layout.push_directory)
        self.seen = 0

    def __call__(self, *, seed: int = 1, blessed: int = 1, push: PushConfig | None = None) -> dict[str, str]:
        """Returns the state of each node's new execution: COMPLETE or CACHED."""
        from pipelines.runners.local import run_local
        from pipelines.runs.repair import record_outputs, repair
        from tests.pipelines.baseline_stubs import create_pipeline

        pipeline = create_pipeline(Path(self.layout.root), seed=seed, blessed=blessed, push=push)
        repair(self.layout, self.database, [component.id for component in pipeline.components])
        self.run_id = f"{uuid.uuid4()}.1"
        run_local(pipeline, self.run_id)
        record_outputs(self.layout, self.database)
        executions = [execution for execution in self.store().get_executions() if execution.id > self.seen]
        self.seen = max(execution.id for execution in executions)
        return {
            execution.type.rpartition(".")[2]: execution.State.Name(execution.last_known_state)
            for execution in executions
        }

    def store(self) -> Any:
        return self.database.open()

    def newest(self, kind: str) -> Any:
        return max(self.store().get_artifacts_by_type(kind), key=lambda artifact: artifact.id)

    def versions(self) -> list[str]:
        return sorted(path.name for path in self.push_directory.iterdir())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with one run."""
    root = tmp_path_factory.mktemp("finished") / "run"
    assert set(Runs(root)().values()) == {"COMPLETE"}
    return root


@pytest.fixture
def runs(finished: Path) -> Runs:
    """The finished run folder, in its place: ML Metadata has absolute paths."""
    again = Runs(finished)
    again.seen = max(execution.id for execution in again.store().get_executions())
    return again


def _pushed(runs: Runs) -> Path:
    return Path(runs.newest("PushedModel").custom_properties["pushed_destination"].string_value)


def _serving_folder(runs: Runs) -> Path:
    shutil.rmtree(runs.push_directory)
    return _pushed(runs) / "saved_model.pb"


def _pushed_graph(runs: Runs) -> Path:
    (_pushed(runs) / "saved_model.pb").unlink()
    return _pushed(runs) / "saved_model.pb"


def _pushed_graph_changed(runs: Runs) -> Path:
    (_pushed(runs) / "saved_model.pb").write_text("?")
    return _pushed(runs) / "saved_model.pb"


def _model_file(runs: Runs) -> Path:
    path = Path(runs.newest("Model").uri, "Format-Serving/variables/variables.index")
    path.unlink()
    return path


def _model_cut(runs: Runs) -> Path:
    path = Path(runs.newest("Model").uri, "Format-Serving/saved_model.pb")
    path.write_text("")
    return path


def _blessing(runs: Runs) -> Path:
    path = Path(runs.newest("ModelBlessing").uri, "BLESSED")
    path.unlink()
    return path


def _pointer(runs: Runs) -> Path:
    path = Path(runs.newest("PushedModel").uri, "pushed.json")
    path.unlink()
    return path


def _newest_version(runs: Runs) -> tuple[str, int]:
    folder = runs.push_directory / runs.versions()[-1]
    return folder.name, folder.stat().st_ctime_ns


@pytest.mark.parametrize(
    ("damage", "again", "pushed_again"),
    [
        (_serving_folder, ["SavedModelPusher"], True),
        (_pushed_graph, ["SavedModelPusher"], True),
        (_pushed_graph_changed, ["SavedModelPusher"], True),
        (_pointer, ["SavedModelPusher"], False),
        (_blessing, ["StubEvaluator", "SavedModelPusher"], False),
        (_model_file, ["StubTrainer", "StubEvaluator", "SavedModelPusher"], False),
        (_model_cut, ["StubTrainer", "StubEvaluator", "SavedModelPusher"], False),
    ],
)
def test_a_damaged_output_is_made_again_with_what_depends_on_it(
    damage: Callable[[Runs], Path],
    again: list[str],
    pushed_again: bool,
    runs: Runs,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "cocoflow")
    before = _newest_version(runs)
    damaged = damage(runs)
    assert runs() == CACHED | dict.fromkeys(again, "COMPLETE")
    told = [record.getMessage() for record in caplog.records if record.name == "cocoflow.run"]
    assert [message for message in told if str(damaged) in message and "is not reused" in message]
    assert told[0].startswith(f"{again[0]}: ")
    assert (_newest_version(runs) != before) == pushed_again
    assert (_pushed(runs) / "saved_model.pb").read_text() == "1"
    assert _pushed(runs).name == runs.versions()[-1]
    assert runs() == CACHED


def test_a_version_that_retention_removed_is_not_told_as_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cocoflow.run")
    runs, two = Runs(tmp_path / "run"), PushConfig(keep_versions=2)
    runs(seed=1, push=two)
    first = _pushed(runs)
    runs(seed=2, push=two)
    assert "not reused" not in caplog.text
    runs(seed=3, push=two)
    assert not first.exists()
    told = [(record.levelname, record.getMessage()) for record in caplog.records if "reused" in record.getMessage()]
    sentence = f"SavedModelPusher: {first} was removed by push.keep_versions, so its push is not reused"
    assert told == [("INFO", sentence)]
    caplog.clear()
    shutil.rmtree(_pushed(runs))  # by somebody else
    assert runs(seed=1, push=two) == CACHED | {"SavedModelPusher": "COMPLETE"}
    [lost] = [record for record in caplog.records if "reused" in record.getMessage()]
    assert lost.levelname == "WARNING"
    assert lost.getMessage().endswith("saved_model.pb is missing, so this result is not reused")


def test_a_model_whose_files_are_gone_is_no_baseline(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs(seed=1)
    runs(seed=2)
    first, second = sorted(runs.store().get_artifacts_by_type("Model"), key=lambda model: int(model.id))
    blessing = runs.newest("ModelBlessing").custom_properties
    assert blessing["baseline_model_id"].int_value == first.id
    shutil.rmtree(first.uri)
    assert runs(seed=2) == CACHED | {"StubEvaluator": "COMPLETE", "SavedModelPusher": "COMPLETE"}
    blessing = runs.newest("ModelBlessing").custom_properties
    assert blessing["current_model_id"].int_value == second.id
    assert "baseline_model_id" not in blessing
    assert len(runs.versions()) == 2, "the newest version holds this model already"


def test_metadata_that_were_lost_do_not_mix_old_outputs_with_new_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs = Runs(tmp_path)
    runs(seed=1)
    (runs.artifacts / "mine" / "notes" / "7").mkdir(parents=True)
    Path(runs.layout.metadata).unlink()
    runs.seen = 0
    assert set(runs(seed=2).values()) == {"COMPLETE"}
    [aside] = Path(runs.layout.unregistered).iterdir()
    [old] = aside.glob("StubTrainer/model/*/Format-Serving/saved_model.pb")
    assert old.read_text() == "1"
    [new] = runs.artifacts.glob("StubTrainer/model/*/Format-Serving/saved_model.pb")
    assert new.read_text() == "2"
    assert (runs.artifacts / "mine" / "notes" / "7").is_dir()
    assert f"{aside}: set aside, as metadata.sqlite does not list" in caplog.text


def _kill_last_execution(runs: Runs) -> list[Path]:
    """Leaves what a kill in the trainer leaves; returns its folders."""
    from ml_metadata.proto import metadata_store_pb2 as mlmd

    store = runs.store()
    [trained] = [one for one in store.get_executions() if one.type.endswith("StubTrainer")][:1]
    contexts = [one for one in store.get_contexts_by_execution(trained.id) if one.type == "node"]
    dead = mlmd.Execution(type_id=trained.type_id, last_known_state=mlmd.Execution.RUNNING)
    dead_id, _, _ = store.put_execution(dead, [], contexts)
    node = runs.artifacts / "StubTrainer"
    folders = [
        node / "model" / str(dead_id),
        node / ".system" / "executor_execution" / str(dead_id),
        node / ".system" / "stateful_working_dir" / str(uuid.uuid4()),
    ]
    for folder in folders:
        (folder / ".work" / "beam-temp-x").mkdir(parents=True)
        (folder / "half").touch()
    return folders


def test_a_killed_execution_is_closed_and_its_folders_go(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    from ml_metadata.proto import metadata_store_pb2 as mlmd

    caplog.set_level(logging.INFO, "cocoflow")
    folders = _kill_last_execution(runs)
    node = runs.artifacts / "StubTrainer"
    mine = [
        node / "model" / "mine",
        node / "model" / f".{folders[0].name}.0123abcd.tmp",
        node / ".system" / "stateful_working_dir" / "mine",
        runs.artifacts / "mine" / folders[0].name,
    ]
    for folder in mine:
        folder.mkdir(parents=True)
    assert runs()["StubTrainer"] == "CACHED"
    assert not [folder for folder in folders if folder.exists()]
    assert all(folder.is_dir() for folder in mine)
    states = {execution.last_known_state for execution in runs.store().get_executions()}
    assert states == {mlmd.Execution.COMPLETE, mlmd.Execution.CACHED, mlmd.Execution.FAILED}
    assert "an earlier run was interrupted in StubTrainer" in caplog.text
    for folder in mine:
        folder.rmdir()


def test_outputs_of_other_executions_are_never_removed(runs: Runs) -> None:
    from pipelines.runs.metadata import open_run_store
    from pipelines.runs.repair import close_dead_executions, remove_dead_folders

    before = sorted(path for path in runs.artifacts.rglob("*") if ".system" not in path.parts)
    assert close_dead_executions(open_run_store(runs.database)) == []
    remove_dead_folders(open_run_store(runs.database), str(runs.artifacts))
    after = sorted(path for path in runs.artifacts.rglob("*") if ".system" not in path.parts)
    assert after == before


def results_of(database: MetadataDatabase, run_id: str) -> Any:
    from pipelines.runs.results import read_nodes, read_results

    return read_results(read_nodes(database.open(), run_id))


def test_a_run_without_an_evaluation_is_told_so(runs: Runs) -> None:
    runs()
    with pytest.raises(CocoflowError, match="the run has no evaluation: its component did not run"):
        results_of(runs.database, runs.run_id)
    with pytest.raises(CocoflowError, match="the run has no evaluation"):
        results_of(runs.database, "no such run")


class ByHand:
    """A store with runs that were never run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.database = MetadataDatabase.of_file(root / "metadata.sqlite")

    def add(self, run_id: str, ap: float) -> None:
        """A run whose evaluation has this AP."""
        import json

        from ml_metadata.proto import metadata_store_pb2 as mlmd

        from tests.pipelines.runs.test_artifact_files import whole

        store = self.database.open()
        kind = store.put_context_type(mlmd.ContextType(name="pipeline_run"))
        run = mlmd.Context(type_id=kind, name=run_id)
        node = mlmd.Context(type_id=store.put_context_type(mlmd.ContextType(name="node")), name="my.run.Stub")
        execution_type = store.put_execution_type(mlmd.ExecutionType(name="stub"))
        execution = mlmd.Execution(type_id=execution_type, last_known_state=mlmd.Execution.COMPLETE)
        pairs = []
        for key, name in (
            ("evaluation", "ModelEvaluation"),
            ("model_run", "ModelRun"),
            ("pushed_model", "PushedModel"),
        ):
            folder = self.root / run_id / key
            folder.mkdir(parents=True)
            artifact = whole(name, folder)
            artifact.ClearField("id")
            artifact.type_id = store.put_artifact_type(mlmd.ArtifactType(name=name), can_add_fields=True)
            event = mlmd.Event(type=mlmd.Event.OUTPUT)
            event.path.steps.add().key = key
            pairs.append((artifact, event))
        (self.root / run_id / "evaluation/5/metrics.json").write_text(
            json.dumps({"metrics": {"AP": ap}, "iou_type": "bbox", "per_category": []})
        )
        verdict = {"blessed": True, "reasons": [], "baseline": None}
        (self.root / run_id / "evaluation/5/blessing.json").write_text(json.dumps(verdict))
        store.put_execution(execution, pairs, [run, node], reuse_context_if_already_exist=True)


def test_results_are_those_of_the_run_and_not_of_the_newest(tmp_path: Path) -> None:
    store = ByHand(tmp_path)
    store.add("first", 0.25)
    store.add("second", 0.75)
    results = results_of(store.database, "first")
    assert results.metrics == {"AP": 0.25}
    assert results.pushed == str(tmp_path / "first" / "pushed_model" / "serving" / "7")
    assert list(results.nodes) == ["Stub"]
    assert results_of(store.database, "second").metrics == {"AP": 0.75}


@pytest.mark.parametrize("gone", ["pushed_model/serving", "evaluation/5/metrics.json", "model_run/5/checkpoints"])
def test_results_name_no_folder_that_is_gone(tmp_path: Path, gone: str) -> None:
    store = ByHand(tmp_path)
    store.add("run", 0.5)
    (tmp_path / "run" / gone).rename(tmp_path / "away")
    with pytest.raises(DataError, match=r"run/.*: missing, though this run produced or reused it\. Run again"):
        results_of(store.database, "run")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metrics.json", "{", "Invalid JSON"),
        ("metrics.json", "[]", "Input should be an object"),
        ("blessing.json", "{}", "blessed: Field required"),
    ],
)
def test_an_evaluation_that_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    store = ByHand(tmp_path)
    store.add("run", 0.5)
    (tmp_path / "run/evaluation/5" / name).write_text(text)
    with pytest.raises(DataError, match=f"{name}: .*{message}"):
        results_of(store.database, "run")


def test_the_names_of_tfx_are_tfxs() -> None:
    from tfx.utils import path_utils

    from pipelines.runs.artifact_files import SERVING_DIR

    assert path_utils.serving_model_dir("model") == f"model/{SERVING_DIR}"
