"""The log of a run whose root is remote."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detection.storage import files
from detection.storage.atomic import write_text
from detection.storage.files import read_text
from detection.storage.gcs import lease
from detection.storage.lock import lock_folder
from pipelines.folders import RunLayout
from pipelines.runs import run_log
from pipelines.runs.run_log import local_log
from schemas.config.config import Config
from schemas.errors import CocoflowError
from tests.storage_emulator.fixture import Bucket


def _layout(root: str) -> RunLayout:
    return RunLayout(Config.model_validate({"run": {"root": root}}))


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _write(layout: RunLayout, text: str) -> None:
    with lock_folder(layout.root, instead="") as use, local_log(layout, use) as log, log.open("a") as file:
        file.write(text)


def test_of_a_local_run_it_is_where_it_belongs(tmp_path: Path) -> None:
    layout = _layout(str(tmp_path))
    with lock_folder(layout.root, instead="") as use, local_log(layout, use) as log:
        assert log == tmp_path / "run.log"


def test_the_next_run_goes_on_where_the_last_one_ended(gcs: Bucket) -> None:
    layout = _layout(f"{gcs.path}/run")
    _write(layout, "first\n")
    _write(layout, "second\n")
    assert read_text(layout.log) == "first\nsecond\n"
    assert files.walk_files(layout.root) == ["run.log"]


def test_it_is_copied_while_the_run_goes_on(gcs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "_LOG_SECONDS", 0.1)
    layout = _layout(f"{gcs.path}/run")
    with lock_folder(layout.root, instead="") as use, local_log(layout, use) as log:
        log.write_text("now")
        _wait_for(lambda: files.is_file(layout.log))
        assert read_text(layout.log) == "now"


def test_after_a_failure_it_is_there_as_well(gcs: Bucket) -> None:
    layout = _layout(f"{gcs.path}/run")

    def fail() -> None:
        with lock_folder(layout.root, instead="") as use, local_log(layout, use) as log:
            log.write_text("why")
            raise KeyError("a component failed")

    with pytest.raises(KeyError, match="a component failed"):
        fail()
    assert read_text(layout.log) == "why"


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["terminal", "background"])
def test_a_run_whose_folder_another_process_has_taken_over_is_ended(
    gcs: Bucket, monkeypatch: pytest.MonkeyPatch, handler: Any
) -> None:
    """Also one that a script has started in the background, where shells have SIGINT ignored."""
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.5)
    layout = _layout(f"{gcs.path}/run")
    before = signal.signal(signal.SIGINT, handler)

    def work(log: Path) -> None:
        log.write_text("mine")
        write_text(f"{layout.root}/.lock", "{}")  # by another process
        time.sleep(120)
        raise AssertionError("it went on")

    try:
        with pytest.raises(CocoflowError, match=r"lost the lock: .* another process has it"):  # noqa: SIM117
            with lock_folder(layout.root, instead="") as use, local_log(layout, use) as log:
                work(log)
        assert signal.getsignal(signal.SIGINT) == handler
        assert not files.is_file(layout.log), "a run that lost its folder writes nothing there"
    finally:
        signal.signal(signal.SIGINT, before)
