"""The folder that a verb writes: new, and there only when it is whole."""

import contextlib
import glob
import shutil
from collections.abc import Iterator
from pathlib import Path

from detection.atomic_files import TEMPORARY_SUFFIX, new_directory
from detection.folder_lock import folder_lock
from schemas.errors import DataError


@contextlib.contextmanager
def output_folder(output: str) -> Iterator[Path]:
    """Yields an empty folder that becomes `output` when the block ends.

    What killed runs left beside it is removed.

    Args:
        output: folder, new or empty.

    Raises:
        DataError: it is neither, or cannot be written.
    """
    goal = Path(output).resolve()
    if goal == Path.cwd():  # it would be replaced under the feet of who stands in it
        raise DataError(f"{goal}: --output is the folder you are in. Name another, or one below it.")
    if goal.exists() and (not goal.is_dir() or any(goal.iterdir())):
        raise DataError(f"{goal}: --output needs a new or empty folder. Name another, or remove this one.")
    _remove_leftovers(goal)
    with contextlib.ExitStack() as held, new_directory(goal) as folder:
        held.enter_context(folder_lock(folder))
        yield folder


def _remove_leftovers(goal: Path) -> None:
    """Removes the hidden folders beside `goal` that runs left which were killed."""
    for leftover in goal.parent.glob(f".{glob.escape(goal.name)}.{'?' * 8}{TEMPORARY_SUFFIX}"):
        with folder_lock(leftover) as dead:
            if dead:
                shutil.rmtree(leftover, ignore_errors=True)
