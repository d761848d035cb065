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
from pipelines.runs.run_record import DONE, GIVEN_UP, PLANNED, SKIPPED, ConfigCopy, DataRead, Moment, Plan, RunRecord
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
    attempts: list[dict[str, Any]]


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
    known = entry.known
    trained = None if known.trained_by is None else history.read(known.trained_by)
    if trained is not None and known.trained is not None:
        history.write(_with_inputs(trained, known.trained, source))
    runs = entry.run_id is not None and entry.data is not None
    data = entry.data if runs else known.considered
    record = (history.read(str(entry.run_id)) if runs else None) or _unstarted(entry)
    if data is not None:
        record = _with_inputs(record, data, source)
    gives_up = runs and entry.outcome == "failed" and record.state != DONE
    plan = Plan(
        cause=entry.cause,
        reason=entry.reason,
        due=entry.due,
        decided_until=known.decided_until,
        considered=record.data,
        given_up=data.config if data is not None and (gives_up if runs else known.given_up) else None,
        failures=sum(attempt.get("outcome") == "failed" for attempt in entry.attempts),
    )
    record = record.model_copy(update={"plan": plan, "state": GIVEN_UP if gives_up else record.state})
    history.write(record)
    return record


def _unstarted(entry: _Entry) -> RunRecord:
    """Returns the record of a decision not to run, or of a run that has not begun."""
    record_id = entry.run_id or decision_id(datetime.fromisoformat(entry.time), entry.number)
    trigger = f"watch: {entry.cause}"
    record = RunRecord(id=record_id, trigger=trigger, state=SKIPPED, attempt=0, started=entry.time)
    if entry.run_id is None or entry.data is None:
        return record
    config = ConfigCopy(digest=entry.data.config, path=f"watch/configs/{entry.run_id}.yaml")
    return record.model_copy(update={"state": PLANNED, "config": config})


def _with_inputs(record: RunRecord, data: _Data, source: str) -> RunRecord:
    """Returns a record with what its run read."""
    config = None if record.config is None else record.config.model_copy(update={"deciding": data.config})
    read = record.data or DataRead(source=source, span=data.span, version=data.version)
    read = read.model_copy(update={"input_fingerprint": data.fingerprint})
    return record.model_copy(update={"data": read, "config": config})
