"""What evaluations while training found, in a file, and what follows from it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from detection.storage.atomic import write_json
from detection.storage.json_files import read_json
from schemas.errors import DataError


class Entry(NamedTuple):
    """One evaluation: of the checkpoint after `step` steps, COCO's figures by name."""

    step: int
    metrics: dict[str, float]


def read_history(path: Path) -> list[Entry]:
    """The evaluations so far, by ascending step; none where there is no file.

    Raises:
        DataError: the file is not what `write_history` wrote.
    """
    if not path.exists():
        return []
    try:
        return [Entry(int(entry["step"]), dict(entry["metrics"])) for entry in read_json(path)]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not a list of evaluations ({error!r}). Remove it to begin a new one.") from None


def write_history(path: Path, entries: Sequence[Entry]) -> None:
    """Replaces the file, whole or not at all.

    Raises:
        DataError: it cannot be written.
    """
    write_json(path, [entry._asdict() for entry in sorted(entries)])


def has_stalled(values: Sequence[float], *, patience: int, min_delta: float) -> bool:
    """Whether the last `patience` values brought no improvement.

    Args:
        values: of a figure of which more is better, in the order of the steps.
        patience: P >= 1.
        min_delta: a value improves where it is above the last one that did by more than this.

    Source: Keras' EarlyStopping.
    """
    best, waited = float("-inf"), 0
    for value in values:
        improves = value - min_delta > best
        best, waited = (value, 0) if improves else (best, waited + 1)
    return waited >= patience
