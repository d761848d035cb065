"""The runs of a `run.root`: the records of runs, joined with what components recorded on other platforms."""

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import ValidationError

from components.history.read import read_executions
from components.history.records import READERS, Record, read_records, recorded_runs, time_of
from components.run_report.report import NODE, run_fields, started
from components.selection.usable import rolled_back_versions
from detection.storage.files import is_file
from detection.storage.paths import join, parent
from pipelines.runs.history import RunHistory, duration, newest_first
from pipelines.runs.run_record import DONE, FAILED, SUBMITTED, RunRecord
from schemas.artifacts import SAVED_MODEL_FILE
from schemas.errors import CocoflowError

LIVE, ROLLED_BACK, REMOVED = "live", "rolled back", "removed"
_UNRECORDED = "not recorded"  # trigger of a run without a record of its own, such as that of a schedule in the cloud

_LOGGER = logging.getLogger("cocoflow.status")


def read_runs(root: str) -> list[RunRecord]:
    """Reads the runs, the one that started last first; warns of those that cannot be read.

    A submitted run with a report is done; one whose newest record is a failure has failed.  A report of a run that has
    no record of its own is a run, too.

    Raises:
        DataError: a record of a component cannot be read.
    """
    known = {run.id: run for run in RunHistory(root).read_all()}
    submitted = {run.id for run in known.values() if run.state == SUBMITTED}
    reported = recorded_runs(root, NODE)
    reports = read_records(root, NODE, runs=(reported & submitted) | (reported - known.keys()))
    found = {report.run: _reported(known.get(report.run), report) for report in reports}
    newest = {record.run: record for record in read_executions(root, submitted - reported)}
    failed = {run: _failed(known[run], record) for run, record in newest.items() if record.error is not None}
    runs = {**known, **failed, **{id_: run for id_, run in found.items() if run is not None}}
    return newest_first(runs.values())


def _reported(run: RunRecord | None, report: Record) -> RunRecord | None:
    """Returns a run with what its report says; None, with a warning, if that is invalid."""
    try:
        own = {"id": report.run, "trigger": _UNRECORDED, "runner": "", "started": started(report)}
        return _closed(own if run is None else run.model_dump(), report, {"state": DONE, **run_fields(report)})
    except (CocoflowError, ValidationError) as error:
        _LOGGER.warning("%s: its report is left out: %s", report.run, error)
        return run


def _failed(run: RunRecord, record: Record) -> RunRecord:
    error = None if record.error is None else f"{record.component}: {record.error.text}"
    return _closed(run.model_dump(), record, {"state": FAILED, "error": error})


def _closed(run: Mapping[str, Any], record: Record, fields: Mapping[str, Any]) -> RunRecord:
    closed = RunRecord.model_validate({**run, **fields, "ended": time_of(record.ended).isoformat()})
    return closed.model_copy(update={"seconds": max(duration(closed, str(closed.ended)), 0.0)})


def push_states(root: str, versions: Iterable[str]) -> dict[str, str]:
    """Returns the states of pushed versions by path: `LIVE`, `ROLLED_BACK`, or `REMOVED`, also by hand.

    Raises:
        DataError: a record or a folder cannot be read.
    """
    paths = sorted({*versions})
    with ThreadPoolExecutor(READERS) as pool:
        exists = list(pool.map(lambda path: is_file(join(path, SAVED_MODEL_FILE)), paths))
    refused = {path for directory in {*map(parent, paths)} for path in rolled_back_versions(root, directory)}
    return {
        path: REMOVED if not is_there else ROLLED_BACK if path in refused else LIVE
        for path, is_there in zip(paths, exists, strict=True)
    }
