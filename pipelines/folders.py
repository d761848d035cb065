"""The folders of commands: a run's folder, new output folders and scratch folders."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from detection.storage.atomic import explained, new_directory, shared_directory, temporary_folder
from detection.storage.literal_paths import has_pattern_characters
from detection.storage.lock import exclusive_use
from detection.storage.paths import absolute, is_remote, join, require_supported
from detection.storage.staging import CACHE_VARIABLE, cache_path
from schemas.artifacts import CONFIG_YAML, HISTORY, SUMMARY_JSON, TRAINING
from schemas.config.config import Config
from schemas.errors import ConfigError, DataError


class RunLayout:
    """Paths below `run.root`, local or remote, as text.

    Args:
        config: configuration with the sections `run` and `push`.

    Raises:
        ConfigError: TFX does not work in `run.root`, or a path is not supported.
    """

    def __init__(self, config: Config) -> None:
        require_supported(config.run.root, "run.root")
        self.root = absolute(config.run.root)
        if has_pattern_characters(self.root):
            raise ConfigError(
                f"run.root = {self.root}: TFX takes paths with one of [ ] * ? \\ for patterns, and would not find "
                "its files there. Choose another folder; the data may be in such a folder."
            )
        self.artifacts = join(self.root, "artifacts")
        self.training = join(self.root, TRAINING)
        self.history = join(self.root, HISTORY)
        self.config = join(self.root, CONFIG_YAML)
        self.summary = join(self.root, SUMMARY_JSON)
        self.log = join(self.root, "run.log")
        directory = config.push.directory
        if directory:
            require_supported(directory, "push.directory")
        self.push_directory = absolute(directory) if directory else join(self.root, "serving")


class RemoteLayout:
    """Paths below `run.root` of a compiled pipeline: in storage that all containers reach, so texts.

    Args:
        config: configuration with the sections `run` and `push`.

    Raises:
        ConfigError: `run.root` or `push.directory` is a relative path.
    """

    def __init__(self, config: Config) -> None:
        self.root = _shared("run.root", config.run.root)
        self.artifacts = f"{self.root}/artifacts"
        self.history = f"{self.root}/{HISTORY}"
        directory = config.push.directory
        self.push_directory = _shared("push.directory", directory) if directory else f"{self.root}/serving"


def _shared(key: str, path: str) -> str:
    if "://" not in path and not os.path.isabs(path):
        raise ConfigError(
            f"{key} = {path}: the containers of a compiled pipeline do not share a working folder. "
            "Name a folder of a bucket, such as gs://BUCKET/runs/mine, or the absolute path of a mounted volume."
        )
    return path.rstrip("/")


_NAME = "cocoflow"
_VARIABLE = "TMPDIR"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yields an empty folder among the system's temporary files, closed to other users.

    The folder is removed at the end of the block, or after a kill by the next command that
    needs one.

    Raises:
        DataError: no folder can be created there.
    """
    destination = Path(tempfile.gettempdir(), _NAME)
    with contextlib.ExitStack() as stack:
        with explained(destination):
            folder = stack.enter_context(temporary_folder(destination, mode=0o700))
        yield folder


@contextlib.contextmanager
def scratch_tempdir() -> Iterator[Path]:
    """Makes a scratch folder the TMPDIR of this process and of those that it starts.

    Beam creates a temporary folder per pipeline and leaves it after a kill; the next command
    removes it with the scratch folder.  Copies of remote files stay where they are for all commands.

    Raises:
        DataError: see `scratch_folder`.
    """
    tempdir, before = tempfile.tempdir, {name: os.environ.get(name) for name in (_VARIABLE, CACHE_VARIABLE)}
    with scratch_folder() as folder:
        try:
            os.environ[CACHE_VARIABLE] = str(cache_path())
            tempfile.tempdir = os.environ[_VARIABLE] = str(folder)
            yield folder
        finally:
            tempfile.tempdir = tempdir
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


@contextlib.contextmanager
def output_folder(output: str, *, last: str) -> Iterator[str | Path]:
    """Yields an empty folder that becomes `output` when the block ends; of a remote one, the folder itself.

    Removes leftovers of killed runs beside it, or in a remote one, see `detection.storage.atomic`.

    Args:
        output: folder, new or empty.
        last: file that makes the folder whole; the block writes it after all others.

    Raises:
        CocoflowError: another process writes the remote folder.
        DataError: the folder is neither, or cannot be written.
    """
    if is_remote(output):
        with (
            exclusive_use(output, instead="name another folder with --output"),
            shared_directory(output, last=last) as remote,
        ):
            yield remote
        return
    destination = Path(output).resolve()
    if destination == Path.cwd():  # replacing it would leave the shell in a removed folder
        raise DataError(f"{destination}: --output is the current folder. Choose another, or one below it.")
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise DataError(f"{destination}: --output needs a new or empty folder. Choose another, or remove this one.")
    with new_directory(destination) as folder:
        yield folder
