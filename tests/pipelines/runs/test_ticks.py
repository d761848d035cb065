"""Schedulers call `run --if-changed` again and again, and may kill it: each span has exactly one finished run."""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from components.history.queries import History
from components.history.records import DONE, FAILED, SKIPPED
from tests.components.coco_example_gen.data_set import write_data_set
from tests.forked_calls import ForkedCalls, forked_calls
from tests.pipelines.runs import ticks

pytestmark = pytest.mark.slow

TICK = f"{ticks.__name__}:tick"


@pytest.fixture(scope="module")
def call() -> Iterator[ForkedCalls]:
    with forked_calls(*ticks.MODULES) as calls:
        yield calls


def test_20_ticks_with_kills_between_them(call: ForkedCalls, tmp_path: Path) -> None:
    chance = random.Random(7)
    root, data = tmp_path / "run", tmp_path / "data"
    history, spans = History(str(root)), 1
    write_data_set(data / "1", images=1)

    def kill_soon(pid: int) -> None:
        threading.Timer(chance.uniform(0.0, 0.5), _kill, [pid]).start()

    def is_trained() -> bool:
        return any(one.state == DONE and one.data and one.data.span == spans for one in history.runs())

    codes = Counter[int]()
    for _ in range(20):
        codes[call(TICK, str(root), str(data / "{SPAN}"), 0.2, prepare=chance.choice([id, kill_soon]))] += 1
        if is_trained() and chance.random() < 0.7:
            spans += 1
            write_data_set(data / str(spans), images=1)
    assert codes.keys() == {0, -signal.SIGKILL}
    assert call(TICK, str(root), str(data / "{SPAN}"), 0.0) == 0
    runs = [one for one in history.runs() if one.state != SKIPPED]
    assert {one.state for one in runs} == {DONE}
    assert sorted(one.data.span for one in runs if one.data) == list(range(1, spans + 1))
    assert spans > 3
    starts = Counter(path.name.split("-")[0] for path in (root / ticks.STARTS).iterdir())
    assert starts == {str(one.data.span): starts[str(one.data.span)] for one in runs if one.data}, "pinned to its span"
    assert any(one.attempt > 1 for one in runs), "a run was killed and resumed"


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_a_failed_run_is_taken_up_and_a_running_one_left_alone(
    call: ForkedCalls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, data = tmp_path / "run", tmp_path / "data"
    history = History(str(root))
    write_data_set(data, images=1)
    for _ in range(2):
        assert call(TICK, str(root), str(data), -0.01) == 1
    [failed] = history.runs()
    assert (failed.state, failed.attempt) == (FAILED, 2)

    with ThreadPoolExecutor() as threads:
        third = threads.submit(call, TICK, str(root), str(data), None)
        deadline = time.monotonic() + 60
        while len(list((root / ticks.STARTS).iterdir())) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        for module, name in ticks.REPLACED:  # what the tick of this process replaces comes back
            monkeypatch.setattr(f"{module}.{name}", None)
        ticks.tick(str(root), str(data), 0.0)  # nothing to do
        assert not third.done()
        (root / ticks.END).touch()
        assert third.result() == 0
    [done] = history.runs()
    assert (done.id, done.state, done.attempt) == (failed.id, DONE, 3)
