"""Reading JSON files that users name."""

import json
from pathlib import Path
from typing import Any

from schemas.errors import DataError


def read_json(path: str | Path) -> Any:
    """Parses a JSON file; NaN and Infinity pass as Python reads them.

    Raises:
        DataError: the file cannot be read or is no JSON.
    """
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise cannot_read(path, error) from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}: not JSON: {error.msg} at line {error.lineno}, column {error.colno}. "
            "The file may be cut off or edited by hand; write or copy it again."
        ) from None
    except (ValueError, RecursionError) as error:  # not UTF-8, or a number of thousands of digits
        raise DataError(f"{path}: not a JSON text file ({error}). Check that it is the file you mean.") from None


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
