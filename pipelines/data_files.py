"""From the configuration to the files of the data set."""

from detection.coco.layouts import SplitFiles, find_splits, given_splits
from schemas.config import DataConfig
from schemas.errors import ConfigError, DataError


def files_of(data: DataConfig, *needed: str) -> dict[str, SplitFiles]:
    """The files of each split that `data` names.

    Args:
        data: where they are.
        needed: splits that have to be among them.

    Raises:
        ConfigError: neither `data.root` nor `data.splits`, or both.
        DataError: the files are not there, or not recognised, or of other splits only.
    """
    found = _find(data)
    for split in needed:
        if split not in found:
            listed = ", ".join(f"{name} ({files.annotations})" for name, files in found.items())
            raise DataError(
                f"{data.root or 'data.splits'}: no annotations of the split {split!r}, only {listed}. "
                f"Add its file, or say where it is: --set data.splits.{split}.annotations=FILE "
                f"--set data.splits.{split}.images=DIR (then likewise for the other splits)."
            )
    return found


def _find(data: DataConfig) -> dict[str, SplitFiles]:
    if data.root is not None and data.splits:
        raise ConfigError("data.root and data.splits both name a data set. Take one of them away.")
    if data.root is not None:
        return find_splits(data.root, eval_fraction=data.eval_fraction)
    if data.splits:
        given = {name: (split.annotations, split.images) for name, split in data.splits.items()}
        return given_splits(given, eval_fraction=data.eval_fraction)
    raise ConfigError("no data set: give --data DIR, or data.root or data.splits in the configuration.")
