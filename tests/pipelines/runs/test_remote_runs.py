"""The stub pipeline with all its folders on Cloud Storage, run and repaired as `run` does."""

import logging
import random
from typing import Any

import pytest

from components.history.records import Output
from components.history.store import read_executions
from detection.storage import files
from detection.storage.atomic import write_text
from detection.storage.file_system import UNFINISHED_MARKER
from detection.storage.files import read_text
from detection.storage.gcs import client
from detection.storage.paths import join
from pipelines.folders import RunLayout
from schemas.config.config import Config
from tests.storage_emulator.fixture import Bucket

pytestmark = pytest.mark.slow

NODES = ("DetectionTrainer", "CocoEvaluator", "SavedModelPusher")
DONE, REUSED = dict.fromkeys(NODES, "done"), dict.fromkeys(NODES, "reused")


class RemoteRuns:
    """Runs the stub pipeline again and again below a remote folder."""

    def __init__(self, root: str) -> None:
        self.layout = RunLayout(Config.model_validate({"run": {"root": root}}))

    def __call__(self, *, seed: int = 1) -> dict[str, str]:
        """Returns the state of each node: "done" or "reused"."""
        from tests.pipelines.baseline_stubs import make_nodes
        from tests.pipelines.stub_runs import run_nodes

        root = self.layout.root
        states = run_nodes(make_nodes(root, seed=seed, blessed=1), root)
        return {name: state for name, state in states.items() if name in NODES}

    def newest(self, component: str, name: str) -> Output:
        return read_executions(self.layout.root, component)[-1].output(name)

    def versions(self) -> list[str]:
        return [name for name in files.list_folders(self.layout.push_directory) if name.isdecimal()]


@pytest.fixture
def runs(gcs: Bucket) -> RemoteRuns:
    return RemoteRuns(f"{gcs.path}/run")


def test_a_run_on_cloud_storage_is_reused_by_the_next(runs: RemoteRuns) -> None:
    assert runs() == DONE
    [version] = runs.versions()
    assert read_text(join(runs.layout.push_directory, version, "saved_model.pb")) == "1"
    assert runs() == REUSED
    assert runs.versions() == [version]


def test_what_is_unchanged_is_not_downloaded_to_be_checked(runs: RemoteRuns, gcs: Bucket) -> None:
    runs()
    gcs.emulator.requests()
    assert runs() == REUSED
    read = [one["target"] for one in gcs.emulator.requests() if "alt=media" in one["target"]]
    assert not [target for target in read if "saved_model.pb" in target or "variables" in target]


def test_a_damaged_output_is_made_again_with_what_depends_on_it(
    runs: RemoteRuns, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "cocoflow")
    runs()
    pushed = str(runs.newest("SavedModelPusher", "pushed_model").properties["pushed_destination"])
    files.remove_file(join(pushed, "variables", "variables.index"))
    assert runs() == REUSED | {"SavedModelPusher": "done"}
    assert f"{pushed}/variables/variables.index is missing" in caplog.text
    assert read_text(join(runs.layout.push_directory, runs.versions()[-1], "saved_model.pb")) == "1"
    model = join(runs.newest("DetectionTrainer", "model").uri, "config.yaml")
    write_text(model, "2")
    assert runs() == DONE
    assert f"DetectionTrainer: {model} was changed" in caplog.text
    before = runs.versions()
    write_text(join(runs.newest("DetectionTrainer", "model").uri, "Format-Serving", "saved_model.pb"), "longer")
    assert runs() == DONE
    assert runs.versions() == before, "the newest version holds this model already"
    assert "has 6 bytes instead of 1" in caplog.text


VERSION = ["assets.extra/pushed.json", "saved_model.pb", "variables/variables.index"]  # files of a pushed model


def _disturbed(runs: RemoteRuns, gcs: Bucket, seed: int) -> bool:
    """A run with a fault somewhere; returns whether there was one."""
    chance = random.Random(seed)
    rule: dict[str, Any] = {"skip": chance.randrange(60), "times": 0 if chance.random() < 0.5 else 12}
    rule["method"] = chance.choice(["write", "", "GET", "POST", "PUT", "DELETE"])
    status: list[dict[str, Any]] = [{"action": "status", "status": number} for number in (403, 503)]
    rule |= chance.choice([*status, {"action": "reset"}])
    rule["after"] = rule["method"] not in ("", "GET") and chance.random() < 0.3
    gcs.emulator.fail(**rule)
    try:
        runs()
    except Exception:
        logging.getLogger(__name__).info("the run of seed %d failed", seed, exc_info=True)
    return gcs.emulator.clear() > 0


@pytest.mark.parametrize(
    "seed", [0, 2, *(pytest.param(seed, marks=pytest.mark.extended) for seed in (1, *range(3, 103)))]
)
def test_after_any_fault_the_next_run_finishes_and_nothing_is_pushed_twice(
    seed: int, runs: RemoteRuns, gcs: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "RETRY_SECONDS", 2.0)  # that an outage of every request lasts, instead of two minutes
    _disturbed(runs, gcs, seed)
    for version in runs.versions():
        folder = join(runs.layout.push_directory, version)
        whole = files.walk_files(folder) == VERSION
        assert whole or not files.is_file(join(folder, "saved_model.pb")), "half a version looks whole"
    assert set(runs().values()) <= {"done", "reused"}
    assert runs() == REUSED
    [version] = [
        one for one in runs.versions() if files.walk_files(join(runs.layout.push_directory, one)) != [UNFINISHED_MARKER]
    ]
    assert set(runs(seed=2).values()) == {"done"}  # removes what failed publications left
    versions = [version, runs.versions()[-1]]
    assert files.walk_files(runs.layout.push_directory) == [f"{one}/{name}" for one in versions for name in VERSION]
