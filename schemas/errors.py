"""Errors that a user can fix.

Every message states the error, its place (file, id, key) and the remedy.  The program prints
it without a traceback; any other error is a bug and has a traceback.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterator


class CocoflowError(Exception):
    """A failure for a reason outside the program; exit code 1."""

    exit_code = 1


class ConfigError(CocoflowError):
    """An invalid flag, configuration key or value; exit code 2."""

    exit_code = 2


class DataError(CocoflowError):
    """An invalid data set, record, image or other file."""


class RefusedModelError(DataError):
    """A blessed model whose served outputs differ from the evaluated ones."""


_BY_NAME = {kind.__name__: kind for kind in (CocoflowError, ConfigError, DataError, RefusedModelError)}

_IN_TRACEBACK = re.compile(
    rf"schemas\.errors\.({'|'.join(_BY_NAME)}): (.*?)(?= \[while running |\n\s*\n|\nDuring |\Z)", re.DOTALL
)

_INTERRUPTED = re.compile(r"(?:^|\n)KeyboardInterrupt(?: \[while running |\s*(?:\n|\Z))")

# Disk failures, which occur anywhere as an OSError or a message of TensorFlow.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
_DISK_WORDS = "|".join(re.escape(os.strerror(number)) for number in _DISK_ERRORS)
_DISK_TEXT = re.compile(rf"(?:(?<!\S)(/[^;\n]+); )?({_DISK_WORDS})(?:: '([^'\n]+)')?")

_BEAM_TRAIL = re.compile(r" \[while running '[^']*'\]$")  # suffix of a worker's message, added by Beam


def find_user_error(error: BaseException) -> CocoflowError | None:
    """Returns the `CocoflowError` that caused `error`, or a disk error; None: a bug.

    Follows `__cause__` and `__context__`.  Beam wraps a worker's exception in a
    `RuntimeError` with the text of its traceback, which is searched as well.
    """
    for current in causes(error):
        if isinstance(current, CocoflowError):
            return type(current)(_BEAM_TRAIL.sub("", str(current)))
        match = _IN_TRACEBACK.search(str(current))
        if match:
            return _BY_NAME[match[1]](match[2].strip())
    return _disk_error(error)


def _disk_error(error: BaseException) -> CocoflowError | None:
    for current in causes(error):
        refusal = disk_refusal(current)
        if refusal is not None:
            return CocoflowError(
                f"cannot write to the disk: {refusal}. Free space, or make the disk writable, and repeat the "
                "command: it continues from the complete files."
            )
    return None


def disk_refusal(error: BaseException) -> str | None:
    """Returns the message of a full, read-only or broken disk, with the file if known; None: another error.

    Args:
        error: an `OSError`, or an error with such a message of Python or TensorFlow.
    """
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        return f"{error.strerror} ({error.filename})" if error.filename else f"{error.strerror}"
    match = None if isinstance(error, OSError) else _DISK_TEXT.search(str(error))
    if match is None:
        return None
    path = match[1] or match[3]
    return f"{match[2]} ({path})" if path else match[2]


@contextlib.contextmanager
def disk_refusals_explained(what: str, *, advice: str) -> Iterator[None]:
    """Converts errors of a full, read-only or broken disk in the block to user errors.

    Args:
        what: name of the written files in the message.
        advice: remedy, and the files that are kept.

    Raises:
        CocoflowError: the disk is full, read-only or broken.
    """
    try:
        yield
    except Exception as error:
        refusal = disk_refusal(error)
        if refusal is None:
            raise
        raise CocoflowError(f"{what} cannot be written: {refusal}. {advice}") from error


def was_interrupted(error: BaseException) -> bool:
    """Returns True if a `KeyboardInterrupt`, here or in a Beam worker, caused `error`."""
    return any(isinstance(one, KeyboardInterrupt) or _INTERRUPTED.search(str(one)) for one in causes(error))


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yields `error` and the errors that caused it, latest first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        yield current
        seen.add(id(current))
        current = current.__cause__ or current.__context__
