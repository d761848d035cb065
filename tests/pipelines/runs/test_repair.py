"""Runs of little pipelines over damaged outputs and after kills; TFX takes 20 s to import: imported inside."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from components.history.queries import History
from components.history.records import Output
from components.history.store import read_executions
from pipelines.folders import RunLayout
from pipelines.runs.execute import sweep
from schemas.config.config import Config, PushConfig

pytestmark = pytest.mark.slow

NODES = ("DetectionTrainer", "previous_blessed_model", "CocoEvaluator", "SavedModelPusher")
REUSED = dict.fromkeys(NODES, "reused") | {"previous_blessed_model": "done"}


class Runs:
    """Runs the stub pipeline again and again below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.layout = RunLayout(Config.model_validate({"run": {"root": str(root)}}))
        self.artifacts, self.push_directory = Path(self.layout.artifacts), Path(self.layout.push_directory)

    def __call__(self, *, seed: int = 1, blessed: int = 1, push: PushConfig | None = None) -> dict[str, str]:
        """Returns the state of each node: "done" or "reused"."""
        from tests.pipelines.baseline_stubs import make_nodes
        from tests.pipelines.stub_runs import run_nodes

        return run_nodes(make_nodes(str(self.root), seed=seed, blessed=blessed, push=push), self.root)

    def newest(self, component: str, name: str) -> Output:
        return read_executions(str(self.root), component)[-1].output(name)

    def versions(self) -> list[str]:
        return sorted(path.name for path in self.push_directory.iterdir())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with one run."""
    root = tmp_path_factory.mktemp("finished") / "run"
    assert set(Runs(root)().values()) == {"done"}
    return root


@pytest.fixture
def runs(finished: Path, tmp_path: Path) -> Runs:
    """A copy of the finished run folder: a root of its own."""
    return Runs(Path(shutil.copytree(finished, tmp_path / "run")))


def _pushed(runs: Runs) -> Path:
    return Path(str(runs.newest("SavedModelPusher", "pushed_model").properties["pushed_destination"]))


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
    path = Path(runs.newest("DetectionTrainer", "model").uri, "Format-Serving/variables/variables.index")
    path.unlink()
    return path


def _model_cut(runs: Runs) -> Path:
    path = Path(runs.newest("DetectionTrainer", "model").uri, "Format-Serving/saved_model.pb")
    path.write_text("")
    return path


def _blessing(runs: Runs) -> Path:
    path = Path(runs.newest("CocoEvaluator", "blessing").uri, "BLESSED")
    path.unlink()
    return path


def _pointer(runs: Runs) -> Path:
    path = Path(runs.newest("SavedModelPusher", "pushed_model").uri, "pushed.json")
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
        (_blessing, ["CocoEvaluator", "SavedModelPusher"], False),
        (_model_file, ["DetectionTrainer", "CocoEvaluator", "SavedModelPusher"], False),
        (_model_cut, ["DetectionTrainer", "CocoEvaluator", "SavedModelPusher"], False),
    ],
)
def test_a_damaged_output_is_made_again_with_what_depends_on_it(
    damage: Callable[[Runs], Path], again: list[str], pushed_again: bool, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "cocoflow")
    before = _newest_version(runs)
    damaged = damage(runs)
    assert runs() == REUSED | dict.fromkeys(again, "done")
    told = [record.getMessage() for record in caplog.records if record.name == "cocoflow.history"]
    assert [message for message in told if str(damaged) in message and "is not reused" in message]
    assert told[0].startswith(f"{again[0]}: ")
    assert (_newest_version(runs) != before) == pushed_again
    assert (_pushed(runs) / "saved_model.pb").read_text() == "1"
    assert _pushed(runs).name == runs.versions()[-1]
    assert runs() == REUSED


def test_a_version_that_retention_removed_is_not_told_as_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cocoflow.history")
    runs, two = Runs(tmp_path / "run"), PushConfig(keep_versions=2)
    runs(seed=1, push=two)
    first = _pushed(runs)
    runs(seed=2, push=two)
    assert "not reused" not in caplog.text
    runs(seed=3, push=two)
    assert not first.exists()
    assert "reused" not in caplog.text
    assert runs(seed=1, push=two) == REUSED | {"SavedModelPusher": "done"}
    told = [(record.levelname, record.getMessage()) for record in caplog.records if "not reused" in record.getMessage()]
    sentence = f"SavedModelPusher: {first} was removed by push.keep_versions, so its push is not reused"
    assert told == [("INFO", sentence)]
    caplog.clear()
    gone = _pushed(runs) / "saved_model.pb"
    shutil.rmtree(gone.parent)  # by somebody else
    assert runs(seed=1, push=two) == REUSED | {"SavedModelPusher": "done"}
    lost = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"SavedModelPusher: {gone} is missing, so this result is not reused" in lost


def test_a_model_whose_files_are_gone_is_no_baseline(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    runs(seed=1)
    runs(seed=2)
    first, second = History(str(tmp_path)).models.values()
    assert read_executions(str(tmp_path), "CocoEvaluator")[-1].inputs["baseline_model"] == [first.uri]
    shutil.rmtree(first.uri)
    assert runs(seed=2) == REUSED | {"CocoEvaluator": "done", "SavedModelPusher": "done"}
    assert read_executions(str(tmp_path), "CocoEvaluator")[-1].inputs == {"baseline_model": [], "model": [second.uri]}
    assert len(runs.versions()) == 2, "the newest version holds this model already"


def test_a_copy_reuses_its_own_outputs_and_never_the_originals(runs: Runs, finished: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    assert runs() == REUSED
    shutil.rmtree(runs.newest("DetectionTrainer", "model").uri)
    assert runs()["DetectionTrainer"] == "done"
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before
    for component in NODES:
        for record in read_executions(str(runs.root), component):
            uris = [uri for listed in record.inputs.values() for uri in listed]
            assert all(uri.startswith(f"{runs.root}/") for uri in uris)


def test_half_made_outputs_of_ended_runs_go_and_others_stay(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cocoflow")
    node = runs.artifacts / "DetectionTrainer" / "model"
    mine = [node / "mine", node / "7", node / "other.1", node / "killed", runs.artifacts / "mine/model/killed.1"]
    for folder in (node / "killed.1", node / "killed.2", *mine):
        folder.mkdir(parents=True)
        (folder / "half").touch()
    recorded = Path(runs.newest("DetectionTrainer", "model").uri)
    ended = {"killed", recorded.name.partition(".")[0]}
    sweep(runs.layout, ["DetectionTrainer", "CocoEvaluator"], ended)
    assert sorted(node.iterdir()) == sorted([*mine[:-1], recorded])
    assert mine[-1].is_dir()
    assert "removed folders of killed or failed runs: 2" in caplog.text
    assert runs() == REUSED
