"""Reading JSON files that users name."""

import json
import os
import select
import stat
import time
from pathlib import Path
from typing import Any

from detection.storage.json_text import is_too_deep
from schemas.errors import DataError
from schemas.limits import MAX_DEPTH
from schemas.quoting import one_line

PIPE_BYTES = 512 << 20  # of JSON that is read from a pipe, at most
WRITER_SECONDS = 10.0  # that a pipe may stay without a writer
_PIPE_BLOCK = 1 << 20


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
