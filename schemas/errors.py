"""Errors a user can act on.

Every message says what is wrong, where (file, id, key) and what to do.  The
program prints them without a traceback; anything else is a bug and shows one.
"""

import errno
import os
import re
from collections.abc import Iterator


class CocoflowError(Exception):
    """A fault outside the program: the run failed, exit code 1."""

    exit_code = 1


class ConfigError(CocoflowError):
    """A wrong flag, configuration key or value: exit code 2."""

    exit_code = 2


class DataError(CocoflowError):
    """A data set, record or image that cannot be used as it is."""


_IN_TRACEBACK = re.compile(
    r"schemas\.errors\.(CocoflowError|ConfigError|DataError): (.*?)(?= \[while running |\n\s*\n|\nDuring |\Z)",
    re.DOTALL,
)

_INTERRUPTED = re.compile(r"(?:^|\n)KeyboardInterrupt(?: \[while running |\s*(?:\n|\Z))")

# What is no fault of the program, though it comes as an OSError, or as a text of TensorFlow's, from anywhere.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
_DISK_WORDS = "|".join(re.escape(os.strerror(number)) for number in _DISK_ERRORS)
_DISK_TEXT = re.compile(rf"(?:(?<!\S)(/[^;\n]+); )?({_DISK_WORDS})(?:: '([^'\n]+)')?")

_BEAM_TRAIL = re.compile(r" \[while running '[^']*'\]$")  # Beam adds it to a worker's message


def find_user_error(error: BaseException) -> CocoflowError | None:
    """Returns the `CocoflowError` that caused `error`, or one that says what the disk refused; None: a bug.

    Follows `__cause__` and `__context__`; Beam raises a worker's exception again
    as a `RuntimeError` that holds only the traceback's text, so the text is
    searched too.
    """
    for current in causes(error):
        if isinstance(current, CocoflowError):
            return type(current)(_BEAM_TRAIL.sub("", str(current)))
        match = _IN_TRACEBACK.search(str(current))
        if match:
            kinds: dict[str, type[CocoflowError]] = {
                "CocoflowError": CocoflowError,
                "ConfigError": ConfigError,
                "DataError": DataError,
            }
            return kinds[match[1]](match[2].strip())
    return _disk_error(error)


def _disk_error(error: BaseException) -> CocoflowError | None:
    for current in causes(error):
        refusal = disk_refusal(current)
        if refusal is not None:
            return CocoflowError(
                f"the disk refuses to be written: {refusal}. Make room, or see that it may be written, and give the "
                "same command again: what was whole before is kept, and gone on with."
            )
    return None


def disk_refusal(error: BaseException) -> str | None:
    """What a full, read-only or broken disk said to one who wrote, with the file if it is known; None: it is not that.

    Args:
        error: an `OSError`, or one whose text tells of it as Python and TensorFlow do.
    """
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        return f"{error.strerror} ({error.filename})" if error.filename else f"{error.strerror}"
    found = None if isinstance(error, OSError) else _DISK_TEXT.search(str(error))
    if found is None:
        return None
    path = found[1] or found[3]
    return f"{found[2]} ({path})" if path else found[2]


def was_interrupted(error: BaseException) -> bool:
    """Whether a `KeyboardInterrupt`, here or in a Beam worker, caused `error`."""
    return any(isinstance(one, KeyboardInterrupt) or _INTERRUPTED.search(str(one)) for one in causes(error))


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yields `error`, and the errors that led to it, the latest first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        yield current
        seen.add(id(current))
        current = current.__cause__ or current.__context__
