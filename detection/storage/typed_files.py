"""JSON files of a fixed structure, validated when they are read."""

import math
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from detection.storage.json_files import read_bytes
from schemas.errors import DataError
from schemas.quoting import one_line

T = TypeVar("T")
_PLACE = 100  # characters of a key in a message


def parse_file(structure: TypeAdapter[T], path: str | Path, *, what: str) -> T:
    """Reads a file of a structure of dataclasses, lists, dictionaries and plain values.

    Args:
        structure: what the file holds.
        path: the file.
        what: names the structure in errors: "an analysis".

    Raises:
        DataError: the file cannot be read, or has another structure, or NaN or infinity;
            it names the key.
    """
    try:
        value = structure.validate_json(read_bytes(path))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))[:_PLACE]
        raise not_of_this_version(path, what, f"{f'{place}: ' if place else ''}{first['msg']}") from None
    infinite = _infinite(value, "")
    if infinite is not None:
        raise not_of_this_version(path, what, f"{infinite[1:][:_PLACE]}: not a finite number")
    return value


def not_of_this_version(path: str | Path, what: str, reason: str) -> DataError:
    """Returns the error for a file that does not hold `what`."""
    return DataError(
        f"{path}: not {what} of this version: {one_line(reason)}. "
        "Evaluate again, or check that it is the file you mean."
    )


def _infinite(value: Any, place: str) -> str | None:
    """The key of the first number that is not finite; None: all are."""
    if isinstance(value, float):
        return None if math.isfinite(value) else place
    if is_dataclass(value):
        members: Any = ((field.name, getattr(value, field.name)) for field in fields(value))
    elif isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    else:
        return None
    return next((found for key, member in members if (found := _infinite(member, f"{place}.{key}")) is not None), None)
