"""Reading JSON files that users name."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from detection.coco.json_text import is_too_deep
from schemas.errors import DataError
from schemas.limits import MAX_DEPTH


def read_json(path: str | Path) -> Any:
    """Parses a JSON file; NaN and Infinity pass as Python reads them.

    Raises:
        DataError: the file cannot be read, is a device, is no JSON, or is nested deeper
            than `MAX_DEPTH`.
    """
    content = read_bytes(path)
    if is_too_deep(content):
        raise DataError(f"{path}: nested more than {MAX_DEPTH} deep. Check that it is the file you mean.")
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}: not JSON: {error.msg} at line {error.lineno}, column {error.colno}. "
            "The file may be cut off or edited by hand; write or copy it again."
        ) from None
    except (ValueError, RecursionError) as error:  # not UTF-8, or a number of thousands of digits
        raise DataError(f"{path}: not a JSON text file ({error}). Check that it is the file you mean.") from None


def read_bytes(path: str | Path, limit: int | None = None) -> bytes:
    """The content of a file or pipe.

    Args:
        path: of the file.
        limit: most bytes that it may have; None: as many as it has.

    Raises:
        DataError: it cannot be read, is larger, or is a device, which may have no end.
    """
    try:
        with open(path, "rb") as file:
            if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
                raise DataError(f"{path}: this is a device. Name a file.")
            content = file.read(-1 if limit is None else limit + 1)
    except OSError as error:
        raise cannot_read(path, error) from None
    except ValueError as error:  # a NUL in its name
        raise DataError(f"{str(path)!a}: no name of a file ({error}). Correct it.") from None
    if limit is not None and len(content) > limit:
        raise DataError(f"{path}: more than {limit} bytes. Check that it is the file you mean.")
    return content


def cannot_read(path: str | Path, error: OSError) -> DataError:
    """The error for a file that cannot be opened; it tells what lies beside it."""
    return DataError(f"{path}: cannot read the file: {error.strerror}. {_what_is_there(Path(path))}")


def _what_is_there(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"The folder {folder} does not exist either; check the path."
    names = sorted(file.name for file in folder.glob("*.json"))
    if not names:
        return f"There is no JSON file in {folder}; check the path."
    return f"JSON files in {folder}: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}."
