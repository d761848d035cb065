"""The folders of a run."""

import os

from detection.storage.paths import absolute, join, literal_path, require_supported
from schemas.artifacts import CONFIG_YAML, SUMMARY_JSON, TRAINING
from schemas.config.config import Config
from schemas.errors import ConfigError


class RunLayout:
    """Paths below `run.root`, local or remote, as text.

    Args:
        config: configuration with the sections `run` and `push`.

    Raises:
        ConfigError: TFX does not work in `run.root`, or a path is not supported.
    """

    def __init__(self, config: Config) -> None:
        require_supported(config.run.root, "run.root")
        self.root = literal_path(absolute(config.run.root), "run.root")
        self.artifacts = join(self.root, "artifacts")
        self.training = join(self.root, TRAINING)
        self.config = join(self.root, CONFIG_YAML)
        self.summary = join(self.root, SUMMARY_JSON)
        self.log = join(self.root, "run.log")
        directory = config.push.directory
        if directory:
            require_supported(directory, "push.directory")
        self.push_directory = (
            literal_path(absolute(directory), "push.directory") if directory else join(self.root, "serving")
        )


class RemoteLayout:
    """Paths below `run.root` of a compiled pipeline, in storage that all containers reach, as text.

    Args:
        config: configuration with the sections `run` and `push`.

    Raises:
        ConfigError: `run.root` or `push.directory` is a relative path.
    """

    def __init__(self, config: Config) -> None:
        self.root = _shared("run.root", config.run.root)
        self.artifacts = f"{self.root}/artifacts"
        directory = config.push.directory
        self.push_directory = _shared("push.directory", directory) if directory else f"{self.root}/serving"


def _shared(key: str, path: str) -> str:
    if "://" not in path and not os.path.isabs(path):
        raise ConfigError(
            f"{key} = {path}: the containers of a compiled pipeline do not share a working folder. "
            "Name a folder of a bucket, such as gs://BUCKET/runs/mine, or the absolute path of a mounted volume."
        )
    return path.rstrip("/")
