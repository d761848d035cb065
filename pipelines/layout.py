"""Where a run keeps its things."""

from pathlib import Path

from detection.storage.literal_paths import has_pattern_characters
from schemas.artifacts import CONFIG_YAML, SUMMARY_JSON, TRAINING
from schemas.config.config import Config
from schemas.errors import ConfigError


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
