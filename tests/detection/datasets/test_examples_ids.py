"""Categories of a model and of a data set, by name and by number."""

from typing import Any

import pytest

from detection.datasets.examples import ids_by_name, renumbered

CATEGORIES = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}, {"id": 5, "name": "emu"}]


@pytest.mark.parametrize(
    ("own", "ids", "changed"),
    [
        (CATEGORIES, {1: 1, 2: 2, 5: 5}, []),
        (None, {1: 1, 2: 2, 5: 5}, []),
        ([{"id": 1}, {"id": 9}, {"id": 2, "name": None}], {1: 1}, []),
        (
            [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}],
            {0: 1, 1: 2},
            ["1 was 'dog' and is 'cat'", "'cat' was 0 and is 1"],
        ),
        ([{"id": 1, "name": "cat"}, {"id": 9, "name": "yak"}], {1: 1}, []),
        ([{"id": 9, "name": "emu"}], {9: 5}, ["'emu' was 9 and is 5"]),
        ([{"id": 1, "name": "yak"}], {}, ["1 was 'yak' and is 'cat'"]),
    ],
)
def test_ids_follow_names(own: list[dict[str, Any]] | None, ids: dict[int, int], changed: list[str]) -> None:
    assert ids_by_name(own, CATEGORIES) == ids
    assert sorted(renumbered(own or (), CATEGORIES)) == sorted(changed)
