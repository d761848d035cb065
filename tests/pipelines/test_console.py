import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from detection.training.monitoring.progress import LOGGER, ProgressMeter
from pipelines.console import RunDisplay, quiet_run
from schemas.errors import DataError
from schemas.progress import PHASE_ATTRIBUTE, PROGRESS_ATTRIBUTE, WorkProgress, log_phase
from tests.full_disk import no_file_above


@pytest.fixture
def display() -> RunDisplay:
    return RunDisplay(Console(file=io.StringIO(), width=200), lambda node: None)


def _text(display: RunDisplay) -> str:
    file = display.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def _emit(display: RunDisplay, name: str, message: str, level: int = logging.INFO) -> None:
    display.emit(logging.LogRecord(name, level, "", 0, message, (), None))


def test_nodes_of_both_runners_are_told_with_their_end(display: RunDisplay) -> None:
    _emit(display, "absl", "Component CocoExampleGen is running.")
    _emit(display, "components.history.driver", "CocoExampleGen reuses the execution of run mine")
    _emit(display, "absl", "Component CocoExampleGen is finished.")
    _emit(display, "absl", "node DetectionTrainer is running.")
    _emit(display, "absl", "node DetectionTrainer is finished.")
    text = _text(display)
    assert "CocoExampleGen reused" in text
    assert "DetectionTrainer done" in text


def test_nodes_that_are_executed_are_told() -> None:
    told: list[str] = []
    display = RunDisplay(Console(file=io.StringIO()), told.append)
    _emit(display, "absl", "Component CocoExampleGen is running.")
    _emit(display, "components.history.driver", "CocoExampleGen reuses the execution of run mine")
    _emit(display, "components.history.execution", "DetectionTrainer is executed")
    assert told == ["DetectionTrainer"]


def test_the_flood_is_not_shown_and_our_words_are(display: RunDisplay) -> None:
    _emit(display, "absl", "MetadataStore with DB connection initialized")
    _emit(display, "tensorflow", "Assets written", logging.WARNING)
    _emit(display, "cocoflow.example_gen", "train: 600 images [all]")
    assert _text(display).strip() == "train: 600 images [all]"


def test_training_tells_steps_loss_speed_and_time_left(display: RunDisplay) -> None:
    LOGGER.addHandler(display)
    LOGGER.setLevel(logging.INFO)
    try:
        meter = ProgressMeter(total_steps=40)
        meter.report(10, {"loss": 1.5, "images_per_second": 20.0, "input_bound": 0.25}, at=100.0)
        meter.report(40, {"loss": 0.75, "images_per_second": 30.0}, at=110.0)
    finally:
        LOGGER.removeHandler(display)
        LOGGER.setLevel(logging.NOTSET)
    assert _text(display).splitlines() == [
        "  step 10/40  loss 1.5000  20.0 images/s  waits for input 25%",
        "  step 40/40  loss 0.7500  30.0 images/s",
    ]


def test_a_bar_shows_the_progress_of_the_running_node_or_of_the_work() -> None:
    display = RunDisplay(Console(file=io.StringIO(), width=200, force_terminal=True), lambda node: None)
    shown = WorkProgress("evaluating", 1200, 5000, "1,200 of 5,000 images, 3 of 3 workers busy")
    record = logging.makeLogRecord({"name": "cocoflow.beam", "msg": shown.note, PROGRESS_ATTRIBUTE: shown})
    display.emit(record)
    _emit(display, "absl", "Component CocoEvaluator is running.")
    display.emit(record)
    display.emit(logging.makeLogRecord({**record.__dict__, PROGRESS_ATTRIBUTE: shown._replace(total=None)}))
    bars = [(bar.description, bar.completed, bar.total, bar.fields["note"]) for bar in display._progress.tasks]
    assert bars == [(name, 1200, 5000, shown.note) for name in ("evaluating", "CocoEvaluator")]
    assert _text(display) == ""


def test_a_line_of_phases_moves_while_no_bar_does() -> None:
    log = logging.getLogger("cocoflow.phases")
    terminal = Console(file=io.StringIO(), width=200, force_terminal=True)
    display = RunDisplay(terminal, lambda node: None, "loading TensorFlow")
    log.addHandler(display)
    log.setLevel(logging.INFO)

    def shown() -> list[str]:
        return [task.description for task in display._progress.tasks if task.visible and not task.finished]

    def work(done: int) -> None:
        log.info("", extra={PROGRESS_ATTRIBUTE: WorkProgress("training", done, 10, "")})

    try:
        with display.live():
            assert shown() == ["loading TensorFlow"]
            log_phase(log, "compiling")
            assert shown() == ["compiling"]
            work(5)
            assert shown() == ["training"]
            log_phase(log, "evaluating")
            assert shown() == ["training"]
            work(10)
            assert shown() == ["finishing"]
            log_phase(log, "exporting")
            assert shown() == ["exporting"]
        assert shown() == []
    finally:
        log.removeHandler(display)
    assert "loading TensorFlow" in _text(display)


def test_phases_are_quiet_without_a_terminal_and_without_a_line_for_them() -> None:
    for terminal, phase in ((False, "loading"), (True, None)):
        display = RunDisplay(Console(file=io.StringIO(), force_terminal=terminal), lambda node: None, phase)
        with display.live():
            display.emit(
                logging.makeLogRecord({"name": "cocoflow.x", "msg": "compiling", PHASE_ATTRIBUTE: "compiling"})
            )
        assert "compiling" not in _text(display)
        assert "loading" not in _text(display)


_LOADING = """
import logging, time
from pipelines.console import quiet_run
from schemas.progress import log_phase
with quiet_run(None, verbose=False, phase="loading TensorFlow"):
    time.sleep(0.3)
    log_phase(logging.getLogger("cocoflow.x"), "compiling")
    time.sleep(0.3)
print("done")"""


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_shows_that_a_command_works_and_a_file_has_its_result_alone(is_terminal: bool) -> None:
    # rich takes a pipe for a terminal with this variable; not every machine has pseudo-terminals.
    terminal = {"FORCE_COLOR": "1"} if is_terminal else {}
    process = subprocess.run(
        [sys.executable, "-c", _LOADING],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        env=os.environ | {"TERM": "xterm"} | terminal,
        check=True,
    )
    assert process.stdout == b"done\n"
    assert (process.stderr == b"") == (not is_terminal)
    frames = [process.stderr.count(text) for text in (b"loading TensorFlow", b"compiling")]
    assert [count > 1 for count in frames] == [is_terminal, is_terminal]


def test_a_warning_is_yellow_and_an_error_red() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, color_system="standard")
    display = RunDisplay(terminal, lambda node: None)
    for level, code in ((logging.INFO, "\x1b[2m"), (logging.WARNING, "\x1b[33m"), (logging.ERROR, "\x1b[1;31m")):
        _emit(display, "cocoflow.x", f"level {level}", level)
        assert f"{code}  level {level}" in _text(display)


def test_what_c_and_python_write_goes_to_the_file_and_comes_back_afterwards(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "deep" / "run.log"
    with quiet_run(log, verbose=False):
        os.write(1, b"from C, out\n")
        os.write(2, b"from C, err\n")
        print("from Python", file=sys.stderr, flush=True)
        logging.getLogger("absl").warning("a warning of a library")
        logging.getLogger("cocoflow.test").info("said to the user")
    print("after", flush=True)
    shown = capfd.readouterr()
    assert shown.out == "after\n"
    assert shown.err.strip() == "said to the user"
    written = log.read_text()
    for line in ("from C, out", "from C, err", "a warning of a library", "said to the user"):
        assert line in written


def test_work_goes_on_when_the_disk_takes_no_more_of_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.log"
    with no_file_above(100), quiet_run(log, verbose=False):
        print("first", flush=True)
        for _ in range(2000):
            print("words of a library")
            logging.getLogger("absl").warning("a warning of a library")
        logging.getLogger("cocoflow.test").info("said to the user")
    assert log.read_text().startswith("first\n")
    assert log.stat().st_size <= 100
    assert capfd.readouterr().err.strip() == "said to the user"


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.raises(DataError, match=r"file/run\.log: cannot write the log"),
        quiet_run(tmp_path / "file" / "run.log", verbose=False),
    ):
        pass


def test_names_do_not_control_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_run(None, verbose=False):
        logging.getLogger("cocoflow.x").warning("%s: half", "fold\x1b[31mer\x07")
    assert "fold\\x1b[31mer\\x07: half" in capfd.readouterr().err
