"""Data sets on the emulator, and what a conversion leaves there."""

from collections.abc import Sequence
from pathlib import Path

from components.coco_example_gen.conversion import convert
from detection.datasets.splits import SplitFiles
from detection.storage import files, paths
from detection.storage.files import read_bytes
from schemas.artifacts import DATA_REPORT_HTML
from schemas.config.config import DataConfig
from schemas.config.issues import IssuePolicies

DROP = IssuePolicies.model_validate("drop")


def upload(local: Path, remote: str) -> str:
    """Copies a folder."""
    for name in files.walk_files(local):
        files.copy_file(local / name, paths.join(remote, name))
    return remote


def contents(folder: str | Path) -> dict[str, bytes]:
    """Relative path -> content of all files of a conversion; the report, which names paths, is told by its presence."""
    content = {name: read_bytes(paths.join(folder, name)) for name in files.walk_files(folder)}
    return content | ({DATA_REPORT_HTML: b""} if DATA_REPORT_HTML in content else {})


def converted(splits: dict[str, SplitFiles], out: str | Path, *, beam_args: Sequence[str] = ()) -> dict[str, bytes]:
    """Converts, invalid images left out."""
    convert(splits, out, DataConfig(on_fault=DROP), beam_args=beam_args)
    return contents(out)
