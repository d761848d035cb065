"""An analysis as a file."""

from pathlib import Path

from pydantic import TypeAdapter

from detection.analysis.findings import ERROR_TYPES, Analysis
from detection.storage.atomic import write_bytes
from detection.storage.json_files import not_of_this_version, parse_file
from schemas.quoting import quoted

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
        DataError: the file cannot be read, or is no analysis; it names the key.
    """
    analysis = parse_file(_FORMAT, path, what="an analysis")
    names = [error.name for error in analysis.errors]
    ids = [category.id for category in analysis.categories]
    if names != list(ERROR_TYPES):
        raise not_of_this_version(path, "an analysis", f"errors: {quoted(names)}, expected {', '.join(ERROR_TYPES)}")
    if len(set(ids)) < len(ids):
        raise not_of_this_version(path, "an analysis", "categories: an id is there more than once")
    return analysis
