"""Schedules as `schedule` shows them, in one form for all platforms."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from pipelines.tables import print_table
from schemas.errors import CocoflowError


class Recurring(NamedTuple):
    """A schedule of the platform.

    name: as the user chose it.
    id: unique name, as the platform chose it.
    cron: as the platform has it, its time zone included.
    state: ACTIVE, PAUSED or COMPLETED.
    next_run: None: no further run, or the platform does not report it.
    last_run: None: no run yet, or the platform does not report it.
    """

    name: str
    id: str
    cron: str
    state: str
    next_run: datetime | None = None
    last_run: datetime | None = None


def require_one(found: Sequence[Recurring], name: str) -> Recurring:
    """Returns the one schedule of a name.

    Args:
        found: schedules of this name or id.
        name: as the user gave it.

    Raises:
        CocoflowError: none, or several.
    """
    if not found:
        raise CocoflowError(f"no schedule is named {name}. `schedule list` shows all.")
    if len(found) > 1:
        ids = ", ".join(one.id for one in found)
        raise CocoflowError(f"{len(found)} schedules are named {name}. Give the id of one instead: {ids}.")
    return found[0]


def to_json(schedules: Sequence[Recurring]) -> str:
    """Returns the schedules as a JSON list."""
    return json.dumps([one._asdict() for one in schedules], indent=2, default=datetime.isoformat)


def print_schedules(schedules: Sequence[Recurring]) -> None:
    """Prints the schedules as a table; times are those of this machine's time zone."""
    if not schedules:
        print("no schedules")
        return
    rows = [
        (one.name, one.cron, one.state, _format(one.next_run), _format(one.last_run), one.id.rpartition("/")[2])
        for one in schedules
    ]
    print_table(("name", "cron", "state", "next run", "last run", "id"), rows)


def _format(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M %Z}"
