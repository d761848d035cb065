"""Configuration files, local or remote."""

from collections.abc import Sequence
from pathlib import Path

from detection.storage.files import read_text
from detection.storage.paths import is_remote, require_supported
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.errors import ConfigError, DataError


def read_config(path: str | Path, assignments: Sequence[str] = (), *, key: str = "--config") -> Config:
    """Reads a configuration file and applies assignments to it; see `load_config`.

    Args:
        path: local or remote YAML file.
        assignments: `--set` arguments.
        key: flag for the file, for error messages.

    Raises:
        ConfigError: the file is unreadable or invalid; see `load_config`.
    """
    require_supported(path, key)
    if not is_remote(path):
        return load_config(path, assignments)
    try:
        text = read_text(path)
    except DataError as error:
        raise ConfigError(f"{error} Check {key}.") from None
    return load_config(path, assignments, text=text)
