"""Another process that holds a folder."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_CODE = """
import os, sys
from detection.storage.lock import lock_folder
with lock_folder(sys.argv[1], instead="wait"):
    {meanwhile}
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def folder_holder(folder: Path, *arguments: str, meanwhile: str = "pass") -> Iterator["subprocess.Popen[bytes]"]:
    """Yields a process that holds `folder` until the block ends or it is killed.

    Args:
        folder: that is held.
        arguments: more of them for its command line.
        meanwhile: a Python statement that it runs once it holds the folder.
    """
    command = [sys.executable, "-c", _CODE.format(meanwhile=meanwhile), str(folder), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.kill()
