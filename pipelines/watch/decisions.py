"""Decides whether to train: pure functions of the last decision, the cron times that have come, and the data.

A decision is the record of a run, which is planned or skipped.
"""

from datetime import datetime

from pipelines.runs.comparison import RunInputs, data_name, is_same_data, order_of
from pipelines.runs.run_record import DONE, GIVEN_UP, PLANNED, SKIPPED, ConfigCopy, DataRead, Plan, RunRecord, as_text
from pipelines.watch.schedule import Due

MAX_PAUSE_SECONDS = 86400.0


def plan_of(record: RunRecord) -> Plan:
    """Returns the plan of a decision."""
    if record.plan is None:
        raise ValueError(f"run {record.id} has no plan")
    return record.plan


def decided_until(record: RunRecord) -> datetime:
    """Returns the time until which cron times are decided."""
    return datetime.fromisoformat(str(plan_of(record).decided_until))


def is_open(record: RunRecord) -> bool:
    """Returns whether the run of a decision has to be started, or started again."""
    return record.state not in (DONE, SKIPPED, GIVEN_UP)


def is_new(inputs: RunInputs, plan: Plan) -> bool:
    """Returns whether a new span triggers: data newer than what the plan was decided about.

    After a run that was given up, another configuration counts as new, too.  Fingerprints do not matter here.
    """
    last = plan.considered
    return last is None or order_of(inputs.data) > order_of(last) or plan.given_up not in (None, inputs.deciding)


def times_in_words(due: Due) -> str:
    """Returns cron times as part of a sentence."""
    if due.first == due.last:
        return f"the cron time {due.last:%Y-%m-%d %H:%M} UTC"
    return f"the cron times from {due.first:%Y-%m-%d %H:%M} to {due.last:%Y-%m-%d %H:%M} UTC"


def first_decision(now: datetime) -> RunRecord:
    """Returns the record that begins a `watch`: cron counts from here on."""
    plan = Plan(cause="begin", reason="`watch` was started for the first time", decided_until=as_text(now))
    return _record(decision_id(now, 1), now, plan)


def skipped_run(
    before: RunRecord,
    now: datetime,
    due: Due | None,
    *,
    reason: str,
    data: DataRead | None,
    given_up: str | None = None,
) -> RunRecord:
    """Returns the record of a decision not to run; it replaces one before it about the same data.

    Args:
        before: record of the last decision.
        now: time of the decision.
        due: cron times that trigger it; None: a new span.
        reason: why, as part of a sentence.
        data: data that was considered last; None: none yet.
        given_up: see `Plan`.
    """
    replaces = before.state == SKIPPED and data is not None and is_same_data(before.data, data)
    at, cause = None, "new span" if data is None else f"new span ({data_name(data)})"
    if due is not None:
        at, cause = as_text(due.last), f"cron {due.last:%Y-%m-%d %H:%M} UTC"
    plan = Plan(
        cause="new span" if due is None else "cron",
        reason=reason,
        due=at,
        decided_until=at or plan_of(before).decided_until,
        considered=data,
        given_up=given_up,
    )
    record = _record(before.id if replaces else _next_id(before, now), now, plan)
    return record.model_copy(update={"trigger": f"watch: {cause}", "data": data})


def planned_run(
    before: RunRecord, now: datetime, due: Due | None, *, reason: str, data: DataRead, config: ConfigCopy
) -> RunRecord:
    """Returns the record of a decision to run on data with a configuration; others as for `skipped_run`."""
    if due is not None and due.first < due.last:
        reason = f"{times_in_words(due)}: {reason}"
    record = skipped_run(before, now, due, reason=reason, data=data)
    return record.model_copy(update={"id": _next_id(before, now), "state": PLANNED, "config": config})


def pause_after(failures: int, retry_seconds: float) -> float:
    """Returns the pause before a run's next attempt, in seconds; it doubles with each failure, up to a day."""
    return min(MAX_PAUSE_SECONDS, retry_seconds * 2.0 ** min(failures - 1, 64)) if failures else 0.0


def decision_id(now: datetime, number: int) -> str:
    """Returns the id of the decision of a number, from 1."""
    return f"watch-{now:%Y%m%d-%H%M%S}-{number:06d}"


def number_of(run_id: str) -> int | None:
    """Inverse of `decision_id`; None: another id."""
    name, _, number = run_id.rpartition("-")
    return int(number) if name.startswith("watch-") and number.isdecimal() else None


def _next_id(before: RunRecord, now: datetime) -> str:
    return decision_id(now, (number_of(before.id) or 0) + 1)


def _record(record_id: str, now: datetime, plan: Plan) -> RunRecord:
    return RunRecord(id=record_id, trigger="watch: begin", state=SKIPPED, attempt=0, started=as_text(now), plan=plan)
