"""The journal of earlier versions, `<run.root>/watch/journal/<number>.json`: its newest entry as records of runs.

To be removed two releases after the first with plans in the records.
"""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter

from detection.storage.files import is_dir, list_folder
from detection.storage.json_files import parse_file
from detection.storage.paths import join
from pipelines.runs.history import RunHistory
from pipelines.runs.run_record import (
    DONE,
    GIVEN_UP,
    PLANNED,
    SKIPPED,
    ConfigCopy,
    DataRead,
    Moment,
    Plan,
    RunRecord,
)
from pipelines.watch.decisions import decision_id


class _Data(BaseModel):
    span: int
    version: int | None
    fingerprint: str
    config: str


class _Known(BaseModel):
    decided_until: Moment
    trained: _Data | None
    trained_by: str | None
    considered: _Data | None
    given_up: bool


class _Attempt(BaseModel):
    outcome: str | None


class _Entry(BaseModel):
    number: int
    time: Moment
    cause: Literal["begin", "cron", "new span"]
    reason: str
    known: _Known
    due: Moment | None
    data: _Data | None
    run_id: str | None
    outcome: str | None
    attempts: list[_Attempt]


_ENTRY = TypeAdapter(_Entry)


def adopt_journal(history: RunHistory, folder: str, source: str) -> RunRecord | None:
    """Writes what an earlier version knew into the records of runs.

    Args:
        history: records below `run.root`.
        folder: folder of `watch` below it.
        source: data set that the spans belong to.

    Returns:
        The record of the newest decision, written last; None: there is no journal.

    Raises:
        DataError: a file cannot be read or written.
    """
    journal = join(folder, "journal")
    names = sorted(name for name in list_folder(journal) if name.endswith(".json")) if is_dir(journal) else []
    if not names:
        return None
    remedy = f"Restore it, or move {journal} away: then `watch` begins anew."
    path = join(journal, names[-1])
    entry = parse_file(_ENTRY, path, what="an entry of the journal of `watch`", remedy=remedy)
    trained = entry.known.trained
    record = None if entry.known.trained_by is None else history.read(entry.known.trained_by)
    if record is not None and trained is not None:
        history.write(_with_inputs(record, trained, source))
    if entry.run_id is None or entry.data is None:
        record = _skipped(entry, source)
    else:
        record = history.read(entry.run_id) or _planned(entry, entry.run_id, entry.data)
        record = _decided(_with_inputs(record, entry.data, source), entry)
    history.write(record)
    return record


def _skipped(entry: _Entry, source: str) -> RunRecord:
    """Returns the record of a decision not to run."""
    considered = entry.known.considered
    data = None if considered is None else _data_read(considered, source)
    given_up = considered.config if considered is not None and entry.known.given_up else None
    record_id = decision_id(datetime.fromisoformat(entry.time), entry.number)
    return _record(entry, record_id, SKIPPED, data=data, plan=_plan(entry, considered=data, given_up=given_up))


def _planned(entry: _Entry, run_id: str, data: _Data) -> RunRecord:
    """Returns the record of a run that has not begun."""
    config = ConfigCopy(digest=data.config, path=f"watch/configs/{run_id}.yaml")
    return _record(entry, run_id, PLANNED, config=config)


def _record(entry: _Entry, record_id: str, state: str, **fields: Any) -> RunRecord:
    trigger = f"watch: {entry.cause}"
    return RunRecord(id=record_id, trigger=trigger, state=state, attempt=0, started=entry.time, **fields)


def _decided(record: RunRecord, entry: _Entry) -> RunRecord:
    """Returns the record of a run with the decision that led to it."""
    failures = sum(attempt.outcome == "failed" for attempt in entry.attempts)
    plan = _plan(entry, considered=record.data, failures=failures)
    gives_up = entry.outcome == "failed" and record.state != DONE
    return record.model_copy(update={"plan": plan, "state": GIVEN_UP if gives_up else record.state})


def _plan(entry: _Entry, **fields: Any) -> Plan:
    decided_until = entry.known.decided_until
    return Plan(cause=entry.cause, reason=entry.reason, due=entry.due, decided_until=decided_until, **fields)


def _with_inputs(record: RunRecord, data: _Data, source: str) -> RunRecord:
    """Returns a record with what its run read."""
    config = None if record.config is None else record.config.model_copy(update={"deciding": data.config})
    read = record.data or _data_read(data, source)
    read = read.model_copy(update={"input_fingerprint": data.fingerprint})
    return record.model_copy(update={"data": read, "config": config})


def _data_read(data: _Data, source: str) -> DataRead:
    return DataRead(source=source, span=data.span, version=data.version, input_fingerprint=data.fingerprint)
