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
        raise DataError(f"{path}: cannot read the file: {error.strerror}. Check the path.") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}. The file may be cut off; write or copy it again.") from None
