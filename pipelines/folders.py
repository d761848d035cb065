"""The folders of commands: a run's folder, new output folders and scratch folders."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from detection.storage.atomic import explained, new_directory
from detection.storage.literal_paths import has_pattern_characters
from detection.storage.temporary_folder import temporary_folder
from schemas.artifacts import CONFIG_YAML, SUMMARY_JSON, TRAINING
from schemas.config.config import Config
from schemas.errors import ConfigError, DataError


class RunLayout:
    """Paths below `run.root`.

    Args:
        config: its `run` and `push` sections count.

    Raises:
        ConfigError: TFX cannot work in `run.root`.
    """

    def __init__(self, config: Config) -> None:
        self.root = Path(config.run.root).absolute()
        if has_pattern_characters(self.root):
            raise ConfigError(
                f"run.root = {self.root}: TFX takes paths with one of [ ] * ? \\ for patterns, and would not find "
                "its files there. Name another folder; the data may lie in such a one."
            )
        self.artifacts = self.root / "artifacts"
        self.file_records = self.artifacts / ".files"
        self.unregistered = self.root / "unregistered"
        self.training = self.root / TRAINING
        self.metadata = self.root / "metadata.sqlite"
        self.config = self.root / CONFIG_YAML
        self.summary = self.root / SUMMARY_JSON
        self.log = self.root / "run.log"
        directory = config.push.directory
        self.push_directory = Path(directory).absolute() if directory else self.root / "serving"


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


@contextlib.contextmanager
def output_folder(output: str) -> Iterator[Path]:
    """Yields an empty folder that becomes `output` when the block ends.

    What killed runs left beside it is removed, see `detection.storage.temporary_folder`.

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
