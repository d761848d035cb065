"""Ctrl-C and SIGTERM on the real program in a process of its own, at work that is made up here."""

import signal
import subprocess
import sys
import threading
import time

import pytest

import pipeline_runner

# What starts tests may ignore SIGINT, which children inherit.
_PROGRAM = """
import signal, sys, threading, time
import pipeline_runner, pipelines.commands.run

def work(args):
    {work}
    return 0

signal.signal(signal.SIGINT, {sigint})
pipelines.commands.run.run = work
pipeline_runner.program()
"""
_RESUMES = "; the same command continues from here"
_BEGIN = "print('begun', flush=True)"

_SLEEP = f"{_BEGIN}; time.sleep(60)"
_IN_BEAM = """
    import os
    from pipelines.console import quiet_run
    stdout = os.dup(1)
    with quiet_run(None, verbose=False):
        import apache_beam as beam
        with beam.Pipeline() as pipeline:
            pipeline | beam.Create([1]) | beam.Map(lambda _: (os.write(stdout, b'begun\\n'), time.sleep(60)))
"""
_TWO_ERRORS = f"""
    try:
        {_SLEEP}
    except BaseException as error:
        raise RuntimeError("node failed") from ValueError(f"{{type(error).__name__}} [while running 'x']")
"""
_DROPPED = f"""
    {_BEGIN}
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
"""
_THREAD_LIVES = f"threading.Thread(target=time.sleep, args=[60]).start(); {_SLEEP}"
_FAILS_IN_CLEANING = f"""
    try:
        {_SLEEP}
    finally:
        time.sleep(0.3)
        1 / 0
"""
_FORKED_CHILD_TERMINATED = """
    import os, signal
    child = os.fork()
    if not child:
        time.sleep(60)
    time.sleep(0.3)
    os.kill(child, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    time.sleep(0.3)
"""


def _start(work: str, *, sigint: str = "signal.default_int_handler") -> "subprocess.Popen[str]":
    """Starts `cocoflow run`, which does `work`."""
    code = _PROGRAM.format(work=work, sigint=sigint)
    # Python 3.12 and newer warn of the fork, as pipeline_runner has threads.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, "run"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("work", "gaps"),
    [
        (_SLEEP, []),
        (_SLEEP, [0.02, 0.02]),
        (_IN_BEAM, []),
        (_TWO_ERRORS, []),
        (_FAILS_IN_CLEANING, [0.1]),
        (_DROPPED, [1.3]),
        (_THREAD_LIVES, []),
    ],
    ids=["once", "in quick succession", "in Beam", "as another error", "in cleaning up", "dropped", "a thread lives"],
)
def test_ctrl_c_is_one_line_and_130(work: str, gaps: list[float]) -> None:
    with _start(work) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        for gap in gaps:
            time.sleep(gap)
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert time.monotonic() - begin < 20
    assert (process.returncode, out, err) == (130, "", f"interrupted{_RESUMES}\n")


def test_sigterm_is_one_line_and_143() -> None:
    with _start(_SLEEP) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.communicate(timeout=30) == ("", f"terminated{_RESUMES}\n")
    assert process.returncode == 143


def test_only_commands_that_continue_say_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipelines.commands.run.run", interrupted)
    monkeypatch.setattr("pipelines.commands.status.run", interrupted)
    assert pipeline_runner.main(["status", "--root", "here"]) == 130
    assert pipeline_runner.main(["run", "--runner", "vertex"]) == 130
    assert pipeline_runner.main(["run", "--runner", "beam"]) == 130
    assert capsys.readouterr().err == f"interrupted\ninterrupted\ninterrupted{_RESUMES}\n"


def test_a_forked_child_is_ended_alone() -> None:
    with _start(_FORKED_CHILD_TERMINATED) as process:
        assert process.communicate(timeout=30) == (f"{-signal.SIGTERM}\n", "")
    assert process.returncode == 0


def test_what_the_process_was_started_to_ignore_stays_ignored() -> None:
    """As `nohup` and shells without job control do for what they start in the background."""
    with _start(f"{_BEGIN}; time.sleep(0.5); print('done')", sigint="signal.SIG_IGN") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("done\n", "")
    assert process.returncode == 0


def test_the_handlers_of_a_calling_program_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert pipeline_runner.main(["run", "--config", "nowhere.yaml"]) == 2
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    exit_codes: list[int] = []
    arguments = ["run", "--config", "nowhere.yaml"]
    thread = threading.Thread(target=lambda: exit_codes.append(pipeline_runner.main(arguments)))
    thread.start()
    thread.join()
    assert exit_codes == [2]
