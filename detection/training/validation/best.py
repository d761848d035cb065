"""The best checkpoint, in a folder of its own that the run's turnover does not touch."""

import shutil
from pathlib import Path
from typing import Any

from detection.storage.atomic import write_json
from detection.storage.json_files import read_json
from detection.training.checkpoints.files import checkpoint_path, checkpoint_steps, link_checkpoint, remove_checkpoint
from schemas.artifacts import METRICS_JSON
from schemas.errors import DataError


class BestCheckpoint:
    """A folder of one checkpoint, and the metrics file that tells which one.

    The metrics are written last: a kill at any moment leaves the earlier best or the new one.

    Args:
        folder: for this alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def step(self) -> int | None:
        """Of the best checkpoint; None: there is none yet."""
        found = self._read()
        return None if found is None else int(found["step"])

    @property
    def figures(self) -> dict[str, float]:
        """COCO's figures of the best checkpoint, by name; none where there is none yet."""
        found = self._read()
        return {} if found is None else dict(found["metrics"])

    @property
    def path(self) -> str:
        """Of the best checkpoint, as TensorFlow names it.

        Raises:
            DataError: there is none.
        """
        step = self.step
        if step is None or step not in checkpoint_steps(self._folder):
            raise DataError(
                f"{self._folder}: no best checkpoint is there any more. Train into a new folder, or take the last "
                "one: --set train.validation.export=final."
            )
        return checkpoint_path(self._folder, step)

    def offer(self, checkpoints: Path, step: int, *, report: dict[str, Any], metric: str) -> bool:
        """Takes a checkpoint over if it is better than the one here; returns whether it is the best now.

        Args:
            checkpoints: folder that it lies in.
            step: which one.
            report: of its evaluation, as `detection.coco.summary.metrics_to_json` gives it.
            metric: that decides; more is better, of equal ones the earlier is kept.

        Raises:
            FileNotFoundError: the checkpoint is not there any more.
        """
        found = self._read()
        if found is not None and found["step"] != step and found["metrics"][metric] >= report["metrics"][metric]:
            return False
        link_checkpoint(checkpoints, step, self._folder)
        write_json(self._folder / METRICS_JSON, {"step": step, **report})
        for other in checkpoint_steps(self._folder):
            if other != step:
                remove_checkpoint(self._folder, other)
        return True

    def clear(self) -> None:
        """Removes what is here."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _read(self) -> dict[str, Any] | None:
        path = self._folder / METRICS_JSON
        return dict(read_json(path)) if path.exists() else None
