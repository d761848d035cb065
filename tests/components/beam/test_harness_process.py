import signal
import socket
import subprocess
import sys

import pytest

from components.beam import harness_process


def test_a_harness_ends_soon_after_a_driver_that_it_never_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself, it would look for the driver for a minute."""
    monkeypatch.setattr(harness_process, "_CHECK", 0.1)
    server = socket.create_server(("127.0.0.1", 0))
    driver = f"127.0.0.1:{server.getsockname()[1]}"
    with server, subprocess.Popen([sys.executable, "-c", "import time; time.sleep(2)"]) as waits:
        assert harness_process._wait(waits, driver) == 0
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stale:
        assert harness_process._wait(stale, driver) == -signal.SIGKILL
