"""Repetition of requests to a service that is unavailable for some time: how often, and for how long."""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

FIRST_DELAY = 1.0  # seconds before a request is repeated for the first time; then twice as long each time
_MAX_DELAY = 20.0
RETRY_SECONDS = 120.0  # that a request may be repeated for

T = TypeVar("T")


def pauses(seconds: float) -> Iterator[float]:
    """Sleeps before each step of a loop, longer each time; yields the seconds slept.

    Args:
        seconds: the loop ends when this time, from now on, would be over.
    """
    return _pauses(time.monotonic() + seconds)


def _pauses(end: float) -> Iterator[float]:
    delay = FIRST_DELAY
    while time.monotonic() + delay <= end:
        time.sleep(delay)
        yield delay
        delay = min(2 * delay, _MAX_DELAY)


def repeated(work: Callable[[], T], *, is_temporary: Callable[[Exception], bool]) -> T:
    """Does work that may be done twice; repeats it after temporary errors, for `RETRY_SECONDS`.

    Args:
        work: sends requests.
        is_temporary: returns whether an error of `work` may go away.

    Raises:
        Exception: the last error of `work`.
    """
    waits = pauses(RETRY_SECONDS)
    while True:
        try:
            return work()
        except Exception as error:
            if not is_temporary(error) or next(waits, None) is None:
                raise
