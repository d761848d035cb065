"""Which rows of a class network correspond; the expected places are counted by hand."""

import numpy as np
import pytest

from detection.training.initialization.class_outputs import same_categories, source_outputs


def _categories(*pairs: tuple[int, str]) -> list[dict[str, object]]:
    return [{"id": number, "name": name} for number, name in pairs]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([(1, "cat"), (2, "dog")], [(1, "cat"), (2, "dog")], [0, 1]),
        ([(1, "cat"), (2, "dog")], [(7, "dog"), (8, "cat"), (9, "cow")], [1, 0]),
        ([(1, "screw"), (2, "dog")], [(1, "cat"), (2, "dog")], [-1, 1]),
        ([(1, "cat"), (5, "cat")], [(5, "cat"), (1, "cat")], [1, 0]),
        ([(1, "cat"), (2, "cat")], [(3, "cat"), (4, "dog")], [-1, -1]),
        ([(1, "cat")], [(3, "cat"), (4, "cat")], [-1]),
    ],
)
def test_categories_are_the_same_by_name(
    ours: list[tuple[int, str]], theirs: list[tuple[int, str]], expected: list[int]
) -> None:
    assert same_categories(_categories(*ours), _categories(*theirs)).tolist() == expected


def test_outputs_of_several_anchors() -> None:
    """Two anchors; ours has classes (new, A, B), theirs (B, A)."""
    outputs = source_outputs(np.array([0, 1, 2, 0, 1, 2]), np.array([0, 1, 0, 1]), np.array([-1, 1, 0]))
    assert outputs.tolist() == [-1, 1, 0, -1, 3, 2]


def test_outputs_of_no_class_correspond_in_their_order() -> None:
    """Background first, as in Mask R-CNN's boxes: four outputs a class."""
    ours, theirs = np.repeat([-1, 0, 1], 4), np.repeat([-1, 0], 4)
    outputs = source_outputs(ours, theirs, np.array([-1, 0]))
    assert outputs.tolist() == [0, 1, 2, 3, -1, -1, -1, -1, 4, 5, 6, 7]


def test_anchors_that_the_source_lacks_are_not_there() -> None:
    assert source_outputs(np.array([0, 0]), np.array([0]), np.array([0])).tolist() == [0, -1]
