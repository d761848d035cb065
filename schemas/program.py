"""The program's version, and the commands of installed programs, for help texts and hints."""

import shlex
import shutil
import sys
from pathlib import Path

PROGRAM = "cocoflow"
VERSION = "0.1.0"
SCRIPT = "pipeline_runner.py"  # the same program in a source tree


def program_command() -> str:
    """Returns the command of this program as it was called.

    It works in the same folder and shell, even if the environment is not activated: `cocoflow` is on the PATH,
    `.venv/bin/cocoflow` or `.venv/bin/python pipeline_runner.py` is not.
    """
    called = Path(sys.argv[0])
    if called.name == SCRIPT:
        return shlex.join([sys.orig_argv[0], sys.argv[0]])
    if called.name != PROGRAM or _is_found(called):
        return PROGRAM  # not called by name: imported by another program
    return shlex.quote(sys.argv[0])


def installed_command(name: str) -> str:
    """Returns the command of a program of this environment: its name if it is on the PATH, else its path."""
    path = Path(sys.executable).with_name(name)
    return name if _is_found(path) else shlex.quote(str(path))


def _is_found(path: Path) -> bool:
    found = shutil.which(path.name)
    return found is not None and path.exists() and path.samefile(found)
