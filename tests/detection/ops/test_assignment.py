"""Assignments against scipy's."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.optimize import linear_sum_assignment

from detection.ops.assignment import assign


def _cost(costs: np.ndarray, found: np.ndarray, counts: np.ndarray) -> np.ndarray:
    sums = []
    for matrix, row, count in zip(costs, found, counts, strict=True):
        assert len(set(row[:count])) == count
        assert (row[:count] >= 0).all()
        assert (row[count:] == -1).all()
        sums.append(matrix[np.arange(count), row[:count]].sum())
    return np.array(sums)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("objects", "queries"), [(1, 1), (5, 5), (12, 40), (30, 31)])
@pytest.mark.parametrize("kind", ["random", "ties", "negative"])
def test_the_cost_is_the_smallest(compiled: bool, objects: int, queries: int, kind: str) -> None:
    random = np.random.default_rng(objects)
    costs = random.normal(size=(8, objects, queries)).astype(np.float32)
    if kind == "ties":
        costs = np.round(costs)
    elif kind == "negative":
        costs -= 100.0
    counts = np.array([0, objects, *random.integers(0, objects + 1, 6)], np.int32)
    found = tf.function(assign, jit_compile=compiled)(tf.constant(costs), tf.constant(counts)).numpy()
    expected = np.full_like(found, -1)
    for row, matrix, count in zip(expected, costs, counts, strict=True):
        row[:count] = linear_sum_assignment(matrix[:count])[1]
    if kind != "ties":  # the optimum is unique
        np.testing.assert_array_equal(found, expected)
    smallest = _cost(costs, expected, counts)
    np.testing.assert_allclose(_cost(costs, found, counts), smallest, rtol=1e-5, atol=1e-4)


def test_no_objects_at_all() -> None:
    costs = tf.zeros([3, 4, 6])
    np.testing.assert_array_equal(assign(costs, tf.zeros([3], tf.int32)), np.full((3, 4), -1))
