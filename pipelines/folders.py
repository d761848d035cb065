"""The folders of a run."""

import os

from detection.storage.paths import absolute, join, literal_path, require_supported
from schemas.artifacts import ARTIFACTS, CONFIG_YAML, PUSHED_MODELS, SUMMARY_JSON, TRAINING
from schemas.config.config import Config
from schemas.errors import ConfigError


class RunLayout:
    """Paths below `run.root`, local or remote, as text.

    Args:
        config: configuration with the sections `run` and `push`.
        compiled: whether containers use them, which share storage, but no working folder.

    Raises:
        ConfigError: TFX does not work in `run.root`, or a path is not supported; for containers: a path is relative.
    """

    def __init__(self, config: Config, *, compiled: bool = False) -> None:
        place = _shared if compiled else _of_this_machine
        self.root = place("run.root", config.run.root)
        self.artifacts = join(self.root, ARTIFACTS)
        self.training = join(self.root, TRAINING)
        self.config = join(self.root, CONFIG_YAML)
        self.summary = join(self.root, SUMMARY_JSON)
        self.log = join(self.root, "run.log")
        directory = config.push.directory
        self.push_directory = place("push.directory", directory) if directory else join(self.root, PUSHED_MODELS)


def _of_this_machine(key: str, path: str) -> str:
    require_supported(path, key)
    return literal_path(absolute(path), key)


def _shared(key: str, path: str) -> str:
    if "://" not in path and not os.path.isabs(path):
        raise ConfigError(
            f"{key} = {path}: the containers of a compiled pipeline do not share a working folder. "
            "Name a folder of a bucket, such as gs://BUCKET/runs/mine, or the absolute path of a mounted volume."
        )
    return path.rstrip("/")
