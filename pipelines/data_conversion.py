"""Converting and checking a data set without a pipeline."""

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from components.coco_example_gen.conversion import convert, report
from components.coco_example_gen.examination import Examination, examine
from detection.atomic_files import TEMPORARY_SUFFIX, new_directory, require_writable
from pipelines.data_files import files_of
from schemas.config import Config
from schemas.errors import DataError
from schemas.faults import FaultPolicies


def write_examples(config: Config, output: str) -> None:
    """Writes the data set as Examples; what is at fault is left out, unless `data.on_fault` says otherwise.

    Args:
        config: `data` counts.
        output: folder, new or empty.  What killed runs left beside it is removed.

    Raises:
        ConfigError: no data set is named.
        DataError: the data cannot be used, or the folder cannot be written.
    """
    said = config.data.on_fault
    policies = FaultPolicies.model_validate("drop").model_copy(
        update={kind: said.of(kind) for kind in said.model_fields_set}
    )
    goal = Path(output).resolve()
    _check_output(goal)
    splits = files_of(config.data)
    _remove_leftovers(goal)
    with contextlib.ExitStack() as held, new_directory(goal) as folder:
        held.enter_context(_claim(folder))
        convert(
            splits,
            folder,
            policies=policies,
            max_pixels=config.data.max_pixels,
            label_map=config.data.label_map,
        )


def check_data(config: Config, page: str | None) -> Examination:
    """Finds what is wrong with the data set.

    Args:
        config: `data` counts.
        page: HTML file to write; None: none.

    Raises:
        ConfigError: no data set is named.
        DataError: an annotation file that cannot be read, or a page that cannot be
            written.
    """
    splits = files_of(config.data)
    if page is not None:
        if Path(page).is_dir():
            raise DataError(f"--report {page}: this is a folder. Name a file in it.")
        require_writable(Path(page).resolve().parent)
    with tempfile.TemporaryDirectory() as work:
        found = examine(
            splits,
            policies=config.data.on_fault,
            max_pixels=config.data.max_pixels,
            label_map=config.data.label_map,
            work=Path(work),
            records=None,
        )
    if page is not None:
        report(found, splits, Path(page), max_pixels=config.data.max_pixels)
    return found


def _check_output(goal: Path) -> None:
    if goal == Path.cwd():  # it would be replaced under the feet of who stands in it
        raise DataError(f"{goal}: --output is the folder you are in. Name another, or one below it.")
    if goal.exists() and (not goal.is_dir() or any(goal.iterdir())):
        raise DataError(f"{goal}: --output needs a new or empty folder. Name another, or remove this one.")


def _remove_leftovers(goal: Path) -> None:
    """Removes the hidden folders beside `goal` that runs left which were killed."""
    for leftover in goal.parent.glob(f".{glob.escape(goal.name)}.{'?' * 8}{TEMPORARY_SUFFIX}"):
        with _claim(leftover) as dead:
            if dead:
                shutil.rmtree(leftover, ignore_errors=True)


@contextlib.contextmanager
def _claim(folder: Path) -> Iterator[bool]:
    """Marks a folder as one that a living process writes, until the block or the process ends.

    Yields:
        Whether it was free; False also where the file system cannot tell.
    """
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except OSError:
            free = False
        yield free
