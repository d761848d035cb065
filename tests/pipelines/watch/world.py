"""A world for `watch` in this process: its clock, its data, and runs that only write their records."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from components.coco_example_gen.spans.span_paths import SpanSplits, SpanVersion
from detection.datasets.splits import SplitFiles
from pipelines.runs.comparison import RunInputs, data_of
from pipelines.runs.history import RunHistory, deciding_digest
from pipelines.runs.run_record import DONE, SKIPPED, RunRecord
from pipelines.watch import supervisor, watch
from pipelines.watch.decisions import number_of
from pipelines.watch.watch import Watch
from schemas.artifacts import REPORT_HTML
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.errors import DataError

START = datetime(2026, 11, 23, tzinfo=UTC)


class Kill(BaseException):
    """Ends a `watch` as SIGKILL does: nothing after it is done."""


class Stop(BaseException):
    """Ends a `watch` that waits."""


class FakeProcess:
    """A run; `wait` does its work."""

    def __init__(self, world: "World", run_id: str, config: str, trigger: str) -> None:
        self._world = world
        self._run_id = run_id
        self._config = load_config(config)
        self._trigger = trigger
        self.returncode = 0

    def wait(self) -> int:
        """Runs."""
        self._world.now += timedelta(seconds=self._world.run_seconds)
        self.returncode = self._world.do_run(self._run_id, self._config, self._trigger)
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
        attempts: ids of the runs that were started, in order.
        attempted: times at which they had run, likewise.
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
        self.attempted: list[datetime] = []
        self.kill: Callable[[], None] = lambda: None
        self.stop_at: datetime | None = None
        self.history = RunHistory(self.root)

    def config(self) -> Config:
        """The configuration."""
        options = [f"watch.{key}={value}" for key, value in self.options.items()]
        return load_config(None, [f"run.root={self.root}", "data.root=/data/{SPAN}", *options, *self.assignments])

    def watch(self) -> Watch:
        """A new `watch`."""
        return Watch(self.config(), clock=lambda: self.now)

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

    def observe(self, config: Any, located: SpanSplits) -> RunInputs:
        """Takes the place of `observe`."""
        assert self.data is not None
        return RunInputs(data_of(config, located, input_fingerprint=self.data[1]), deciding_digest(config))

    def start(self, command: list[str]) -> FakeProcess:
        """Takes the place of `start_process`."""
        given = dict(zip(command[3::2], command[4::2], strict=True))
        return FakeProcess(self, given["--run-id"], given["--config"], given["--trigger"])

    def do_run(self, run_id: str, config: Config, trigger: str) -> int:
        """Runs, in steps between which a kill may come."""
        before = self.history.read(run_id)
        assert before is not None
        assert before.state != DONE, "a run that is done was started again"
        self.attempts.append(run_id)
        self.attempted.append(self.now)
        self.kill()
        record = self.record_of_run(run_id, config)
        record = record.model_copy(update={"trigger": trigger, "attempt": before.attempt + 1, "plan": before.plan})
        self.history.write(record)
        self.kill()
        code = self.codes.pop(0) if self.codes else 0
        ended = {"state": DONE if code == 0 else "failed", "ended": self.now.isoformat()}
        self.history.write(record.model_copy(update=ended))
        if code == 0:
            self.done.append((run_id, config.data.span))
        self.kill()
        return code

    def record_of_run(self, run_id: str, config: Config) -> RunRecord:
        """The record of a run that begins now, on the data that its configuration names."""
        report = Path(self.root, "evaluation", REPORT_HTML)
        report.parent.mkdir(parents=True, exist_ok=True)
        report.touch()
        newest, content = self.data or (0, "gone")
        span = newest if config.data.span is None else config.data.span
        located = SpanSplits({}, SpanVersion(span, None))
        return RunRecord(
            id=run_id,
            state="running",
            started=self.now.isoformat(),
            data=data_of(config, located, input_fingerprint=content if span == newest else "older"),
            config=self.history.store_config(config),
            evaluation=str(report.parent),
        )

    def train_by_hand(self, run_id: str) -> None:
        """A person's run on the newest data."""
        record = self.record_of_run(run_id, self.config())
        self.history.write(record.model_copy(update={"state": DONE, "ended": self.now.isoformat()}))

    def decisions(self) -> list[RunRecord]:
        """The records of the decisions, in order, without that of the begin."""
        return self.all_decisions()[1:]

    def all_decisions(self) -> list[RunRecord]:
        """The records of the decisions, in order."""
        records = {number_of(record.id): record for record in self.history.read_all()}
        return [records[number] for number in sorted(number for number in records if number is not None)]

    def told(self) -> list[str]:
        """Decision, cause and reason of each decision."""
        return [
            f"{'skip' if one.state == SKIPPED else 'run'}, {one.plan.cause}: {one.plan.reason}"
            for one in self.decisions()
            if one.plan is not None
        ]


@contextmanager
def patched(world: World) -> Iterator[World]:
    """Puts `watch` into a world."""
    with pytest.MonkeyPatch.context() as patch:
        write = Watch._write

        def write_or_die(self: Watch, record: RunRecord) -> None:
            world.kill()
            write(self, record)
            world.kill()

        patch.setattr(watch, "find_data", world.find)
        patch.setattr(watch, "observe", world.observe)
        patch.setattr(watch.time, "sleep", world.sleep)
        patch.setattr(supervisor, "start_process", world.start)
        patch.setattr(supervisor, "end_process", lambda process: None)
        patch.setattr(Watch, "_write", write_or_die)
        yield world
