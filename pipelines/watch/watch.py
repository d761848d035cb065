"""Trains again when a trigger fires, one run at a time; the records of runs tell what was decided, and why.

The order of writing makes a trigger lead to exactly one finished run, wherever `watch` is
killed.  The record of a planned run is on the disk before the run starts.  After a restart,
it tells whether the run is done; if not, the run resumes under the same id.  A trigger
that is not in a record yet is still there after a restart.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from components.coco_example_gen.spans.locate import has_spans, require_one_data_set
from detection.storage.lock import FolderLock, lock_folder
from detection.storage.paths import join
from pipelines.folders import RunLayout
from pipelines.runs.comparison import RunInputs, compare, data_name, data_of, find_data, newest_done, observe
from pipelines.runs.history import RunHistory, deciding_digest
from pipelines.runs.run_record import GIVEN_UP, PLANNED, DataRead, RunRecord
from pipelines.watch.decisions import (
    decided_until,
    first_decision,
    is_new,
    is_open,
    number_of,
    plan_of,
    planned_run,
    skipped_run,
    times_in_words,
)
from pipelines.watch.drift import Drift, drift_reason, drift_since
from pipelines.watch.schedule import Due, Schedule
from pipelines.watch.supervisor import Command, StateLog, Supervisor, run_command
from schemas.artifacts import TRAIN_SPLIT
from schemas.config.config import Config
from schemas.errors import ConfigError, DataError

FOLDER = "watch"  # below run.root: the lock, and the statistics of drift

_LOGGER = logging.getLogger("cocoflow.watch")


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
        self._clock = clock
        root = RunLayout(config).root
        self._folder = join(root, FOLDER)
        self._history = RunHistory(root)
        cron = self._options.cron
        self._schedule = None if cron is None else Schedule(cron, self._options.time_zone)
        self._supervisor = Supervisor(self._history, config.watch, self._write, command, clock)
        self._newest: RunRecord  # the newest decision
        self._began = clock()
        self._seen: RunInputs | None = None
        self._state = StateLog()

    def run(self) -> None:
        """Watches until it is interrupted.

        Raises:
            CocoflowError: another `watch` works in this run.root, or a record cannot be read or written.
        """
        with self._held():
            self._log_next()
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
            if not is_open(self._newest):
                self._decide(once=True)
            if is_open(self._newest):
                self._newest, _ = self._supervisor.advance(self._newest)
            after = self._newest
            if after == before and not is_open(after):
                self._log_next(done=False)
            return not is_open(after) and (after == before or after.state != GIVEN_UP)

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        with lock_folder(self._folder, instead="choose another folder with --set run.root=DIR") as use:
            self._use: FolderLock = use
            newest = newest_decision(self._history)
            self._newest = newest or first_decision(self._clock())
            if newest is None:
                self._write(self._newest)
            yield

    def _write(self, record: RunRecord) -> None:
        """Writes the record of a decision, which becomes the newest."""
        self._use.require_held()
        self._history.write(record)
        self._newest = record

    def _step(self) -> float:
        """Runs one iteration; returns the seconds until the next one."""
        if not is_open(self._newest):
            self._decide(once=False)
        if not is_open(self._newest):
            return self._pause()
        self._newest, pause = self._supervisor.advance(self._newest)
        if not is_open(self._newest):
            self._log_next()
        return pause

    def _decide(self, *, once: bool) -> None:
        """Writes a decision if a trigger says so and the data is complete."""
        due = self._due(once=once)
        if due is None and not self._options.new_span:
            return
        try:
            while not self._look(due) and once:
                time.sleep(self._options.poll_seconds)
        except (DataError, ConfigError) as error:  # such as a folder that is being filled
            if once:
                raise
            self._state.tell(f"waiting for data: {error}")

    def _due(self, *, once: bool) -> Due | None:
        """Returns the cron times to decide about."""
        if self._schedule is None:
            return None
        now, plan = self._clock(), plan_of(self._newest)
        due = self._schedule.due(decided_until(self._newest), now)
        if due is None or once or self._options.catch_up or due.last > self._began:
            return due
        reason = f"{times_in_words(due)} passed while `watch` was down, and catch_up is off"
        missed = skipped_run(self._newest, now, due, reason=reason, data=plan.considered, given_up=plan.given_up)
        self._conclude(missed)
        return None

    def _look(self, due: Due | None) -> bool:
        """Decides about new data, or at a cron time any, unless it is not the same as at the last look.

        Returns:
            False if it is not the same: then it may still be written.
        """
        located = find_data(self._config)
        unread = RunInputs(data_of(self._config, located), deciding_digest(self._config))
        if due is None and not is_new(unread, plan_of(self._newest)):
            self._seen = None
            self._state.forget()
            return True
        inputs, trained = observe(self._config, located), newest_done(self._history)
        would_change, reason = compare(inputs, trained)
        if not would_change:
            self._conclude(skipped_run(self._newest, self._clock(), due, reason=reason, data=inputs.data))
            return True
        if inputs != self._seen:
            name = data_name(inputs.data)
            found_so = f"{name} was found" if self._seen is None else f"{name} has changed"
            self._seen = inputs
            self._state.tell(
                f"{found_so}: looking again in {self._options.poll_seconds:g} s, as it may still be written"
            )
            return False
        drifts: list[Drift] = []
        if self._options.drift.enabled:
            train, folder = located.files[TRAIN_SPLIT], join(self._folder, "statistics")
            drifts = drift_since(trained, inputs, train, self._options.drift, folder=folder)
        self._run_or_skip(due, inputs.data, reason, drifts)
        return True

    def _run_or_skip(self, due: Due | None, data: DataRead, reason: str, drifts: list[Drift]) -> None:
        """Decides about complete data that was not trained on for a reason; `drifts` is empty if none is measured."""
        if drifts:
            reason = f"{reason}; {drift_reason(drifts)}"
        before, now = self._newest, self._clock()
        if drifts and not any(drift.is_above for drift in drifts):
            self._conclude(skipped_run(before, now, due, reason=reason, data=data))
            return
        config = self._history.store_config(config_for(self._config, data))
        self._conclude(planned_run(before, now, due, reason=reason, data=data, config=config))

    def _conclude(self, record: RunRecord) -> None:
        """Writes and logs a decision."""
        self._write(record)
        self._seen = None
        self._state.forget()
        what = f"run {record.id}" if record.state == PLANNED else "no run"
        _LOGGER.info("%s: %s: %s", record.trigger.removeprefix("watch: "), what, plan_of(record).reason)
        if record.state != PLANNED:
            self._log_next()

    def _pause(self) -> float:
        """Returns the seconds until the next look, or the next cron time."""
        pauses = [self._options.poll_seconds]
        if self._schedule is not None:
            now = self._clock()
            pauses.append((self._schedule.next_after(now) - now).total_seconds())
        return max(0.0, min(pauses))

    def _log_next(self, *, done: bool = True) -> None:
        """Logs what is waited for; or, if nothing was done, why a single look led to nothing."""
        parts, considered = [], plan_of(self._newest).considered
        last = "" if considered is None else f" newer than {data_name(considered)}"
        if self._schedule is not None:  # the first time that is not decided
            following = self._schedule.next_after(max(self._clock(), decided_until(self._newest)))
            parts.append(f"the next cron time is {self._schedule.local(following)}")
        if self._options.new_span:
            poll = f"looking for data{last} every {self._options.poll_seconds:g} s"
            parts.append(poll if done else f"there is no data{last}")
        _LOGGER.info("%s%s", "" if done else "nothing to do: ", "; ".join(parts))


def newest_decision(history: RunHistory) -> RunRecord | None:
    """Reads the record of the newest decision of `watch`; None: there is none.

    Raises:
        DataError: it cannot be read.
    """
    numbers = {run_id: number for run_id in history.ids() if (number := number_of(run_id)) is not None}
    for run_id in sorted(numbers, key=lambda one: numbers[one], reverse=True):
        record = history.read(run_id)
        if record is not None and record.plan is not None and record.plan.decided_until is not None:
            return record  # others are of a person who chose such an id
    return None


def check_data(config: Config) -> None:
    """Checks that a data set is named, and that new spans can appear if they are to trigger.

    Raises:
        ConfigError: no data set, data without spans, or a span or version that is set.
    """
    require_one_data_set(config.data)
    spans = has_spans(config.data)
    if not config.watch.new_span:
        return
    if not spans:
        raise ConfigError(
            "watch.new_span = True, but the data's paths have no {SPAN} and no date. "
            "Write one there, or set watch.cron in place of watch.new_span."
        )
    for key, value in {"span": config.data.span, "version": config.data.version}.items():
        if value is not None:
            raise ConfigError(
                f"data.{key} = {value}: no newer one is ever read, so watch.new_span would never trigger. Remove it."
            )


def config_for(config: Config, data: DataRead) -> Config:
    """Returns the configuration of a run on this data, whatever newer spans appear in the meantime.

    Raises:
        ConfigError: placeholders that name no span.
    """
    if not has_spans(config.data):
        return config
    pinned = config.data.model_copy(update={"span": data.span, "version": data.version})
    return config.model_copy(update={"data": pinned})
