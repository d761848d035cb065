"""Supervises a run that was decided upon, to its end: attempts in processes of their own, pauses, giving up."""

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from detection.analysis.analysis_file import read_analysis
from detection.reports.evaluation.category_changes import category_gains, gain_sentences
from detection.storage.files import is_file
from detection.storage.lock import lock_folder
from detection.storage.paths import join
from detection.storage.processes import tied
from pipelines.runs.history import RunHistory, instant
from pipelines.runs.run_record import DONE, FAILED, GIVEN_UP, INTERRUPTED, RUNNING, RunRecord, as_text
from pipelines.watch.decisions import is_open, pause_after, plan_of
from schemas.artifacts import ANALYSIS_JSON, REPORT_HTML
from schemas.config.watch import WatchConfig
from schemas.errors import CocoflowError, DataError
from schemas.metrics import main_metrics

_PROGRAM = Path(__file__).parents[2] / "pipeline_runner.py"
_END_SECONDS = 8.0  # for an orderly end; `stop_signals` ends this process after 10
_WRONG_USAGE = 2  # exit code: another attempt would end the same way

_LOGGER = logging.getLogger("cocoflow.watch")


Command = Callable[..., list[str]]  # see `run_command`


def run_command(*, run_id: str, trigger: str, config: str) -> list[str]:
    """Returns the command line of a run.

    Args:
        run_id: id of the run.
        trigger: why it runs, for its record.
        config: path of its configuration.
    """
    program = [sys.executable, str(_PROGRAM)]
    return [*program, "run", "--run-id", run_id, "--trigger", trigger, "--config", config]


def start_process(command: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Starts a command; the kernel kills it when this process ends without `end_process`."""
    return subprocess.Popen(tied(command), stdin=subprocess.DEVNULL)


def end_process(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process in order, or kills it after some seconds."""
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class StateLog:
    """Logs a state once, however often it is found."""

    def __init__(self) -> None:
        self._last: str | None = None

    def tell(self, message: str) -> None:
        """Logs a message unless it was the last one."""
        if message != self._last:
            self._last = message
            _LOGGER.info("%s", message)

    def forget(self) -> None:
        """Lets the same message be logged again."""
        self._last = None


@dataclass
class Supervisor:
    """The runs of a `watch`.

    Attributes:
        history: records below `run.root`.
        options: section `watch`.
        write: writes the record of a run.
        command: makes the command line of a run.
        clock: returns the present moment.
        state: what was logged last.
    """

    history: RunHistory
    options: WatchConfig
    write: Callable[[RunRecord], None]
    command: Command
    clock: Callable[[], datetime]
    state: StateLog = field(default_factory=StateLog)

    def advance(self, record: RunRecord) -> tuple[RunRecord, float]:
        """Starts a run if it is not done and nothing is in the way, and waits for it.

        Returns:
            The record after that, and the seconds until this is to be called again if it is still open.

        Raises:
            KeyboardInterrupt: the run was ended.
            CocoflowError: the record cannot be read or written.
        """
        record = self.history.read(record.id) or record  # the run writes it, too
        if not is_open(record):  # another process ended it
            return record, 0.0
        pause = self._pause_left(record)
        if pause > 0.0:
            self.state.tell(f"run {record.id}: the next attempt is in {pause:.0f} s")
            return record, pause
        if self._is_in_use():
            return record, self.options.poll_seconds
        return self._attempt(record), 0.0

    def _pause_left(self, record: RunRecord) -> float:
        """Returns the seconds until the next attempt; there is no pause after an interrupted one."""
        if record.state != FAILED or record.ended is None:
            return 0.0
        pause = pause_after(plan_of(record).failures, self.options.retry_seconds)
        return (instant(record.ended) + timedelta(seconds=pause) - self.clock()).total_seconds()

    def _is_in_use(self) -> bool:
        """Returns whether another process, such as a run that a person started, holds the run's folder."""
        try:
            with lock_folder(self.history.root, instead="wait"):
                return False
        except CocoflowError as error:
            if type(error) is not CocoflowError:
                raise
            self.state.tell(f"waiting: {error}")
            return True

    def _attempt(self, record: RunRecord) -> RunRecord:
        """Starts the run and waits for its end; returns its record."""
        self.state.forget()
        if record.state in (RUNNING, INTERRUPTED):
            _LOGGER.info("run %s was interrupted, and resumes", record.id)
        if record.config is None:
            raise DataError(f"{record.id}: the record of this run has no configuration. Restore it, or remove it.")
        config = join(self.history.root, record.config.path)
        process = start_process(self.command(run_id=record.id, trigger=record.trigger, config=config))
        try:
            code = process.wait()
        except BaseException:
            end_process(process)
            raise
        record = self.history.read(record.id) or record
        if record.state != DONE:
            return self._failed(record, code)
        for line in result_lines(record):
            _LOGGER.info("run %s: %s", record.id, line)
        return record

    def _failed(self, record: RunRecord, code: int) -> RunRecord:
        """Counts a failure; returns the record, written, after which the run is repeated or given up."""
        plan = plan_of(record).model_copy(update={"failures": plan_of(record).failures + 1, "exit_code": code})
        gives_up = plan.failures >= self.options.max_failures or code == _WRONG_USAGE
        if gives_up and record.config is not None:
            plan = plan.model_copy(update={"given_up": record.config.deciding})
        record = record.model_copy(
            update={
                "state": GIVEN_UP if gives_up else FAILED,
                "now": None,
                "ended": as_text(self.clock()),
                "error": record.error or f"its process ended with exit code {code}",
                "plan": plan,
            }
        )
        self.write(record)
        if gives_up:
            _LOGGER.error(
                "run %s is given up after %d failure%s; its messages are above, and in run.log",
                record.id,
                plan.failures,
                "s" * (plan.failures != 1),
            )
        else:
            _LOGGER.warning("run %s failed (%d of %d)", record.id, plan.failures, self.options.max_failures)
        return record


def result_lines(record: RunRecord) -> Iterator[str]:
    """Yields what the log says of a run that is done: its result, and the categories that gained and lost AP."""
    shown = [name for name in main_metrics(record.metrics) if name != "AP50"]
    parts = ["done", *(f"{name} {record.metrics[name]:.3f}" for name in shown)]
    if record.blessed is not None:
        parts.append("blessed" if record.blessed else "not blessed")
    if record.pushed_path is not None:
        parts.append(f"pushed to {record.pushed_path}")
    if record.evaluation is None:
        yield ", ".join(parts)
        return
    yield f"{', '.join(parts)}; report: {join(record.evaluation, REPORT_HTML)}"
    path = join(record.evaluation, ANALYSIS_JSON)
    if is_file(path):
        try:
            yield from gain_sentences(category_gains(read_analysis(path)))
        except DataError as error:  # of another version
            _LOGGER.warning("%s", error)
