"""A checkpoint's weights, in a detector."""

from pathlib import Path

from detection.models.detector import Detector
from detection.training.initialization.weight_source import WeightSource
from schemas.config.optimization import WeightsKind
from schemas.errors import DataError


def load_weights(detector: Detector, path: str | Path, *, weights: WeightsKind) -> None:
    """Puts the weights of a run's checkpoint into a detector.

    Args:
        detector: built as the run's configuration says.
        path: of a checkpoint of the run, as `checkpoint_files.checkpoint_path` names it.
        weights: `ema`: the EMA weights, and the raw weights of variables without an
            average; `raw`: all raw weights.

    Raises:
        DataError: the checkpoint cannot be read, or is of another detector.
    """
    source = WeightSource(path, weights="raw" if weights == "raw" else "auto")
    for variable in detector.variables:
        shape = source.shapes.get(variable.path)
        if shape != tuple(variable.shape):
            raise DataError(
                f"{path}: is of another detector than its configuration says: {variable.path} has shape "
                f"{list(variable.shape)}, there {'is none' if shape is None else f'it has {list(shape)}'}. "
                "Leave checkpoints and configuration of a run together."
            )
        variable.assign(source.read(variable.path))
