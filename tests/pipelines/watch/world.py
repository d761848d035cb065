"""A world for `watch` in this process: its clock, its data, and runs that are entries of a list."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from components.coco_example_gen.spans.span_paths import SpanSplits, SpanVersion
from detection.datasets.layouts import SplitFiles
from pipelines.runs.history import RunHistory
from pipelines.runs.run_record import DONE, RunRecord
from pipelines.watch import child, watch
from pipelines.watch.journal import Data, Entry, Journal
from pipelines.watch.watch import Watch
from schemas.config.config_io import load_config
from schemas.errors import DataError

START = datetime(2026, 11, 23, tzinfo=UTC)


class Kill(BaseException):
    """Ends a `watch` as SIGKILL does: nothing after it is done."""


class Stop(BaseException):
    """Ends a `watch` that waits."""


class FakeProcess:
    """A run; `wait` does its work."""

    def __init__(self, world: "World", run_id: str, config: str) -> None:
        self._world = world
        self._run_id = run_id
        self._config = load_config(config)
        self.returncode = 0

    def wait(self) -> int:
        """Runs."""
        self._world.now += timedelta(seconds=self._world.run_seconds)
        self.returncode = self._world.do_run(self._run_id, self._config.data.span)
        return self.returncode


class World:
    """Everything that a `watch` meets.

    Args:
        folder: of run.root.
        assignments: `--set` assignments of the section `watch`, in a mapping.

    Attributes:
        now: the time; a sleep moves it.
        data: the newest span with the name of its content; None: nothing is there.
        run_seconds: length of a run.
        codes: exit codes of the next runs; 0 when they are used up.
        done: ids and spans of the runs that finished, in order.
        kill: called at each moment at which a kill may come.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        self.root = str(folder / "run")
        self.options = options
        self.assignments: list[str] = []
        self.now = START
        self.data: tuple[int, str] | None = (1, "a")
        self.run_seconds = 600.0
        self.codes: list[int] = []
        self.done: list[tuple[str, int | None]] = []
        self.attempts: list[str] = []
        self.kill: Callable[[], None] = lambda: None
        self.stop_at: datetime | None = None

    def watch(self) -> Watch:
        """A new `watch`."""
        options = [f"watch.{key}={value}" for key, value in self.options.items()]
        config = load_config(None, [f"run.root={self.root}", "data.root=/data/{SPAN}", *options, *self.assignments])
        return Watch(config, clock=lambda: self.now)

    def run_until(self, moment: datetime) -> None:
        """Lets a new `watch` work until a moment."""
        self.stop_at = moment
        with suppress(Stop):
            self.watch().run()

    def sleep(self, seconds: float) -> None:
        """Takes the place of `time.sleep`."""
        if self.stop_at is not None and self.now + timedelta(seconds=seconds) > self.stop_at:
            self.now = max(self.now, self.stop_at)
            raise Stop
        self.now += timedelta(seconds=max(seconds, 0.001))

    def find(self, config: Any) -> SpanSplits:
        """Takes the place of `find_data`."""
        if self.data is None:
            raise DataError("/data/{SPAN}: no span found. Check data.root or data.splits.")
        return SpanSplits({"train": SplitFiles("/data/train.json", "/data")}, SpanVersion(self.data[0], None))

    def observe(self, config: Any, located: SpanSplits) -> Data:
        """Takes the place of `observe`."""
        assert self.data is not None
        return Data(*located.newest, self.data[1], watch.config_digest(config))

    def start(self, command: list[str]) -> FakeProcess:
        """Takes the place of `child.start`."""
        given = dict(zip(command[3::2], command[4::2], strict=True))
        return FakeProcess(self, given["--run-id"], given["--config"])

    def do_run(self, run_id: str, span: int | None) -> int:
        """Runs, in steps between which a kill may come."""
        history = RunHistory(self.root)
        before = history.read(run_id)
        assert before is None or before.state != DONE, "a run that is done was started again"
        self.attempts.append(run_id)
        self.kill()
        history.write(RunRecord(id=run_id, state="running", started=self.now.isoformat()))
        self.kill()
        code = self.codes.pop(0) if self.codes else 0
        state = DONE if code == 0 else "failed"
        history.write(RunRecord(id=run_id, state=state, started=self.now.isoformat(), ended=self.now.isoformat()))
        if code == 0:
            self.done.append((run_id, span))
        self.kill()
        return code

    def entries(self) -> list[Entry]:
        """The journal."""
        return Journal(f"{self.root}/watch/journal").entries()

    def told(self) -> list[str]:
        """Decision, cause and reason of each entry, without the first."""
        return [f"{one.decision}, {one.cause}: {one.reason}" for one in self.entries()[1:]]


@contextmanager
def patched(world: World) -> Iterator[World]:
    """Puts `watch` into a world."""
    with pytest.MonkeyPatch.context() as patch:
        write = Journal.write

        def write_or_die(self: Journal, entry: Entry) -> None:
            world.kill()
            write(self, entry)
            world.kill()

        patch.setattr(watch, "find_data", world.find)
        patch.setattr(watch, "observe", world.observe)
        patch.setattr(watch.time, "sleep", world.sleep)
        patch.setattr(child, "start", world.start)
        patch.setattr(child, "end", lambda process: None)
        patch.setattr(Journal, "write", write_or_die)
        yield world
