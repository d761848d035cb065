"""Records on a disk and on Cloud Storage."""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from components.history.queries import History
from components.history.records import Execution, Failure, Output, time_of
from components.history.store import config_path, read_executions, store_config, write_execution
from detection.storage.atomic import create_json, write_json
from detection.storage.files import list_folder
from detection.storage.json_files import read_json
from schemas.errors import DataError
from tests.storage_emulator.fixture import Bucket

STARTED = datetime(2026, 11, 23, tzinfo=UTC)


def _record(root: str, **fields: Any) -> Execution:
    return Execution(
        "DetectionTrainer",
        "done",
        run="mine",
        key="0123456789abcdef",
        parameters={"steps": 3, "split": "train", "directory": f"{root}/serving"},
        inputs={"examples": [f"{root}/artifacts/e/1"], "base_model": ["gs://other/model"]},
        outputs={"model": [Output(f"{root}/artifacts/m/1", "Model", {"n": 1, "x": 0.5, "to": f"{root}/serving/7"})]},
        **fields,
    )


@pytest.mark.parametrize("place", ["local", "gs"])
def test_records_are_read_as_they_were_written_in_the_order_of_their_ends(
    place: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    root = str(tmp_path / "run") if place == "local" else f"{request.getfixturevalue('gcs').path}/run"
    failed = Execution("DetectionTrainer", "failed", run="mine", attempt=2, error=Failure("DataError", "no records"))
    for record in (_record(root), failed, _record(root)):
        write_execution(root, record, started=STARTED)
    read = read_executions(root, "DetectionTrainer")
    plain = [replace(one, started="", ended="", seconds=0.0, host="") for one in read]
    assert plain == [_record(root), failed, _record(root)]
    assert len({one.ended for one in read}) == 3
    assert read[0].seconds == pytest.approx((time_of(read[0].ended) - STARTED).total_seconds(), abs=1e-3)
    names = list_folder(f"{root}/history/DetectionTrainer")
    assert sorted(names) == names == [f"{one.ended}-{one.key}-mine.json" for one in read]
    assert read_executions(root, "CocoEvaluator") == []


@pytest.mark.parametrize("answer_lost", [False, True])
def test_a_record_is_a_new_object_and_a_lost_response_is_no_failure(answer_lost: bool, gcs: Bucket) -> None:
    root = f"{gcs.path}/run"
    gcs.emulator.requests()
    if answer_lost:
        gcs.emulator.fail("reset", method="write", path="/upload/", after=True)
    write_execution(root, _record(root), started=STARTED)
    assert gcs.emulator.clear() == answer_lost
    uploads = [one["target"] for one in gcs.emulator.requests() if one["target"].startswith("/upload/")]
    assert len(uploads) == 1 + answer_lost
    assert all("ifGenerationMatch=0" in target for target in uploads)
    [record] = read_executions(root, "DetectionTrainer")
    path = f"{root}/history/DetectionTrainer/{record.ended}-{record.key}-mine.json"
    create_json(path, read_json(path))
    with pytest.raises(DataError, match="another process wrote"):
        create_json(path, {})


def test_a_record_comes_after_those_of_a_clock_that_runs_ahead(tmp_path: Path) -> None:
    root = str(tmp_path)
    ahead = (datetime.now(UTC) + timedelta(days=3)).strftime("%Y%m%dT%H%M%S.%fZ")
    write_json(tmp_path / "history/DetectionTrainer" / f"{ahead}--.json", {"component": "c", "state": "done"})
    write_execution(root, _record(root), started=STARTED)
    first, second = read_executions(root, "DetectionTrainer")
    assert (first.component, second.run) == ("c", "mine")
    assert time_of(second.ended) - time_of(ahead) == timedelta(microseconds=1)


def test_a_copied_root_is_a_root_of_its_own(tmp_path: Path) -> None:
    first, copy = str(tmp_path / "first"), str(tmp_path / "copy")
    write_execution(first, _record(first), started=STARTED)
    assert first not in next(Path(first, "history/DetectionTrainer").iterdir()).read_text()
    shutil.copytree(first, copy)
    [record] = read_executions(copy, "DetectionTrainer")
    assert (record.inputs, record.outputs) == (_record(copy).inputs, _record(copy).outputs)


@pytest.mark.parametrize("change", [{"later": 1}, {"version": 2}])
def test_unknown_keys_are_left_out_and_a_later_version_is_refused(change: dict[str, int], tmp_path: Path) -> None:
    root = str(tmp_path)
    write_execution(root, _record(root), started=STARTED)
    [path] = (tmp_path / "history/DetectionTrainer").iterdir()
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    if "later" in change:
        assert len(read_executions(root, "DetectionTrainer")) == 1
    else:
        with pytest.raises(DataError, match=f"{path.name}: not a record of a run of this version: version"):
            read_executions(root, "DetectionTrainer")


def test_the_versions_that_a_push_removed_are_beside_its_own(tmp_path: Path) -> None:
    properties: dict[str, Any] = {"pushed_destination": f"{tmp_path}/serving/7", "removed_versions": '["3", "4"]'}
    push = Execution("SavedModelPusher", "done", outputs={"pushed_model": [Output("", "PushedModel", properties)]})
    assert History(str(tmp_path)).removed_versions == set()
    write_execution(str(tmp_path), push, started=STARTED)
    assert History(str(tmp_path)).removed_versions == {f"{tmp_path}/serving/{name}" for name in "34"}


def test_a_configuration_is_kept_once(tmp_path: Path) -> None:
    folder = str(tmp_path)
    digests = [store_config(folder, text) for text in ("a: 1\n", "a: 2\n", "a: 1\n")]
    assert digests[0] == digests[2] != digests[1]
    assert sorted(path.read_text() for path in (tmp_path / "history/configs").iterdir()) == ["a: 1\n", "a: 2\n"]
    assert Path(config_path(folder, digests[1])).read_text() == "a: 2\n"
