"""`watch` killed at random moments, with a stub for its runs: no run lost, none doubled, the records complete."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from detection.storage import files
from detection.storage.paths import join
from pipelines.runs.history import RunHistory
from pipelines.runs.run_record import DONE, SKIPPED, RunRecord
from pipelines.watch.decisions import number_of, times_in_words
from pipelines.watch.schedule import Schedule
from tests.components.coco_example_gen.data_set import write_data_set
from tests.pipelines.watch.stub import STARTS

CRON = "*/30 * * * *"
SPEED = 900  # a cron time comes every two seconds


class Story:
    """A `watch` that is killed and started again, and the data that arrives meanwhile.

    Args:
        folder: for the configuration and the data.
        root: run.root.
        work_ms: length of a run's work, milliseconds.
    """

    def __init__(self, folder: Path, root: str, *, work_ms: int = 150) -> None:
        self.root = root
        self.data = folder / "data"
        self.config = folder / "config.yaml"
        self.spans = 0
        self.began = time.time()
        self.write_config(work_ms=work_ms)

    def write_config(self, *, work_ms: int) -> None:
        self.config.write_text(
            yaml.safe_dump(
                {
                    "run": {"root": self.root, "name": f"stub-{work_ms}"},
                    "data": {"root": str(self.data / "{SPAN}")},
                    "watch": {"new_span": True, "poll_seconds": 0.05, "cron": CRON},
                }
            )
        )

    def add_span(self) -> None:
        self.spans += 1
        write_data_set(self.data / str(self.spans), images=1)

    def start(self, *flags: str) -> "subprocess.Popen[bytes]":
        program = [sys.executable, "-m", "tests.pipelines.watch.stub", "watch", str(self.config)]
        return subprocess.Popen([*program, "--speed", str(SPEED), "--began", repr(self.began), *flags])

    def decisions(self) -> list[RunRecord]:
        """The records of all decisions, the first one first."""
        records = {number_of(record.id): record for record in RunHistory(self.root).read_all()}
        return [records[number] for number in sorted(number for number in records if number is not None)]

    def runs(self) -> list[RunRecord]:
        """The records of the decisions to run."""
        return [one for one in self.decisions() if one.state != SKIPPED]

    def starts(self) -> int:
        """Number of processes that began a run."""
        folder = join(self.root, STARTS)
        return len(files.list_folder(folder)) if files.is_dir(folder) else 0

    def is_decided(self) -> bool:
        """Whether the newest span has a run."""
        return any(one.data and one.data.span == self.spans for one in self.runs())

    def finish(self) -> list[RunRecord]:
        """Lets `watch` work until the newest span is trained; returns the decisions."""
        with self.start() as process:
            try:
                wait_for(self.is_trained, process)
            finally:
                process.kill()
        return self.decisions()

    def is_trained(self) -> bool:
        """Whether the newest span's run is done."""
        return any(one.state == DONE and one.data and one.data.span == self.spans for one in self.runs())


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    """Waits for a condition while a process runs."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)


def require_complete(story: Story, decisions: list[RunRecord]) -> None:
    """Checks everything that holds however often `watch` was killed."""
    assert [number_of(one.id) for one in decisions] == list(range(1, len(decisions) + 1))
    runs = [one for one in decisions if one.state != SKIPPED]
    assert [one.data.span for one in runs if one.data] == list(range(1, story.spans + 1)), "each span once, in order"
    assert all(one.state == DONE for one in runs)
    # No attempt met another one, or a run that was done: each of these would be a failure.
    assert all(one.plan is not None and one.plan.failures == 0 for one in runs)
    assert len(RunHistory(story.root).read_all()) == len(decisions), "no run that was not decided upon"
    starts = Counter(name.rsplit("-", 2)[0] for name in files.list_folder(join(story.root, STARTS)))
    assert starts == {record.id: starts[record.id] for record in runs}
    last_start = {
        name.rsplit("-", 2)[0]: int(name.rsplit("-", 1)[1]) / 1e9
        for name in sorted(files.list_folder(join(story.root, STARTS)), key=lambda name: int(name.rsplit("-", 1)[1]))
    }
    for record in runs:
        assert record.ended is not None
        assert last_start[record.id] < datetime.fromisoformat(record.ended).timestamp(), "not run again when done"
    require_all_cron_times(decisions)


def require_all_cron_times(decisions: list[RunRecord]) -> None:
    """Checks that every cron time is decided by exactly one decision; one that was replaced is part of the next."""
    plans = [one.plan for one in decisions if one.plan is not None]
    assert len(plans) == len(decisions)
    until, schedule = datetime.fromisoformat(str(plans[0].decided_until)), Schedule(CRON, "UTC")
    for plan, record in zip(plans[1:], decisions[1:], strict=True):
        decided = datetime.fromisoformat(str(plan.decided_until))
        if plan.due is None:
            assert decided == until
        else:
            due = schedule.due(until, decided)
            assert due is not None
            assert due.last == decided == datetime.fromisoformat(plan.due)
            assert due.first == due.last or record.state == SKIPPED or times_in_words(due) in plan.reason
        until = decided


def kill_at_random_moments(story: Story, *, seed: int, kills: int) -> None:
    """Kills `watch` soon after its start, the start of a run or the end of one: on a busy machine, all take longer."""
    chance = random.Random(seed)
    story.add_span()
    for _ in range(kills):
        with story.start() as process:
            starts = story.starts()
            after = {
                "begin": lambda: True,
                "start": lambda starts=starts: story.starts() > starts or story.is_trained(),
                "end": story.is_trained,
            }
            try:
                wait_for(after[chance.choice(sorted(after))], process)
                time.sleep(chance.uniform(0.0, 0.6))
            finally:
                process.send_signal(signal.SIGKILL)
        if story.is_decided():
            story.add_span()


@pytest.mark.slow
def test_killed_at_20_moments_it_loses_no_run_and_doubles_none(tmp_path: Path) -> None:
    story = Story(tmp_path, str(tmp_path / "run"))
    kill_at_random_moments(story, seed=7, kills=20)
    decisions = story.finish()
    require_complete(story, decisions)
    assert story.spans > 3
    assert any(one.attempt > 1 for one in decisions), "a run was killed and resumed"
