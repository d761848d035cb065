"""Children that end with their parent."""

import os
import signal
import subprocess
import sys

import pytest

from detection.storage.processes import tied

PARENT = """
import subprocess, sys
from detection.storage.processes import tied
program = "import time; print('begun', flush=True); time.sleep(20); print('lived')"
subprocess.run(tied([sys.executable, "-c", program]))
"""
IN_A_THREAD = f"""
import threading
thread = threading.Thread(target=exec, args=({PARENT!r}, {{}}))
thread.start()
thread.join()
"""


@pytest.mark.parametrize("code", [PARENT, IN_A_THREAD], ids=["main thread", "thread"])
def test_a_child_ends_with_its_parent(code: str) -> None:
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"begun\n"
        parent.send_signal(signal.SIGKILL)
        assert parent.stdout.read() == b"", "nobody is left to write"


def test_a_child_whose_parent_is_gone_does_not_begin() -> None:
    command = tied([sys.executable, "-c", "print('begun')"])
    command[command.index(str(os.getpid()))] = "1"
    ended = subprocess.run(command, capture_output=True, check=False, timeout=20)
    assert ended.stdout == b""


def test_a_child_is_the_program_itself() -> None:
    program = "import os, sys; print(os.getpid(), sys.argv[1:], 'X' in os.environ); sys.exit(3)"
    with subprocess.Popen(
        tied([sys.executable, "-c", program, "a b", "-c"]), stdout=subprocess.PIPE, env={"X": ""}
    ) as process:
        output, _ = process.communicate(timeout=20)
    assert output.decode() == f"{process.pid} ['a b', '-c'] True\n"
    assert process.returncode == 3
