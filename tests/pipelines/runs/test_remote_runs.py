"""The stub pipeline with all its folders on Cloud Storage, run and repaired as `run` does."""

import logging
import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from detection.storage import files
from detection.storage.atomic import write_text
from detection.storage.lock import exclusive_use
from detection.storage.paths import join
from detection.storage.reading import read_text
from pipelines.folders import RunLayout
from pipelines.metadata_database import MetadataDatabase
from pipelines.runs.local_files import local_files
from schemas.config.config import Config
from tests.storage_emulator.fixture import Bucket

pytestmark = pytest.mark.slow

DONE = {"StubTrainer": "COMPLETE", "StubEvaluator": "COMPLETE", "SavedModelPusher": "COMPLETE"}
CACHED = dict.fromkeys(DONE, "CACHED")


class RemoteRuns:
    """Repairs, runs and records the stub pipeline below a remote folder."""

    def __init__(self, root: str) -> None:
        self.layout = RunLayout(Config.model_validate({"run": {"root": root}}))

    @contextmanager
    def database(self) -> Iterator[Path]:
        with exclusive_use(self.layout.root, instead="") as use, local_files(self.layout, use) as local:
            yield local.database

    def __call__(self, *, seed: int = 1, blessed: int = 1, runner: str = "local") -> dict[str, str]:
        """Returns the state of each node's execution in this run."""
        from pipelines.runners.local import RUNNERS
        from pipelines.runs.repair import record_outputs, repair
        from tests.pipelines.baseline_stubs import create_pipeline

        with self.database() as database:
            pipeline = create_pipeline(self.layout.root, seed=seed, blessed=blessed, database=database)
            repair(self.layout, MetadataDatabase.of_file(database), [component.id for component in pipeline.components])
            run_id = f"{uuid.uuid4()}.1"
            RUNNERS[runner](pipeline, run_id)
            record_outputs(self.layout, MetadataDatabase.of_file(database))
            store = MetadataDatabase.of_file(database).open()
            run = store.get_context_by_type_and_name("pipeline_run", run_id)
            executions = store.get_executions_by_context(run.id)
            names = {one.type.rpartition(".")[2]: one.State.Name(one.last_known_state) for one in executions}
            return {name: state for name, state in names.items() if name in DONE}

    def newest(self, kind: str) -> Any:

        with self.database() as database:
            return max(
                MetadataDatabase.of_file(database).open().get_artifacts_by_type(kind), key=lambda artifact: artifact.id
            )

    def versions(self) -> list[str]:
        return [name for name in files.list_folders(self.layout.push_directory) if name.isdecimal()]


@pytest.fixture
def runs(gcs: Bucket) -> RemoteRuns:
    return RemoteRuns(f"{gcs.path}/run")


@pytest.mark.parametrize("runner", ["local", "beam"])
def test_a_run_on_cloud_storage_is_reused_by_the_next(runner: str, runs: RemoteRuns) -> None:
    assert runs(runner=runner) == DONE
    [version] = runs.versions()
    assert read_text(join(runs.layout.push_directory, version, "saved_model.pb")) == "1"
    assert runs(runner=runner) == CACHED
    assert runs.versions() == [version]


def test_what_is_unchanged_is_not_downloaded_to_be_checked(runs: RemoteRuns, gcs: Bucket) -> None:
    runs()
    gcs.emulator.requests()
    assert runs() == CACHED
    read = [one["target"] for one in gcs.emulator.requests() if "alt=media" in one["target"]]
    assert not [target for target in read if "saved_model.pb" in target or "variables" in target]


def test_a_damaged_output_is_made_again_with_what_depends_on_it(
    runs: RemoteRuns, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "cocoflow")
    runs()
    pushed = runs.newest("PushedModel").custom_properties["pushed_destination"].string_value
    files.remove_file(join(pushed, "variables", "variables.index"))
    assert runs() == CACHED | {"SavedModelPusher": "COMPLETE"}
    assert f"{pushed}/variables/variables.index is missing" in caplog.text
    assert read_text(join(runs.layout.push_directory, runs.versions()[-1], "saved_model.pb")) == "1"
    model = join(runs.newest("Model").uri, "config.yaml")
    write_text(model, "2")
    assert runs() == DONE
    assert f"StubTrainer: {model} was changed" in caplog.text
    before = runs.versions()
    write_text(join(runs.newest("Model").uri, "Format-Serving", "saved_model.pb"), "longer")
    assert runs() == DONE
    assert runs.versions() == before, "the newest version holds this model already"
    assert "has 6 bytes instead of 1" in caplog.text


def test_metadata_that_were_lost_do_not_mix_old_outputs_with_new_ones(
    runs: RemoteRuns, caplog: pytest.LogCaptureFixture
) -> None:
    runs(seed=1)
    files.remove_file(runs.layout.metadata)
    assert runs(seed=2) == DONE
    [aside] = files.list_folders(runs.layout.unregistered)
    [old] = files.glob(join(runs.layout.unregistered, aside, "StubTrainer/model/*/Format-Serving/saved_model.pb"))
    assert read_text(old) == "1"
    [new] = files.glob(join(runs.layout.artifacts, "StubTrainer/model/*/Format-Serving/saved_model.pb"))
    assert read_text(new) == "2"
    assert "set aside, as metadata.sqlite does not list" in caplog.text


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


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(3, 103))])
def test_after_any_fault_the_next_run_finishes_and_nothing_is_pushed_twice(
    seed: int, runs: RemoteRuns, gcs: Bucket
) -> None:
    _disturbed(runs, gcs, seed)
    for version in runs.versions():
        folder = join(runs.layout.push_directory, version)
        whole = files.walk_files(folder) == ["saved_model.pb", "variables/variables.index"]
        assert whole or not files.is_file(join(folder, "saved_model.pb")), "half a version looks whole"
    assert set(runs().values()) <= {"COMPLETE", "CACHED"}
    assert runs() == CACHED
    [version] = runs.versions()
    assert files.walk_files(runs.layout.push_directory) == [
        f"{version}/saved_model.pb",
        f"{version}/variables/variables.index",
    ]
