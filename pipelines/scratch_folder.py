"""A folder for files that nobody needs after the command."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from detection.atomic_files import explained
from detection.temporary_folder import temporary_folder

_NAME = "cocoflow"


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
