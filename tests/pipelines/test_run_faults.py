"""Whole runs on Cloud Storage that meet faults and kills: nothing half-made is seen, the re-run finishes, one push."""

import json
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detection.storage import files
from detection.storage.json_files import read_json
from detection.storage.paths import join
from schemas.artifacts import SUMMARY_JSON
from tests.forked_calls import ForkedCalls, forked_calls
from tests.storage_emulator.client import Emulator
from tests.storage_emulator.fixture import Bucket
from tests.storage_emulator.folders import upload

# Each story has five faults and takes minutes: 40 of them make the 200.
pytestmark = [pytest.mark.extended, pytest.mark.slow, pytest.mark.e2e]

FAULTS = 5


def run(root: str, data: str, serving: str) -> None:
    """The program's command `run` with few steps."""
    import pipeline_runner
    from detection.storage.gcs import client
    from tests.pipelines.small_run import FEW_STEPS

    # An outage of every request ends each after this long instead of two minutes.
    client.FIRST_DELAY, client.RETRY_SECONDS = 0.01, 2.0
    keys = (*FEW_STEPS, "train.checkpoint_every=1", f"run.root={root}", f"push.directory={serving}")
    code = pipeline_runner.main(["run", "--data", data, *(part for key in keys for part in ("--set", key))])
    assert code == 0


@pytest.fixture(scope="module")
def call(storage_emulator: Emulator) -> Iterator[ForkedCalls]:
    modules = ("pipelines.pipeline", "pipelines.runs.execute", "detection.training.train", "tensorflow_data_validation")
    with forked_calls(*modules, environment=storage_emulator.environment()) as calls:
        yield calls


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, call: ForkedCalls, digits: Path) -> dict[str, Any]:
    """The summary of a local run."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert call(f"{__name__}:run", str(folder / "run"), str(digits), str(folder / "serving")) == 0
    return dict(json.loads((folder / "run" / SUMMARY_JSON).read_text()))


def _rule(chance: random.Random) -> dict[str, Any]:
    """A fault at a random request."""
    action = chance.choice(["kill", "kill", "status", "reset"])
    rule: dict[str, Any] = {"action": action, "skip": int(2 ** chance.uniform(0, 9)), "path": "/b/"}
    rule["method"] = chance.choice(["write", "write", "", "POST", "DELETE"])
    rule["after"] = rule["method"] != "" and chance.random() < 0.4
    if action != "kill":
        rule |= {"status": chance.choice([403, 503]), "times": chance.choice([1, 20, 0])}
    return rule


def _require_whole_versions(serving: str, names: list[str]) -> None:
    for version in files.list_folders(serving):
        folder = join(serving, version)
        if version.isdecimal() and files.is_file(join(folder, "saved_model.pb")):
            assert files.walk_files(folder) == names


@pytest.mark.parametrize("seed", range(40))
def test_after_five_faults_the_run_finishes_with_the_same_metrics_and_one_push(
    seed: int, gcs: Bucket, call: ForkedCalls, digits: Path, undisturbed: dict[str, Any]
) -> None:
    chance = random.Random(seed)
    data, root, serving = (f"{gcs.path}/{name}" for name in ("data", "run", "serving"))
    upload(digits, data)
    names = files.walk_files(undisturbed["pushed_path"])
    for _ in range(FAULTS):
        rule = _rule(chance)

        def disturb(process: int, rule: dict[str, Any] = rule) -> None:
            gcs.emulator.fail(**rule | ({"process": process} if rule["action"] == "kill" else {}))

        code = call(f"{__name__}:run", root, data, serving, prepare=disturb)
        assert code in (0, 1, -signal.SIGKILL)
        gcs.emulator.clear()
        _require_whole_versions(serving, names)
        if files.is_file(join(root, SUMMARY_JSON)):
            assert read_json(join(root, SUMMARY_JSON))["metrics"] == undisturbed["metrics"]
    assert call(f"{__name__}:run", root, data, serving) == 0
    summary = read_json(join(root, SUMMARY_JSON))
    assert summary["metrics"] == undisturbed["metrics"]
    assert files.list_folders(serving) == [summary["pushed_path"].rsplit("/", 1)[1]]
    _require_whole_versions(serving, names)
