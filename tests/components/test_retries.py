"""How often and how long requests are repeated, on a clock of the test's own."""

from collections.abc import Callable

import pytest

from components import retries


class Clock:
    """A clock that only sleep moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retries.time, "sleep", clock.sleep)
    monkeypatch.setattr(retries.time, "monotonic", lambda: clock.now)
    return clock


def failing(times: int, error: Exception, clock: Clock, *, seconds: float = 0.0) -> Callable[[], float]:
    """Work that fails some times, each time after some seconds; it returns when it was done."""
    left = [times]

    def work() -> float:
        clock.now += seconds
        if left[0]:
            left[0] -= 1
            raise error
        return clock.now

    return work


def is_os_error(error: Exception) -> bool:
    return isinstance(error, OSError)


def test_delays_double_up_to_a_maximum_within_two_minutes(clock: Clock) -> None:
    assert (
        list(retries.pauses(retries.RETRY_SECONDS)) == clock.slept == [1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0, 20.0, 20.0]
    )
    assert list(retries.pauses(0.5)) == []


def test_work_is_repeated_until_it_is_done(clock: Clock) -> None:
    assert retries.repeated(failing(3, OSError("busy"), clock), is_temporary=is_os_error) == 1007.0
    assert retries.repeated(failing(0, OSError("busy"), clock), is_temporary=is_os_error) == 1007.0


def test_the_last_error_is_raised_when_the_time_is_over(clock: Clock) -> None:
    with pytest.raises(OSError, match="busy"):
        retries.repeated(failing(1000, OSError("busy"), clock, seconds=50.0), is_temporary=is_os_error)
    assert clock.slept == [1.0, 2.0]


def test_another_error_is_raised_at_once(clock: Clock) -> None:
    with pytest.raises(KeyError):
        retries.repeated(failing(1, KeyError("bug"), clock), is_temporary=is_os_error)
    assert clock.slept == []
