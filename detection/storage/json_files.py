"""JSON: fast encoding and decoding of texts, and reading of files that users name."""

import json
import math
import os
import re
import select
import stat
import time
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from pydantic import TypeAdapter, ValidationError

from schemas.errors import DataError
from schemas.limits import MAX_DEPTH
from schemas.quoting import one_line

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder()
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|([\[{])|[\]}]')
_SQUARE = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))
PIPE_BYTES = 512 << 20  # of JSON that is read from a pipe, at most
WRITER_SECONDS = 10.0  # that a pipe may stay without a writer
_PIPE_BLOCK = 1 << 20
T = TypeVar("T")
_PLACE = 100  # characters of a key in a message


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
    if b"null" in text:  # also what msgspec makes of NaN
        json.dumps(value, allow_nan=False)
    return text


def is_too_deep(text: bytes) -> bool:
    """Returns whether a JSON text nests deeper than `MAX_DEPTH`."""
    brackets = text.translate(_SQUARE, _OTHERS)
    for _ in range(MAX_DEPTH):
        left = brackets.replace(b"[]", b"")  # without the innermost level
        if len(left) in (0, len(brackets)):
            break
        brackets = left
    if not left:
        return False
    return _is_deeper(text.decode("latin-1"))  # brackets in its texts do not count


def _is_deeper(text: str) -> bool:
    depth = 0
    for match in _BRACKETS.finditer(text):
        if match[1]:
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif match[0] in "]}":
            depth -= 1
    return False


def read_json(path: str | Path) -> Any:
    """Parses a JSON file; NaN and Infinity pass as Python reads them.

    Raises:
        DataError: the file cannot be read, is a device, is no JSON, or is nested deeper
            than `MAX_DEPTH`; see `read_bytes`.
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
    """Reads a file, or what comes through a pipe.

    Args:
        path: of the file.
        limit: most bytes that it may have; None: as many as it has.

    Raises:
        DataError: the file cannot be read or is larger; it is a device, which may have no
            end; a pipe that nothing is written to, or more than `PIPE_BYTES`.
    """
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISFIFO(mode):
            content = _read_pipe(path)
        elif stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            with open(path, "rb") as file:
                content = file.read(-1 if limit is None else limit + 1)
        else:
            raise DataError(f"{path}: this is a device or socket. Name a file, or a pipe.")
    except OSError as error:
        raise cannot_read(path, error) from None
    except ValueError as error:  # a NUL character
        raise DataError(f"{one_line(path)}: no path: {error}. Check the path.") from None
    if limit is not None and len(content) > limit:
        raise DataError(f"{path}: more than {limit} bytes. Check that it is the file you mean.")
    return content


def is_file(path: str | Path) -> bool:
    """Returns whether a path is a regular file, which can be read twice; a pipe cannot."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def is_pipe(path: str | Path) -> bool:
    """Returns whether a path is a pipe, which can be read once."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _read_pipe(path: str | Path) -> bytes:
    # Opened without waiting: a pipe that nobody writes to would block for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    content = bytearray()
    deadline = time.monotonic() + WRITER_SECONDS
    try:
        while len(content) <= PIPE_BYTES:
            try:
                data = os.read(descriptor, _PIPE_BLOCK)
            except BlockingIOError:  # somebody writes, and has nothing to say yet
                select.select([descriptor], [], [])
                continue
            if data:
                content += data
            elif content:
                return bytes(content)
            elif time.monotonic() > deadline:
                raise DataError(f"{path}: nothing came through this pipe for {WRITER_SECONDS:g} s. Name a file.")
            else:
                time.sleep(0.02)
    finally:
        os.close(descriptor)
    raise DataError(f"{path}: more than {PIPE_BYTES >> 20} MiB came through this pipe. Write it to a file first.")


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
    return next((inner for key, member in members if (inner := _infinite(member, f"{place}.{key}")) is not None), None)
