"""The budget of the tests' processor time."""

from pathlib import Path

from tests import processor_time
from tests.processor_time import BUDGET, EXPENSIVE, SUITE, too_expensive


def test_few_files_may_be_expensive_and_each_is_there() -> None:
    assert len(EXPENSIVE) <= 12
    assert all(Path(processor_time.__file__).parents[1].joinpath(path).is_file() for path in EXPENSIVE)


def test_a_share_is_the_same_on_a_slow_machine() -> None:
    files = dict.fromkeys((f"tests/test_{number}.py" for number in range(int(SUITE / BUDGET) - 5)), BUDGET)
    for slow in (1.0, 3.0):
        seconds = {path: slow * value for path, value in files.items()}
        assert too_expensive(seconds | {"tests/test_a.py": 15.0 * slow}) == []
        assert too_expensive(seconds | {"tests/test_a.py": 45.0 * slow}) == ["tests/test_a.py"]
        assert too_expensive(seconds | {processor_time.SESSION: 45.0 * slow}) == []
