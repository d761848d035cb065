"""The folder that a verb writes: new, and there only when it is whole."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from detection.storage.atomic import new_directory
from schemas.errors import DataError


@contextlib.contextmanager
def output_folder(output: str) -> Iterator[Path]:
    """Yields an empty folder that becomes `output` when the block ends.

    What killed runs left beside it is removed, see `detection.storage.atomic`.

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
    with new_directory(goal) as folder:
        yield folder
