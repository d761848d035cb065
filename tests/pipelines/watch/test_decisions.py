"""When `watch` runs and when it does not, in a world of its own: clock, data and runs are made up here."""

import contextlib
import re
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detection.storage.atomic import write_text
from detection.storage.lock import lock_folder
from pipelines.runs.run_record import DONE
from pipelines.watch.decisions import number_of, pause_after
from pipelines.watch.drift import Drift
from pipelines.watch.schedule import Schedule
from schemas.errors import DataError
from tests.pipelines.watch.world import START, Kill, World, patched

HOUR = timedelta(hours=1)
HOURLY = "0 * * * *"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    """Makes a world that `watch` is in."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(patched(World(tmp_path, **options)))


def test_a_cron_time_runs_and_the_next_ones_skip_until_something_changes(make: Any) -> None:
    world = make(cron=HOURLY)
    world.run_until(START + 2.5 * HOUR)
    first = world.decisions()[0].id
    assert world.told() == [
        "run, cron: no run is done yet",
        f"skip, cron: neither span 1 nor the configuration changed since run {first}",
    ]
    world.data = (1, "b")
    world.run_until(START + 3.5 * HOUR)
    assert world.told()[2:] == [f"run, cron: the files of the data changed since run {first}"]
    world.assignments = ["train.steps=7"]
    world.run_until(START + 4.5 * HOUR)
    second = world.decisions()[2].id
    assert world.told()[3:] == [f"run, cron: the configuration changed since run {second}"]
    world.data = (2, "c")
    world.run_until(START + 5.5 * HOUR)
    third = world.decisions()[3].id
    assert world.told()[4:] == [f"run, cron: span 2 is there, and run {third} trained on span 1"]
    assert world.done == [(one.id, one.data.span) for one in world.decisions() if one.data and one.state == DONE]


def test_cron_times_without_a_change_leave_one_record(make: Any) -> None:
    world = make(cron="* * * * *")
    world.run_seconds = 1.0
    world.run_until(START + 1.5 * HOUR)
    first, skipped = world.decisions()
    assert (first.state, skipped.state, skipped.attempt) == ("done", "skipped", 0)
    assert skipped.plan.decided_until == "2026-11-23T01:30:00.000+00:00"
    world.data = (2, "a")
    world.run_until(START + 1.6 * HOUR)
    assert [one.state for one in world.decisions()] == ["done", "skipped", "done", "skipped"]
    assert world.decisions()[1] == skipped, "of other data"


def test_a_person_s_run_counts_as_a_training(make: Any) -> None:
    world = make(cron=HOURLY, new_span=True)
    world.run_until(START + 0.5 * HOUR)
    world.data = (2, "b")
    world.train_by_hand("mine")
    world.run_until(START + 1.5 * HOUR)
    assert world.told()[1:] == ["skip, cron: neither span 2 nor the configuration changed since run mine"]
    world.data = (2, "c")
    world.run_until(START + 2.5 * HOUR)
    assert world.told()[2:] == ["run, cron: the files of the data changed since run mine"]


def test_a_report_that_was_removed_is_made_again(make: Any) -> None:
    world = make(cron=HOURLY)
    world.run_until(START + 1.5 * HOUR)
    [first] = world.decisions()
    Path(world.root, "evaluation/report.html").unlink()
    world.run_until(START + 2.5 * HOUR)
    assert world.told()[1:] == [f"run, cron: the report of run {first.id} is missing"]


def test_keys_that_do_not_decide_about_the_result_do_not_train_again(make: Any) -> None:
    world = make(cron=HOURLY)
    world.run_until(START + 1.5 * HOUR)
    world.assignments = ["train.log_every=7", "watch.poll_seconds=7", "run.name=other"]
    world.run_until(START + 2.5 * HOUR)
    assert [one.state for one in world.decisions()] == ["done", "skipped"]


def test_a_new_span_runs_once_and_an_older_one_never(make: Any) -> None:
    world = make(new_span=True)
    for span in (4, 3, 4, 5, 5):
        world.data = (span, f"{span}")
        world.run_until(world.now + HOUR)
    assert [span for _, span in world.done] == [4, 5]
    assert [one.plan.cause for one in world.decisions()] == ["new span", "new span"]
    assert world.decisions()[0].trigger == "watch: new span (span 4)"


def test_data_that_is_written_is_waited_for(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "cocoflow.watch")
    world = make(new_span=True, poll_seconds=60)
    world.data = None
    world.run_until(START + HOUR)
    for step in range(5):
        world.data = (1, f"content {step}")
        world.run_until(world.now + timedelta(seconds=59))  # less than from one look to the next
    assert world.done == []
    world.run_until(world.now + timedelta(minutes=5))
    assert len(world.done) == 1
    assert [message for message in caplog.messages if "waiting for data" in message] == [
        "waiting for data: /data/{SPAN}: no span found. Check data.root or data.splits."
    ], "once, not at each look"


def test_once_says_what_is_wrong_with_the_data(make: Any) -> None:
    world = make(new_span=True)
    world.data = None
    with pytest.raises(DataError, match="no span found"):
        world.watch().run_once()
    world.data = (1, "a")
    assert world.watch().run_once()
    assert len(world.done) == 1


def test_another_configuration_is_trained_whatever_the_drift(make: Any) -> None:
    world = make(cron=HOURLY, drift="{enabled: true}")
    references: list[str | None] = []

    def measure(split: Any, options: Any, *, destination: str, reference: str | None) -> list[Drift]:
        references.append(reference)
        write_text(destination, "statistics")
        return [] if reference is None else [Drift("category", 0.0, 0.1)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.watch.drift.measure", measure)
        world.run_until(START + 1.5 * HOUR)
        world.assignments = ["train.steps=7"]
        world.run_until(START + 2.5 * HOUR)
    assert references == [None, None]
    assert [one.state for one in world.decisions()] == ["done", "done"]


def test_annotations_that_cannot_be_measured_are_waited_for(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "cocoflow.watch")
    world = make(new_span=True, drift="{enabled: true}")

    def fails(*_: Any, **__: Any) -> list[Drift]:
        raise DataError("train.json: not JSON.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.watch.drift.measure", fails)
        world.run_until(START + HOUR)
    assert [message for message in caplog.messages if "waiting" in message] == [
        "waiting for data: train.json: not JSON."
    ]
    assert world.told() == []


def test_data_that_changes_between_two_looks_is_waited_for(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "cocoflow.watch")
    world = make(new_span=True, poll_seconds=60)
    plain, looks = world.observe, iter("abcd")

    def observe(config: Any, located: Any) -> Any:
        world.data = (1, next(looks, "d"))
        return plain(config, located)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.watch.watch.observe", observe)
        world.run_until(START + HOUR)
    [decision] = world.decisions()
    assert decision.plan.considered.input_fingerprint == "d"
    assert [message.partition(":")[0] for message in caplog.messages if "looking again" in message] == [
        "span 1 was found",
        "span 1 has changed",
    ], "not at each look"


def test_cron_times_missed_while_it_was_down_are_one_run(make: Any) -> None:
    world = make(cron=HOURLY)
    world.run_until(START + 0.5 * HOUR)
    world.now += 5 * HOUR
    world.run_until(world.now + 0.2 * HOUR)
    assert world.told() == [
        "run, cron: the cron times from 2026-11-23 01:00 to 2026-11-23 05:00 UTC: no run is done yet"
    ]


def test_cron_times_missed_while_it_was_down_can_be_left_out(make: Any) -> None:
    world = make(cron=HOURLY, catch_up="false")
    world.run_until(START + 0.5 * HOUR)
    world.now += 5 * HOUR
    world.run_until(START + 6.5 * HOUR)
    assert world.told() == [
        "skip, cron: the cron times from 2026-11-23 01:00 to 2026-11-23 05:00 UTC passed while `watch` was down, "
        "and catch_up is off",
        "run, cron: no run is done yet",
    ]
    assert len(world.done) == 1


def test_cron_times_during_a_run_are_one_decision_after_it(make: Any) -> None:
    world = make(cron=HOURLY, catch_up="false")
    world.run_seconds = 3.4 * 3600
    world.run_until(START + 4.6 * HOUR)
    assert START + 5 * HOUR > world.now > START + 4 * HOUR
    assert [one.state for one in world.decisions()] == ["done", "skipped"]


def test_a_failed_run_is_repeated_with_longer_pauses_under_its_id(make: Any) -> None:
    world = make(new_span=True, max_failures=4, retry_seconds=100)
    world.codes = [1, 1, 1]
    world.run_until(START + 3 * HOUR)
    [run] = world.decisions()
    assert world.attempts == [run.id] * 4
    assert (run.state, run.attempt, run.plan.failures, run.plan.exit_code) == ("done", 4, 3, 1)
    pauses = [(later - former).total_seconds() - world.run_seconds for former, later in pairwise(world.attempted)]
    assert pauses == pytest.approx([100, 200, 400], abs=1)


def test_the_pause_lasts_over_a_restart(make: Any) -> None:
    world = make(new_span=True, retry_seconds=3600)
    world.codes = [1]
    world.run_until(START + 0.3 * HOUR)
    world.run_until(START + 0.6 * HOUR)
    assert len(world.attempts) == 1
    world.run_until(START + 1.6 * HOUR)
    assert len(world.attempts) == 2


def test_a_run_is_given_up_and_its_span_not_tried_again(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    world = make(new_span=True, max_failures=2)
    world.codes = [1] * 10
    world.run_until(START + 10 * HOUR)
    [run] = world.decisions()
    assert (run.state, run.plan.failures) == ("given up", 2)
    assert f"run {run.id} is given up after 2 failures" in caplog.text
    world.codes = []
    world.assignments = ["train.steps=9"]
    world.run_until(START + 11 * HOUR)
    assert len(world.done) == 1, "another configuration may cure it"
    world.data = (2, "b")
    world.run_until(START + 12 * HOUR)
    assert len(world.done) == 2


def test_a_wrong_configuration_is_given_up_at_once(make: Any) -> None:
    world = make(new_span=True)
    world.codes = [2]
    world.run_until(START + 10 * HOUR)
    assert [(one.state, one.plan.exit_code) for one in world.decisions()] == [("given up", 2)]
    assert len(world.attempts) == 1


def test_a_run_waits_for_a_person_s_run(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "cocoflow.watch")
    world = make(new_span=True)
    with lock_folder(world.root, instead="wait"):
        world.run_until(START + HOUR)
    assert world.attempts == []
    assert len([message for message in caplog.messages if "waiting: " in message and "in use by" in message]) == 1
    world.run_until(START + 2 * HOUR)
    assert len(world.done) == 1


def test_ctrl_c_leaves_a_run_that_the_next_start_takes_up(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "cocoflow.watch")
    world = make(new_span=True)

    def interrupt() -> None:
        if world.attempts:
            raise KeyboardInterrupt

    world.kill = interrupt
    with pytest.raises(KeyboardInterrupt):
        world.run_until(START + HOUR)
    world.kill = lambda: None
    [run] = world.decisions()
    world.run_until(START + 2 * HOUR)
    assert world.attempts == [run.id] * 2
    [run] = world.decisions()
    assert (run.state, run.plan.failures) == ("done", 0)


def test_pauses_double_up_to_a_day() -> None:
    assert [pause_after(failures, 60) for failures in range(4)] == [0, 60, 120, 240]
    assert pause_after(1000, 60) == 86400


@pytest.mark.parametrize("time", ["", "soon", "2026-11-23T00:00:00", "9999-12-31T23:59:59+00:00"])
@pytest.mark.parametrize("key", ["due", "decided_until"])
def test_a_newest_decision_that_cannot_be_read_is_an_error(make: Any, key: str, time: str) -> None:
    """An older one in its place would decide again."""
    world = make(cron=HOURLY)
    world.run_until(START + 1.5 * HOUR)
    [run] = world.decisions()
    path = Path(world.root, f"history/runs/{run.id}.json")
    path.write_text(re.sub(rf'"{key}": "[^"]*"', f'"{key}": "{time}"', path.read_text()))
    with pytest.raises(DataError, match=rf"{run.id}\.json: not the record of a run .*{key}: .*Restore the file"):
        world.run_until(START + 2 * HOUR)


ACTIONS = ("wait", "span", "files", "config", "fail", "gone")


@settings(max_examples=25)
@given(
    actions=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(1, 300)), min_size=1, max_size=8),
    kills=st.lists(st.integers(0, 12), max_size=8),
    triggers=st.sampled_from([{"cron": HOURLY}, {"new_span": True}, {"cron": HOURLY, "new_span": True}]),
)
def test_whatever_happens_each_decision_to_run_leads_to_one_finished_run(
    actions: list[tuple[str, int]], kills: list[int], triggers: dict[str, Any]
) -> None:
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # each record is flushed to the disk
    with (
        tempfile.TemporaryDirectory(dir=memory) as folder,
        patched(World(Path(folder), poll_seconds=600, **triggers)) as world,
    ):
        left = list(kills)

        def kill() -> None:
            if left:
                left[0] -= 1
                if left[0] < 0:
                    left.pop(0)
                    raise Kill

        world.kill = kill
        for number, (action, minutes) in enumerate([*actions, ("wait", 600)]):
            if action == "span":
                world.data = (number + 2, "a")
            elif action == "files":
                world.data = (world.data[0] if world.data else 1, f"{number}")
            elif action == "config":
                world.assignments = [f"train.steps={number + 1}"]
            elif action == "fail":
                world.codes = [1]
            elif action == "gone":
                world.data = None
            until = world.now + timedelta(minutes=minutes)
            while world.now < until:
                try:
                    world.run_until(until)
                except Kill:
                    world.now += timedelta(seconds=30)
        require_one_run_each(world, cron="cron" in triggers)


def require_one_run_each(world: World, *, cron: bool) -> None:
    begin, *decisions = world.all_decisions()
    assert [number_of(one.id) for one in (begin, *decisions)] == list(range(1, len(decisions) + 2))
    runs = [one for one in decisions if one.state != "skipped"]
    assert [one.id for one in runs] == [run_id for run_id, _ in world.done], "none lost, none twice, none else"
    assert [one.plan.considered.span for one in runs if one.plan and one.plan.considered] == [
        span for _, span in world.done
    ]
    for one in runs:
        # A kill may come between the start of an attempt and its record.
        assert world.attempts.count(one.id) >= one.attempt >= 1
        assert one.state == "done"
    assert begin.plan is not None
    until = datetime.fromisoformat(str(begin.plan.decided_until))
    for one in decisions:
        assert one.plan is not None
        decided = datetime.fromisoformat(str(one.plan.decided_until))
        if one.plan.due is None:
            assert decided == until
        else:
            due = Schedule(HOURLY, "UTC").due(until, decided)
            assert due is not None
            assert decided == due.last == datetime.fromisoformat(one.plan.due)
        until = decided
    if cron and world.data is not None:
        assert world.now - until < HOUR, "all cron times are decided"


def test_new_data_without_drift_is_skipped_and_compared_with_the_last_training(make: Any) -> None:
    world = make(new_span=True, drift="{enabled: true}")
    measured: list[tuple[str, str | None]] = []
    values = {2: 0.05, 3: 0.2, 4: 0.01}

    def measure(split: Any, options: Any, *, destination: str, reference: str | None) -> list[Drift]:
        measured.append((Path(destination).name, reference and Path(reference).name))
        write_text(destination, "statistics")
        return [] if reference is None else [Drift("category", values[world.data[0]], options.infinity_norm)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.watch.drift.measure", measure)
        for span in (1, 2, 3, 4):
            world.data = (span, f"{span}")
            world.run_until(START + span * HOUR)
        world.assignments = ["watch.drift.infinity_norm=0.001"]
        world.data = (5, "5")
        values[5] = 0.002
        world.run_until(START + 5 * HOUR)
    first, third = (one.id for one in world.decisions() if one.data.span in (1, 3))
    assert world.told() == [
        "run, new span: no run is done yet",
        f"skip, new span: span 2 is there, and run {first} trained on span 1; no drift: category 0.050 (up to 0.1)",
        f"run, new span: span 3 is there, and run {first} trained on span 1; drifted: category 0.200 (above 0.1)",
        f"skip, new span: span 4 is there, and run {third} trained on span 3; no drift: category 0.010 (up to 0.1)",
        f"run, new span: span 5 is there, and run {third} trained on span 3; drifted: category 0.002 (above 0.001)",
    ]
    assert [reference for _, reference in measured] == [None, "1.json", "1.json", "3.json", "3.json"]
