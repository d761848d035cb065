"""Non-finite steps: their error message, and their batch saved to disk."""

import io
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

from detection.datasets.annotations.entries import Entry
from detection.images.drawing import contact_sheet
from detection.storage.atomic import new_directory
from detection.storage.paths import literal_path
from detection.training.checkpoints.files import PREFIX, checkpoint_path, checkpoint_steps
from detection.training.engine.loop import LoopReport
from detection.training.monitoring.progress import LOGGER
from detection.training.monitoring.step_batches import BatchImage, StepBatches, pictures_of
from detection.weights.weight_source import READ_ERRORS
from schemas.artifacts import CHECKPOINTS, NONFINITE
from schemas.errors import CocoflowError
from schemas.scalars import TOTAL_LOSS, is_variable_norm

_MAX_SAVED = 5  # batches per run
_MAX_NAMED = 8  # images in a message
_MAX_DRAWN = 64  # images in a picture


class NonFiniteSteps:
    """Explains non-finite steps, and saves their batches as arrays and as a picture.

    Args:
        batches: recreates the batches of steps.
        categories: COCO categories, in the order of the classes.
        output: output folder of the run, with checkpoints/; batches are saved to nonfinite/step-N/ in it.
        writes: this process writes the batches.
    """

    def __init__(self, batches: StepBatches, categories: Sequence[Entry], output: Path, *, writes: bool) -> None:
        self._batches = batches
        self._categories = categories
        self._output = output
        self._writes = writes
        self._saved = 0

    def check(self, report: LoopReport) -> None:
        """Logs a warning about skipped steps.

        Raises:
            CocoflowError: a non-finite step ended the run.
        """
        if report.bad_step is None:
            return
        description = self._describe(report.bad_step, report.bad)
        if not report.halted:
            LOGGER.warning("%d step(s) skipped: %s", report.skipped, description)
            return
        raise CocoflowError(
            f"training diverged: {description} {_last_good(self._output / CHECKPOINTS)} Check the boxes in the "
            "picture; lower train.schedule.learning_rate, lengthen train.schedule.warmup_steps or tighten "
            "train.clip; --set train.nonfinite.policy=skip skips single batches."
        )

    def _describe(self, step: int, scalars: Mapping[str, float]) -> str:
        sources = self._batches.sources(step)
        listed = ", ".join(map(str, sources[:_MAX_NAMED])) + (", ..." if len(sources) > _MAX_NAMED else "")
        saved = ""
        if self._writes and self._saved < _MAX_SAVED:
            saved = f" Its batch is saved in {self._save(step, sources)}."
            self._saved += 1
        subject = "gradient" if math.isfinite(scalars[TOTAL_LOSS]) else "loss"
        terms = ", ".join(f"{name} {value:g}" for name, value in scalars.items() if not is_variable_norm(name))
        return f"the {subject} is not finite at step {step + 1} ({terms}), on the images {listed}.{saved}"

    def _save(self, step: int, sources: Sequence[BatchImage]) -> Path:
        batch = self._batches.batch(step)
        destination = self._output / NONFINITE / f"step-{step + 1}"
        shutil.rmtree(destination, ignore_errors=True)
        with new_directory(destination) as folder:
            labels = {name: value for name, value in batch.labels._asdict().items() if value is not None}
            columns = dict(zip(BatchImage._fields, map(np.array, zip(*sources, strict=True)), strict=True))
            arrays: dict[str, Any] = {"images": batch.images, **labels, **columns}
            archive = io.BytesIO()  # left open by a full disk, it would print a traceback when it is collected
            np.savez_compressed(archive, **arrays)
            (folder / "batch.npz").write_bytes(archive.getbuffer())
            pictures = pictures_of(batch, self._batches.options, self._categories, _MAX_DRAWN)
            sheet = contact_sheet(pictures, captions=[str(source) for source in sources[:_MAX_DRAWN]])
            encoded = io.BytesIO()
            Image.fromarray(sheet).save(encoded, "PNG")
            (folder / "batch.png").write_bytes(encoded.getvalue())
        return destination


def _last_good(checkpoints: Path) -> str:
    """Describes the checkpoint to resume from, and the checkpoints to remove before."""
    steps = checkpoint_steps(checkpoints)
    good = next((step for step in reversed(steps) if _is_finite(checkpoint_path(checkpoints, step))), None)
    if good is None:
        return "No weight was changed from this step on; there is no good checkpoint yet."
    damaged = [f"{PREFIX}-{step}" for step in steps if step > good]
    remedy = f" Remove {', '.join(damaged)} first: it has non-finite weights." if damaged else ""
    path = checkpoint_path(checkpoints, good)
    return f"No weight was changed from this step on; the last good checkpoint is {path}.{remedy}"


def _is_finite(path: str) -> bool:
    """Returns whether all values of a checkpoint are finite."""
    try:
        reader = tf.train.load_checkpoint(literal_path(path))
        # The object graph is read as bytes.
        values = (np.asarray(reader.get_tensor(name)) for name in reader.get_variable_to_shape_map())
        return all(value.dtype.kind != "f" or bool(np.isfinite(value).all()) for value in values)
    except READ_ERRORS:
        return False
