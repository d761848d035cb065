"""Folders for files that nobody needs after the command."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from detection.storage.atomic import explained, temporary_folder

_NAME = "cocoflow"
_VARIABLE = "TMPDIR"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yields an empty folder, closed to other users, where the system keeps temporary files.

    The folder goes when the block ends, or after a kill with the next command that needs one.

    Raises:
        DataError: no folder can be made there.
    """
    goal = Path(tempfile.gettempdir(), _NAME)
    with contextlib.ExitStack() as stack:
        with explained(goal):
            folder = stack.enter_context(temporary_folder(goal, mode=0o700))
        yield folder


@contextlib.contextmanager
def scratch_tempdir() -> Iterator[Path]:
    """Makes a scratch folder the place of temporary files, for this process and those that it starts.

    Beam makes a temporary folder per pipeline and leaves it at a kill; here the next command
    removes them.

    Raises:
        DataError: see `scratch_folder`.
    """
    tempdir, variable = tempfile.tempdir, os.environ.get(_VARIABLE)
    with scratch_folder() as folder:
        try:
            tempfile.tempdir = os.environ[_VARIABLE] = str(folder)
            yield folder
        finally:
            tempfile.tempdir = tempdir
            if variable is None:
                os.environ.pop(_VARIABLE, None)
            else:
                os.environ[_VARIABLE] = variable
