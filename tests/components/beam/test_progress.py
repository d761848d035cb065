import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from components.beam import progress
from components.beam.progress import ImageCounter, report_progress
from schemas.progress import PROGRESS_ATTRIBUTE, WorkProgress
from tests.storage_emulator.fixture import Bucket

WORKER = """
import pickle, sys
from components.beam import progress
progress._WRITE_SECONDS = 0.0
counter = pickle.loads(bytes.fromhex(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    counter.add()
"""


class Ticks(threading.Event):
    """Time that passes at once: each wait runs the next step, and the last one ends the work."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        super().__init__()
        self._steps = iter(steps)

    def wait(self, timeout: float | None = None) -> bool:
        step = next(self._steps, None)
        if step is not None:
            step()
        return step is None


class Runner:
    """Tells of workers and restarts, as `DaskRunner` does."""

    def __init__(self) -> None:
        self.restarts = 0

    def progress(self) -> str:
        return "1 of 2 workers busy"


@pytest.fixture(autouse=True)
def _always_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_WRITE_SECONDS", 0.0)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "cocoflow.beam")
    return lambda: [record.getMessage() for record in caplog.records]


def _report(folder: str | Path, *steps: Callable[[], object], runner: object = None, total: int | None = 100) -> None:
    progress._report("reading images", runner, total, str(folder), Ticks(*steps))


def test_processes_and_threads_are_summed(tmp_path: Path, lines: Callable[[], list[str]]) -> None:
    counter = ImageCounter(str(tmp_path / "counts"))
    pickled = pickle.dumps(counter).hex()

    def add() -> None:
        for _ in range(100):
            counter.add(2)

    def work() -> None:
        threads = [threading.Thread(target=add) for _ in range(4)]
        processes = [subprocess.Popen([sys.executable, "-c", WORKER, pickled, count]) for count in ("30", "5")]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert [process.wait() for process in processes] == [0, 0]
        counter.add(0)  # the threads' last writes may come in any order

    _report(tmp_path / "counts", lambda: None, work, total=1200)
    assert lines() == ["0 of 1,200 images", "835 of 1,200 images"]
    assert len(list((tmp_path / "counts").iterdir())) == 3


def test_counts_are_read_from_a_bucket(gcs: Bucket, lines: Callable[[], list[str]]) -> None:
    folder = f"{gcs.path}/work/counts"
    _report(folder, lambda: None, lambda: ImageCounter(folder).add(7))
    assert lines() == ["0 of 100 images", "7 of 100 images"]


def test_a_pipeline_that_starts_again_counts_anew(tmp_path: Path, lines: Callable[[], list[str]]) -> None:
    counter, runner = ImageCounter(str(tmp_path)), Runner()

    def restart() -> None:
        runner.restarts += 1

    _report(tmp_path, lambda: counter.add(60), restart, lambda: counter.add(50), lambda: counter.add(50), runner=runner)
    assert lines() == [f"{done} of 100 images, 1 of 2 workers busy" for done in (60, 0, 50, 100)]


def test_bundles_that_ran_twice_do_not_exceed_the_total(tmp_path: Path, lines: Callable[[], list[str]]) -> None:
    counter = ImageCounter(str(tmp_path))
    _report(tmp_path, lambda: counter.add(90), lambda: counter.add(90))
    _report(tmp_path, lambda: None, total=None)
    assert lines() == ["90 of 100 images", "100 of 100 images", "180 images"]


def test_storage_that_fails_ends_no_work(tmp_path: Path, lines: Callable[[], list[str]]) -> None:
    (tmp_path / "file").write_text("in the way")
    counts = tmp_path / "counts"

    def damage() -> None:
        for count in counts.iterdir():
            count.write_text("no number")

    ImageCounter(str(tmp_path / "file" / "counts")).add()
    counter = ImageCounter(str(counts))
    _report(counts, lambda: counter.add(1), damage, lambda: counter.add(1))
    assert lines() == ["1 of 100 images", "2 of 100 images"]


@pytest.mark.parametrize(("seconds", "ends"), [(0.0, ["40 of 40 images"]), (60.0, [])])
def test_long_work_ends_with_its_total(
    seconds: float, ends: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cocoflow.beam")
    monkeypatch.setattr(progress, "_LOG_SECONDS", seconds)
    monkeypatch.setattr(progress, "_report", lambda *_: None)
    with report_progress("reading images", None, 40, tmp_path):
        pass
    with report_progress("reading images", None, None, tmp_path):
        pass
    with pytest.raises(ValueError, match="of a DoFn"), report_progress("reading images", None, 40, tmp_path):
        raise ValueError("of a DoFn")
    sent = [getattr(record, PROGRESS_ATTRIBUTE) for record in caplog.records]
    assert sent == [WorkProgress("reading images", 40, 40, line) for line in ends]
