"""Decides whether to train: pure functions of what is known, what is due and what the data looks like."""

from dataclasses import replace
from datetime import datetime
from typing import Literal

from pipelines.watch.journal import Data, Entry, Known, as_text
from pipelines.watch.schedule import MAX_COUNTED, Due

MAX_PAUSE_SECONDS = 86400.0


def is_new(data: Data, known: Known) -> bool:
    """Returns whether a new span triggers: data newer than what was decided about last.

    After a run that was given up, another configuration counts as new, too.  Fingerprints do not matter here.
    """
    last = known.considered
    return last is None or data.order > last.order or (known.given_up and data.config != last.config)


def sameness(data: Data, known: Known) -> str | None:
    """Returns why a run would change nothing, as part of a sentence; None: it would."""
    if data != known.trained:
        return None
    return f"neither {data} nor the configuration changed since run {known.trained_by}"


def change(data: Data, known: Known) -> str:
    """Returns how data differs from that of the last training, as part of a sentence."""
    last = known.trained
    if last is None:
        return "no run of `watch` is done yet"
    if data.order != last.order:
        return f"{data} is there, and run {known.trained_by} trained on {last}"
    differs = {
        "the files of the data": data.fingerprint != last.fingerprint,
        "the configuration": data.config != last.config,
    }
    return f"{' and '.join(what for what, is_so in differs.items() if is_so)} changed since run {known.trained_by}"


def times_told(due: Due) -> str:
    """Returns cron times as part of a sentence."""
    if due.number == 1:
        return f"the cron time {due.last:%Y-%m-%d %H:%M} UTC"
    number = f"{MAX_COUNTED} or more" if due.number == MAX_COUNTED else due.number
    return f"{number} cron times from {due.first:%Y-%m-%d %H:%M} to {due.last:%Y-%m-%d %H:%M} UTC"


def first_entry(now: datetime) -> Entry:
    """Returns the entry that begins a journal: cron counts from here on."""
    return Entry(1, as_text(now), "begin", "begin", "`watch` was started for the first time", Known(as_text(now)))


def entry_to_run(before: Entry, now: datetime, due: Due | None, *, reason: str, data: Data) -> Entry:
    """Returns the entry of a decision to run.

    Args:
        before: the newest entry.
        now: time of the decision.
        due: cron times that trigger it; None: a new span.
        reason: why, as part of a sentence.
        data: data to train on.
    """
    if due is not None and due.number > 1:
        reason = f"{times_told(due)}: {reason}"
    entry = _entry(before, now, due, "run", reason)
    return replace(entry, data=data, run_id=f"watch-{now:%Y%m%d-%H%M%S}-{entry.number:06d}")


def entry_to_skip(before: Entry, now: datetime, due: Due | None, *, reason: str, data: Data) -> Entry:
    """Returns the entry of a decision not to run; arguments as for `entry_to_run`."""
    entry = _entry(before, now, due, "skip", reason)
    known = replace(entry.known, considered=data, given_up=False)
    return replace(entry, data=data, known=known)


def entry_of_missed(before: Entry, now: datetime, due: Due) -> Entry:
    """Returns the entry of cron times that no run makes up for."""
    return _entry(before, now, due, "skip", f"{times_told(due)} passed while `watch` was down, and catch_up is off")


def pause_after(failures: int, retry_seconds: float) -> float:
    """Returns the pause before a run's next attempt, in seconds; it doubles with each failure, up to a day."""
    return min(MAX_PAUSE_SECONDS, retry_seconds * 2.0 ** min(failures - 1, 64)) if failures else 0.0


def _entry(before: Entry, now: datetime, due: Due | None, decision: Literal["run", "skip"], reason: str) -> Entry:
    known = before.known if due is None else replace(before.known, decided_until=as_text(due.last))
    return Entry(
        number=before.number + 1,
        time=as_text(now),
        cause="new span" if due is None else "cron",
        decision=decision,
        reason=reason,
        known=known,
        due=None if due is None else as_text(due.last),
    )
