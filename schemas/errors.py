"""Errors a user can act on.

Every message says what is wrong, where (file, id, key) and what to do.  The
program prints them without a traceback; anything else is a bug and shows one.
"""

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

_BEAM_TRAIL = re.compile(r" \[while running '[^']*'\]$")  # Beam adds it to a worker's message


def find_user_error(error: BaseException) -> CocoflowError | None:
    """Returns the `CocoflowError` that caused `error`, or None.

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
    return None


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
