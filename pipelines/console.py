"""Shows a run in the terminal: components, their progress, warnings.

The logs of TFX, Beam and TensorFlow (from Python and C++) go to a file.
"""

import contextlib
import io
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import absl.logging
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from schemas.errors import DataError
from schemas.progress import PHASE_ATTRIBUTE, PROGRESS_ATTRIBUTE, WorkProgress
from schemas.quoting import printable

_NODE_EVENT = re.compile(r"(?:Component|node) (\S+) is (running|finished)\.")
# Messages of `components.history`.
_REUSED_EVENT = re.compile(r"(\S+) reuses the execution of run ")
_EXECUTED_EVENT = re.compile(r"(\S+) is executed$")
_PLAIN_INTERVAL_SECONDS = 15.0
_AFTER_BARS = "finishing"


class RunDisplay(logging.Handler):
    """Draws a run from its log records: node events of TFX and messages of `cocoflow.*` loggers.

    Draws bars on a terminal, and prints a line per event otherwise (a file, CI).  While no bar moves, a line with
    the current phase does.

    Args:
        console: console to draw on.
        on_execution: called with the id of each node that is executed, not reused.
        phase: first phase; None: no line of phases.
    """

    def __init__(self, console: Console, on_execution: Callable[[str], None], phase: str | None = None) -> None:
        super().__init__(logging.INFO)
        self.console = console
        self._first_phase = phase
        self._phase: TaskID | None = None
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            # Both go to the log; rich would redirect them to the terminal.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, float] = {}
        self._reused: set[str] = set()
        self._on_execution = on_execution
        self._last_plain = 0.0

    @contextlib.contextmanager
    def live(self) -> Iterator[None]:
        """Draws while the block runs; the line of phases is not left on the terminal."""
        if not self.console.is_terminal:
            yield
            return
        with self._progress:
            if self._first_phase is not None:
                self._phase = self._progress.add_task(self._first_phase, total=None, note="")
            try:
                yield
            finally:
                if self._phase is not None:
                    self._progress.remove_task(self._phase)
                    self._phase = None

    def emit(self, record: logging.LogRecord) -> None:
        """Draws a log record of a node event, of progress, of a phase or of our loggers."""
        self._draw(record)
        if self._phase is None:
            return
        if any(not bar.finished for bar in self._progress.tasks if bar.id != self._phase):
            # The phase is over when the bars are done.
            self._progress.reset(self._phase, description=_AFTER_BARS, visible=False)
        else:
            self._progress.update(self._phase, visible=True)

    def _draw(self, record: logging.LogRecord) -> None:
        message = printable(record.getMessage())  # names of folders and files may hold control characters
        progress = getattr(record, PROGRESS_ATTRIBUTE, None)
        event = _NODE_EVENT.search(message)
        if progress is not None:
            self._draw_progress(progress, message)
        elif hasattr(record, PHASE_ATTRIBUTE):
            if self._phase is not None:
                self._progress.reset(self._phase, description=message)
        elif record.name.startswith("cocoflow"):
            styles = {logging.WARNING: "yellow", logging.ERROR: "bold red"}
            self._print(f"  {message}", styles.get(record.levelno, "dim"))
        elif event and event[2] == "running":
            self._start(event[1])
        elif event:
            self._finish(event[1])
        elif event := _REUSED_EVENT.match(message):
            self._reused.add(event[1])
        elif event := _EXECUTED_EVENT.match(message):
            self._on_execution(event[1])

    def _start(self, node: str) -> None:
        self._started[node] = time.monotonic()
        if self.console.is_terminal:
            self._bar(node)
        else:
            self._print(f"{node} ...")

    def _finish(self, node: str) -> None:
        seconds = time.monotonic() - self._started.pop(node, time.monotonic())
        note = "reused" if node in self._reused else "done"
        if self.console.is_terminal:
            self._progress.update(self._bar(node), total=1, completed=1, note=note)
        else:
            self._print(f"{node} {note}, {seconds:.1f} s")

    def _draw_progress(self, progress: WorkProgress, message: str) -> None:
        if self.console.is_terminal:
            bar = self._bar(next(reversed(self._started), progress.work))
            self._progress.update(bar, total=progress.total, completed=progress.done, note=progress.note)
        elif time.monotonic() - self._last_plain > _PLAIN_INTERVAL_SECONDS or progress.done == progress.total:
            self._last_plain = time.monotonic()
            self._print(f"  {message}")

    def _bar(self, node: str) -> TaskID:
        if node not in self._tasks:
            self._tasks[node] = self._progress.add_task(node, total=None, note="")
        return self._tasks[node]

    def _print(self, message: str, style: str | None = None) -> None:
        self.console.print(message, style=style, highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def quiet_run(
    log_file: Path | None,
    *,
    verbose: bool,
    on_execution: Callable[[str], None] = lambda node: None,
    phase: str | None = None,
) -> Iterator[Console]:
    """Sends the output of the libraries to a log file, and draws the run on stderr.

    Args:
        log_file: file to append to; None discards the output.
        verbose: leave the output on the terminal, and draw nothing.
        on_execution: called with the id of each node that is executed, unless `verbose`.
        phase: what begins now, for a moving line on terminals, which `schemas.progress.log_phase` changes; None: the
            command shows by itself that it works.

    Yields:
        The terminal, for further drawing.

    Raises:
        DataError: the log file cannot be written.
    """
    if verbose:
        logging.basicConfig(level=logging.INFO, force=True)
        yield Console(stderr=True)
        return
    with _open_log(log_file) as log, _descriptors_to(log.fileno()) as terminal:
        display = RunDisplay(Console(file=terminal, emoji=False), on_execution, phase)
        written = logging.StreamHandler(log)
        written.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        # Notebooks and test runners replace sys.stdout and sys.stderr by objects of their own.
        redirected = contextlib.redirect_stdout(log), contextlib.redirect_stderr(log)
        with redirected[0], redirected[1], _root_handlers([written, display]), display.live():
            yield display.console


class _LogFile(io.FileIO):
    """A file that ignores a full disk: a run must not fail because of its log."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except OSError:
            return memoryview(content).nbytes


def _open_log(path: Path | None) -> IO[str]:
    try:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        return io.TextIOWrapper(io.BufferedWriter(_LogFile(path or os.devnull, "a")), encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot write the log: {error.strerror}. Choose another folder.") from error


@contextlib.contextmanager
def _descriptors_to(log: int) -> Iterator[IO[str]]:
    """Redirects file descriptors 1 and 2, to which C++ code writes."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = {number: os.dup(number) for number in (1, 2)}
    terminal = os.fdopen(os.dup(2), "w", encoding="utf-8")
    try:
        for number in saved:
            os.dup2(log, number)
        yield terminal
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in saved.items():
            os.dup2(copy, number)
            os.close(copy)
        terminal.close()


@contextlib.contextmanager
def _root_handlers(handlers: list[logging.Handler]) -> Iterator[None]:
    # absl, through which TFX logs, resets its verbosity at times unless it is set.
    absl.logging.set_verbosity(absl.logging.INFO)
    root = logging.getLogger()
    before, level = root.handlers, root.level
    root.handlers = list(handlers)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.handlers = before
        root.setLevel(level)
