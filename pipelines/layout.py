"""Where a run keeps its things."""

from pathlib import Path

from schemas.artifacts import CONFIG_YAML, SUMMARY_JSON, TRAINING
from schemas.config import Config


class RunLayout:
    """Paths below `run.root`.

    Args:
        config: its `run` and `push` sections count.
    """

    def __init__(self, config: Config) -> None:
        self.root = Path(config.run.root).absolute()
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
