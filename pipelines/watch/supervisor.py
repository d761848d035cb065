"""Supervises a run that was decided upon, to its end: attempts in processes of their own, pauses, giving up."""

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from detection.storage.lock import exclusive_use
from pipelines.folders import RunLayout
from pipelines.watch import child
from pipelines.watch.decisions import pause_after
from pipelines.watch.journal import Attempt, Entry, Outcome, as_text, moment_of
from pipelines.watch.results import is_done, read_result
from schemas.config.config import Config
from schemas.errors import CocoflowError

_WRONG_USAGE = 2  # exit code: another attempt would end the same way

_LOGGER = logging.getLogger("cocoflow.watch")


class StateLog:
    """Logs a state once, however often it is found."""

    def __init__(self) -> None:
        self._told: str | None = None

    def tell(self, message: str) -> None:
        """Logs a message unless it was the last one."""
        if message != self._told:
            self._told = message
            _LOGGER.info("%s", message)

    def forget(self) -> None:
        """Lets the same message be logged again."""
        self._told = None


class Supervisor:
    """The runs of a `watch`.

    Args:
        config: whole configuration.
        write: writes an entry to the journal.
        command: makes the command line of a run.
        clock: returns the present moment.
        configs: returns the path of a run's configuration.
    """

    def __init__(
        self,
        config: Config,
        *,
        write: Callable[[Entry], None],
        command: child.Command,
        clock: Callable[[], datetime],
        configs: Callable[[Entry], str],
    ) -> None:
        self._root = RunLayout(config).root
        self._options = config.watch
        self._write = write
        self._command = command
        self._clock = clock
        self._configs = configs
        self._state = StateLog()

    def advance(self, entry: Entry) -> float:
        """Starts a run if it is not done and nothing is in the way, and waits for it.

        Returns:
            Seconds until this is to be called again, if the entry is still open.

        Raises:
            KeyboardInterrupt: the run was ended; its attempt is in the journal as interrupted.
            CocoflowError: the journal cannot be written.
        """
        entry = self._without_lost_attempt(entry)
        if self._close_if_ended(entry):
            return 0.0
        pause = self._pause_left(entry)
        if pause > 0.0:
            self._state.tell(f"run {entry.run_id}: the next attempt is in {pause:.0f} s")
            return pause
        if self._is_in_use():
            return self._options.poll_seconds
        entry = self._attempt(entry)
        if not self._close_if_ended(entry):
            _LOGGER.warning("run %s failed (%d of %d)", entry.run_id, entry.failures, self._options.max_failures)
        return 0.0

    def _without_lost_attempt(self, entry: Entry) -> Entry:
        """Returns the entry after noting that an attempt ended with the `watch` that started it."""
        if not entry.attempts or entry.attempts[-1].ended is not None:
            return entry
        _LOGGER.info("run %s was interrupted, and is taken up again", entry.run_id)
        return self._with_end(entry, "interrupted", None)

    def _close_if_ended(self, entry: Entry) -> bool:
        """Closes the entry if its run is done or given up."""
        run_id = str(entry.run_id)
        if is_done(self._root, run_id):
            attempts = [*entry.attempts[:-1], *(replace(one, outcome="done") for one in entry.attempts[-1:])]
            result = read_result(self._root, run_id)
            self._write(replace(entry, attempts=attempts).closed("done", result.as_dict()))
            for line in result.lines():
                _LOGGER.info("run %s: %s", run_id, line)
            return True
        wrong_usage = bool(entry.attempts) and entry.attempts[-1].exit_code == _WRONG_USAGE
        if entry.failures < self._options.max_failures and not wrong_usage:
            return False
        self._write(entry.closed("failed"))
        _LOGGER.error(
            "run %s is given up after %d failure%s; its messages are above, and in run.log",
            run_id,
            entry.failures,
            "s" * (entry.failures != 1),
        )
        return True

    def _pause_left(self, entry: Entry) -> float:
        """Returns the seconds until the next attempt."""
        if not entry.failures or entry.attempts[-1].outcome != "failed":
            return 0.0
        pause = pause_after(entry.failures, self._options.retry_seconds)
        since = moment_of(str(entry.attempts[-1].ended))
        return (since + timedelta(seconds=pause) - self._clock()).total_seconds()

    def _is_in_use(self) -> bool:
        """Returns whether another process, such as a run that a person started, holds the run's folder."""
        try:
            with exclusive_use(self._root, instead="wait"):
                return False
        except CocoflowError as error:
            if type(error) is not CocoflowError:
                raise
            self._state.tell(f"waiting: {error}")
            return True

    def _attempt(self, entry: Entry) -> Entry:
        """Starts the run and waits for its end; returns the entry with this attempt."""
        self._state.forget()
        entry = replace(entry, attempts=[*entry.attempts, Attempt(as_text(self._clock()))])
        self._write(entry)
        command = self._command(
            run_id=str(entry.run_id), trigger=f"watch: {entry.trigger}", config=self._configs(entry)
        )
        process = child.start(command)
        try:
            code = process.wait()
        except BaseException:
            child.end(process)
            if not is_done(self._root, str(entry.run_id)):
                self._with_end(entry, "interrupted", process.returncode)
            raise
        outcome: Outcome = "done" if is_done(self._root, str(entry.run_id)) else "failed"
        return self._with_end(entry, outcome, code)

    def _with_end(self, entry: Entry, outcome: Outcome, code: int | None) -> Entry:
        """Writes the entry with the end of its last attempt."""
        ended = replace(entry.attempts[-1], ended=as_text(self._clock()), outcome=outcome, exit_code=code)
        entry = replace(entry, attempts=[*entry.attempts[:-1], ended])
        self._write(entry)
        return entry
