"""JSON: fast encoding and decoding of texts, and reading of files that users name."""

import json
import math
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from pydantic import TypeAdapter, ValidationError

from detection.storage.files import read_bytes
from schemas.errors import DataError
from schemas.limits import MAX_DEPTH
from schemas.quoting import one_line

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder()
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)  # keeps no state per character
_SQUARE = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))
T = TypeVar("T")
_NO_TEXT = {
    b"PK\x03\x04": "a ZIP archive. Unpack it, and name the JSON file in it",
    b"\x1f\x8b": "a gzip file. Unpack it: gunzip",
    b"version https://git-lfs.github.com": "a Git LFS pointer. Fetch the file: git lfs pull",
}
_PLACE = 100  # characters of a key in a message
_EVALUATE_AGAIN = "Evaluate again, or check that it is the file you mean."


def parse(text: bytes) -> Any:
    """Parses a text as `json.loads` does, NaN, Infinity and half surrogate pairs included, but faster.

    Raises:
        ValueError: no JSON in UTF-8.
    """
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return json.loads(text)


def serialize(value: Any) -> bytes:
    """A value as JSON in UTF-8 without spaces; floats read back to the same bits, keys keep their order.

    Raises:
        ValueError: NaN or Infinity somewhere, which JSON does not have.
    """
    try:
        text = _ENCODER.encode(value)
    except (UnicodeEncodeError, RecursionError):  # half a surrogate pair has no UTF-8, only an escape
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    if b"null" in text:  # msgspec writes NaN as null
        json.dumps(value, allow_nan=False)
    return text


def is_too_deep(text: bytes) -> bool:
    """Returns whether a JSON text nests deeper than `MAX_DEPTH`."""
    # Brackets in its texts do not count, but it takes long to remove the texts, and is seldom needed.
    return _is_deep(text) and _is_deep(_TEXT.sub(b"", text))


def _is_deep(text: bytes) -> bool:
    brackets = text.translate(_SQUARE, _OTHERS)
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")  # the innermost level
    return b"[]" in brackets or brackets.count(b"[") > MAX_DEPTH  # not closed


def require_text(head: bytes, path: str | Path) -> None:
    """Refuses files of other formats that are often named .json, by their first bytes.

    Raises:
        DataError: names what it is.
    """
    for start, what in _NO_TEXT.items():
        if head.startswith(start):
            raise DataError(f"{path}: this is {what}.")


def read_json(path: str | Path) -> Any:
    """Parses a JSON file; NaN and Infinity pass as Python reads them.

    Raises:
        DataError: the file cannot be read, is a device, is no JSON, or is nested deeper
            than `MAX_DEPTH`; see `read_bytes`.
    """
    content = read_bytes(path)
    require_text(content, path)
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


def parse_file(structure: TypeAdapter[T], path: str | Path, *, what: str, remedy: str = _EVALUATE_AGAIN) -> T:
    """Reads a file of a structure of dataclasses, models of pydantic, lists, tuples, dictionaries and plain values.

    Keys that the structure does not have are ignored.

    Args:
        structure: type of the content.
        path: the file.
        what: names the structure in errors: "an analysis".
        remedy: sentence for the message.

    Raises:
        DataError: the file cannot be read, or has another structure, or NaN or infinity;
            it names the key.
    """
    try:
        value = structure.validate_json(read_bytes(path))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))[:_PLACE]
        raise not_of_this_version(path, what, f"{f'{place}: ' if place else ''}{first['msg']}", remedy) from None
    infinite = _infinite(structure.dump_python(value), "")
    if infinite is not None:
        raise not_of_this_version(path, what, f"{infinite[1:][:_PLACE]}: not a finite number", remedy)
    return value


def not_of_this_version(path: str | Path, what: str, reason: str, remedy: str = _EVALUATE_AGAIN) -> DataError:
    """Returns the error for a file that does not hold `what`."""
    return DataError(f"{path}: not {what} of this version: {one_line(reason)}. {remedy}")


def _infinite(value: Any, place: str) -> str | None:
    """The key of the first number that is not finite; None: all are."""
    if isinstance(value, float):
        return None if math.isfinite(value) else place
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    return next((inner for key, member in members if (inner := _infinite(member, f"{place}.{key}")) is not None), None)
