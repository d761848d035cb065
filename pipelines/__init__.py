"""The pipeline, its runs, runners and commands; reads configurations, shipped ones by name and others by path."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schemas.config.config import Config

CONFIGS = Path(__file__).parent / "configs"
DEFAULT_CONFIG = CONFIGS / "default.yaml"
SHIPPED_CONFIGS = sorted(path.stem for path in CONFIGS.glob("*.yaml"))


def config_path(name: str) -> str:
    """Returns the path of a configuration: that of a shipped one by its name, or `name` itself."""
    return str(CONFIGS / f"{name}.yaml") if name in SHIPPED_CONFIGS else name


def load_config(name: str = "default", assignments: Sequence[str] = ()) -> "Config":
    """Reads a configuration, and sets keys in it, as `--config` and `--set` do.

    Args:
        name: name of a shipped configuration, or path of a YAML file, local or remote.
        assignments: `KEY=VALUE` each, such as `train.steps=300`.

    Raises:
        ConfigError: the file cannot be read; an unknown key or detector, or an invalid value.
    """
    # Half a second, which commands without a configuration do without.
    from detection.config_files import read_config
    from schemas.detectors import require_detector

    path = config_path(name)
    config = read_config(path, assignments)
    require_detector(config.model.name)
    return config
