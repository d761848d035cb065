"""Trains again when a trigger fires, one run at a time, and notes each decision in the journal.

The order of writing makes a trigger lead to exactly one finished run, wherever `watch` is
killed.  The decision with the run's id is in the journal before the run starts.  After a
restart, the record of that run tells whether it is done; if not, it is taken up again under
the same id.  A trigger that is not in the journal yet is still there after a restart.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from detection.datasets.layouts import SplitFiles
from detection.storage.atomic import write_text
from detection.storage.files import is_file
from detection.storage.lock import Use, exclusive_use
from detection.storage.paths import join
from pipelines.folders import RunLayout
from pipelines.watch.child import Command, run_command
from pipelines.watch.data import check_data, config_digest, config_for, find_data, observe
from pipelines.watch.decisions import (
    change,
    entry_of_missed,
    entry_to_run,
    entry_to_skip,
    first_entry,
    is_new,
    sameness,
)
from pipelines.watch.drift import Drift, drift_reason, measure
from pipelines.watch.journal import Data, Entry, Journal, moment_of
from pipelines.watch.schedule import Due, Schedule
from pipelines.watch.supervisor import StateLog, Supervisor
from schemas.artifacts import TRAIN_SPLIT
from schemas.config.config import Config
from schemas.config.config_io import to_yaml
from schemas.errors import ConfigError, DataError

FOLDER = "watch"  # below run.root
_JOURNAL = "journal"

_LOGGER = logging.getLogger("cocoflow.watch")


class _Found(NamedTuple):
    """Data to decide about, and the files of its training split."""

    data: Data
    train: SplitFiles


class Watch:
    """The triggers of a configuration, and the runs that they start.

    Args:
        config: whole configuration, with a trigger.
        command: makes the command line of a run.
        clock: returns the present moment.

    Raises:
        ConfigError: no trigger, no data set, or new spans that can never appear.
    """

    def __init__(
        self,
        config: Config,
        *,
        command: Command = run_command,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if not config.watch.enabled:
            raise ConfigError("`watch` has no trigger. Set watch.cron, such as '0 3 * * *', or watch.new_span=true.")
        check_data(config)
        self._config = config
        self._options = config.watch
        self._digest = config_digest(config)
        self._clock = clock
        self._folder = join(RunLayout(config).root, FOLDER)
        self._journal = Journal(join(self._folder, _JOURNAL))
        cron = self._options.cron
        self._schedule = None if cron is None else Schedule(cron, self._options.time_zone)
        self._supervisor = Supervisor(
            config, write=self._write, command=command, clock=clock, configs=self._config_path
        )
        self._began = clock()
        self._seen: Data | None = None
        self._state = StateLog()

    def run(self) -> None:
        """Watches until it is interrupted.

        Raises:
            CocoflowError: another `watch` works in this run.root, or the journal cannot be read or written.
        """
        with self._held():
            self._log_next(self._newest)
            while True:
                time.sleep(self._step())

    def run_once(self) -> bool:
        """Looks at the triggers once, and runs if one says so.

        Returns:
            False if a run failed, or waits for its next attempt.

        Raises:
            ConfigError: watch.catch_up is off, so a cron time, which came before this call, never counts.
            CocoflowError: see `run`; or the data cannot be used.
        """
        if not self._options.catch_up:
            raise ConfigError("watch.catch_up = False with --once would never run. Remove one of them.")
        with self._held():
            before = self._newest
            if not self._has_run():
                self._decide(once=True)
            if self._has_run():
                self._supervisor.advance(self._newest)
            after = self._newest
            if after == before and not after.is_open:
                self._log_nothing()
            return not after.is_open and (after == before or after.outcome != "failed")

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        with exclusive_use(self._folder, instead="choose another folder with --set run.root=DIR") as use:
            self._use: Use = use
            newest = self._journal.newest()
            if newest is None:
                self._write(first_entry(self._clock()))
            else:
                self._newest = newest
            yield

    def _write(self, entry: Entry) -> None:
        """Writes an entry, which becomes the newest."""
        self._use.require_held()
        self._journal.write(entry)
        self._newest = entry

    def _step(self) -> float:
        """Runs one iteration; returns the seconds until the next one."""
        if not self._has_run():
            self._decide(once=False)
        if not self._has_run():
            return self._pause()
        pause = self._supervisor.advance(self._newest)
        if not self._has_run():
            self._log_next(self._newest)
        return pause

    def _has_run(self) -> bool:
        """Returns whether there is a run that has not ended."""
        return self._newest.is_open

    def _decide(self, *, once: bool) -> None:
        """Writes a decision if a trigger says so and the data is complete."""
        due = self._due(once=once)
        if due is None and not self._options.new_span:
            return
        while not self._concludes(due, once=once) and once:
            time.sleep(self._options.poll_seconds)

    def _concludes(self, due: Due | None, *, once: bool) -> bool:
        """Looks at the data; returns whether there is nothing to look at again soon."""
        try:
            found = self._look(due)
            return found is None or self._conclude_on(due, found)
        except (DataError, ConfigError) as error:  # such as a folder that is being filled
            if once:
                raise
            self._state.tell(f"waiting for data: {error}")
            return False

    def _due(self, *, once: bool) -> Due | None:
        """Returns the cron times to decide about."""
        if self._schedule is None:
            return None
        now = self._clock()
        due = self._schedule.due(moment_of(self._newest.known.decided_until), now)
        if due is None or once or self._options.catch_up or due.last > self._began:
            return due
        self._conclude(entry_of_missed(self._newest, now, due))
        return None

    def _look(self, due: Due | None) -> _Found | None:
        """Returns the data to decide about; None: it is not new, and no cron time has come."""
        located = find_data(self._config)
        at = located.newest
        if due is None and not is_new(Data(at.span, at.version, "", self._digest), self._newest.known):
            self._seen = None
            self._state.forget()
            return None
        return _Found(observe(self._config, located), located.files[TRAIN_SPLIT])

    def _conclude_on(self, due: Due | None, found: _Found) -> bool:
        """Decides about data, unless it is not the same as at the last look: then it may still be written."""
        data = found.data
        reason = sameness(data, self._newest.known)
        if reason is not None:
            self._conclude(entry_to_skip(self._newest, self._clock(), due, reason=reason, data=data))
            return True
        if data != self._seen:
            found_so = f"{data} was found" if self._seen is None else f"{data} has changed"
            self._seen = data
            self._state.tell(
                f"{found_so}: looking again in {self._options.poll_seconds:g} s, as it may still be written"
            )
            return False
        self._run_or_skip(due, found)
        return True

    def _run_or_skip(self, due: Due | None, found: _Found) -> None:
        """Decides about complete data that was not trained on."""
        reason, has_drifted = change(found.data, self._newest.known), True
        if self._options.drift.enabled:
            drifts = self._drift_of(found)
            if drifts:
                reason = f"{reason}; {drift_reason(drifts)}"
                has_drifted = any(drift.is_above for drift in drifts)
        make = entry_to_run if has_drifted else entry_to_skip
        entry = make(self._newest, self._clock(), due, reason=reason, data=found.data)
        if has_drifted:
            write_text(self._config_path(entry), to_yaml(config_for(self._config, found.data)))
        self._conclude(entry)

    def _drift_of(self, found: _Found) -> list[Drift]:
        """Returns the drift since the last training; empty without its statistics, or if it had another configuration.

        In any case, the statistics are written for the next time.
        """
        trained, reference = self._newest.known.trained, None
        if trained is not None and trained.config == found.data.config:
            before = self._statistics_path(trained)
            reference = before if is_file(before) else None
        destination = self._statistics_path(found.data)
        return measure(found.train, self._options.drift, destination=destination, reference=reference)

    def _statistics_path(self, data: Data) -> str:
        return join(self._folder, "statistics", f"{data.fingerprint}.pb")

    def _config_path(self, entry: Entry) -> str:
        return join(self._folder, "configs", f"{entry.run_id}.yaml")

    def _conclude(self, entry: Entry) -> None:
        """Writes and logs a new entry."""
        self._write(entry)
        self._seen = None
        self._state.forget()
        what = f"run {entry.run_id}" if entry.decision == "run" else "no run"
        _LOGGER.info("%s: %s: %s", entry.trigger, what, entry.reason)
        if entry.decision == "skip":
            self._log_next(entry)

    def _pause(self) -> float:
        """Returns the seconds until the next look, or the next cron time."""
        pauses = [self._options.poll_seconds]
        if self._schedule is not None:
            now = self._clock()
            pauses.append((self._schedule.next_after(now) - now).total_seconds())
        return max(0.0, min(pauses))

    def _log_nothing(self) -> None:
        """Logs why a single look led to nothing."""
        known, parts = self._newest.known, []
        if self._schedule is not None:
            parts.append(f"the next cron time is {self._next_time(self._newest)}")
        if self._options.new_span:
            last = "" if known.considered is None else f" newer than {known.considered}"
            parts.append(f"there is no data{last}")
        _LOGGER.info("nothing to do: %s", "; ".join(parts))

    def _next_time(self, entry: Entry) -> str:
        """Returns the first cron time that is not decided, in the schedule's time zone."""
        if self._schedule is None:
            return ""
        after = max(self._clock(), moment_of(entry.known.decided_until))
        return self._schedule.local(self._schedule.next_after(after))

    def _log_next(self, entry: Entry) -> None:
        parts = []
        if self._schedule is not None:
            parts.append(f"the next cron time is {self._next_time(entry)}")
        if self._options.new_span:
            newest = entry.known.considered
            beyond = "the first span" if newest is None else f"data newer than {newest}"
            parts.append(f"looking for {beyond} every {self._options.poll_seconds:g} s")
        _LOGGER.info("%s", "; ".join(parts))
