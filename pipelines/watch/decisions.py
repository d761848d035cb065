"""Decides whether to train: pure functions of what is known, what is due and what the data looks like."""

from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from pipelines.watch.journal import Cause, Data, Entry, Known, as_text
from pipelines.watch.schedule import Due

MAX_PAUSE_SECONDS = 86400.0


class Trigger(NamedTuple):
    """A reason to look at the data.

    due: cron times that have come; None: a new span.
    told: the trigger as part of a sentence.
    """

    due: Due | None
    told: str

    @property
    def cause(self) -> Cause:
        """The cause as entries have it."""
        return "new span" if self.due is None else "cron"


def is_new(data: Data, known: Known) -> bool:
    """Returns whether data is newer than what was decided about last; also after a change of a given-up run's keys."""
    last = known.considered
    if last is None:
        return True
    return data.order > last.order or (known.given_up and data.config != last.config)


def skip_reason(data: Data, known: Known) -> str | None:
    """Returns why a run would change nothing, as a sentence; None: it would."""
    if data != known.trained:
        return None
    return f"nothing changed since run {known.trained_by}: the same data ({data}) and configuration"


def change_told(data: Data, known: Known) -> str:
    """Returns how data differs from that of the last training, as part of a sentence."""
    last = known.trained
    if last is None:
        return "no run of `watch` is done yet"
    if data.order != last.order:
        return f"the data is {data}, the last run trained on {last}"
    changed = [
        what
        for what, differs in {
            "the files of the data": data.fingerprint != last.fingerprint,
            "the configuration": data.config != last.config,
        }.items()
        if differs
    ]
    return f"{' and '.join(changed)} changed since run {known.trained_by}"


def entry_to_skip(number: int, now: datetime, trigger: Trigger, known: Known, *, reason: str, data: Data) -> Entry:
    """Returns the entry of a decision not to run; the data counts as decided about."""
    considered = known if data == known.trained else replace(known, considered=data, given_up=False)
    return _entry(number, now, trigger, considered, decision="skip", reason=reason, data=data)


def entry_to_run(number: int, now: datetime, trigger: Trigger, known: Known, *, reason: str, data: Data) -> Entry:
    """Returns the entry of a decision to run."""
    run_id = f"watch-{now:%Y%m%d-%H%M%S}-{number:06d}"
    return replace(
        _entry(number, now, trigger, known, decision="run", reason=reason, data=data),
        run_id=run_id,
    )


def entry_of_missed(number: int, now: datetime, due: Due, known: Known) -> Entry:
    """Returns the entry of cron times that are not made up for."""
    trigger = Trigger(due, "cron")
    reason = f"{times_told(due)} passed while `watch` was down, and watch.catch_up is off"
    return _entry(number, now, trigger, known, decision="skip", reason=reason, data=None)


def first_entry(now: datetime) -> Entry:
    """Returns the entry that begins a journal: cron counts from here on."""
    return Entry(1, as_text(now), "begin", "begin", "`watch` was started for the first time", Known(as_text(now)))


def times_told(due: Due) -> str:
    """Returns cron times as part of a sentence."""
    if due.count == 1:
        return f"the cron time {as_minute(due.last)}"
    return f"{due.count} cron times from {as_minute(due.first)} to {as_minute(due.last)}"


def as_minute(moment: datetime) -> str:
    """Returns a cron time in UTC, for a sentence."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def pause_after(failures: int, retry_seconds: float) -> float:
    """Returns the pause before the next attempt of a run, in seconds; it doubles with each failure, up to a day."""
    return min(MAX_PAUSE_SECONDS, retry_seconds * 2.0 ** min(failures - 1, 64)) if failures else 0.0


def _entry(
    number: int, now: datetime, trigger: Trigger, known: Known, *, decision: str, reason: str, data: Data | None
) -> Entry:
    due = None if trigger.due is None else as_text(trigger.due.last)
    return Entry(
        number=number,
        time=as_text(now),
        cause=trigger.cause,
        decision="run" if decision == "run" else "skip",
        reason=reason,
        due=due,
        data=data,
        known=known if due is None else replace(known, decided_until=due),
    )
