"""Values of entries that are read leniently."""

from typing import Any

import pytest

from detection.datasets.annotations.entries import skeleton_of


@pytest.mark.parametrize(
    ("category", "edges"),
    [
        ({"skeleton": [[16, 14], [14, 12]]}, [(16, 14), (14, 12)]),
        ({}, []),
        *(({"skeleton": value}, []) for value in (None, [], 0, "abc", {"a": 1}, [1], ["\ud800"])),
        *(({"skeleton": [edge]}, []) for edge in ([1], [1, 2, 3], [1, "nose"], [1, 2.5])),
    ],
)
def test_only_pairs_of_numbers_are_a_skeleton(category: dict[str, Any], edges: list[tuple[int, int]]) -> None:
    assert skeleton_of(category) == edges
