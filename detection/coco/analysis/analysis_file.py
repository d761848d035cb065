"""An analysis as a file."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from detection.atomic_files import write_bytes
from detection.coco.analysis.findings import Analysis
from detection.coco.json_files import cannot_read
from schemas.errors import DataError

_FORMAT = TypeAdapter(Analysis)


def write_analysis(path: str | Path, analysis: Analysis) -> None:
    """Writes an analysis as JSON, whole or not at all.

    Raises:
        DataError: the file cannot be written.
    """
    write_bytes(path, _FORMAT.dump_json(analysis) + b"\n")


def read_analysis(path: str | Path) -> Analysis:
    """Reads what `write_analysis` wrote.

    Raises:
        DataError: the file cannot be read, or is no analysis.
    """
    try:
        return _FORMAT.validate_json(Path(path).read_bytes())
    except OSError as error:
        raise cannot_read(path, error) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{path}: not an analysis of this version: {f'{place}: ' if place else ''}{first['msg']}. "
            "Evaluate again, or check that it is the file you mean."
        ) from None
