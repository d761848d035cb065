import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detection.input_pipeline.record_classes import RecordClasses
from detection.input_pipeline.record_order import RecordOrder, draw_counts, epoch_permutation, repeat_factors

FACTORS = np.array([1.0, 2.5, 1.25, 7.75, 1.0, 1.1, 3.0])


def _classes(of_records: list[list[int]]) -> RecordClasses:
    rows = [(number, kind) for number, kinds in enumerate(of_records) for kind in kinds]
    return RecordClasses(*np.array(rows, np.int64).reshape(-1, 2).T)


def _epoch(order: RecordOrder, number: int) -> list[int]:
    return [order.record(number * order.epoch_size + place) for place in range(order.epoch_size)]


def test_an_epoch_holds_every_record_once_and_epochs_differ() -> None:
    orders = [epoch_permutation(3, epoch, 100) for epoch in range(3)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(100))
    assert (orders[0] != orders[1]).any()
    assert (orders[0] != epoch_permutation(4, 0, 100)).any()
    uniform = RecordOrder(3, 100)
    assert _epoch(uniform, 1) == orders[1].tolist()


def test_repeat_factors_worked_by_hand() -> None:
    """Class 0 is in 8 of 8 images, 1 in 2, 2 in 1, several times."""
    records = [[0], [0, 1], [0, 0, 1, 1], [0, 2, 2, 2], [0], [0], [0], [0]]
    factors = repeat_factors(_classes(records), num_records=8, threshold=0.5)
    np.testing.assert_allclose(factors, [1, 2**0.5, 2**0.5, 2, 1, 1, 1, 1])
    np.testing.assert_array_equal(repeat_factors(_classes(records), num_records=8, threshold=0.125), np.ones(8))


@given(st.lists(st.lists(st.integers(0, 4), max_size=5), min_size=1, max_size=12), st.floats(0.01, 1.0))
def test_repeat_factors_equal_the_papers_rule(records: list[list[int]], threshold: float) -> None:
    count = len(records)
    expected = []
    for kinds in records:
        fractions = [sum(kind in other for other in records) / count for kind in kinds]
        expected.append(max([1.0, *((threshold / fraction) ** 0.5 for fraction in fractions)]))
    np.testing.assert_allclose(repeat_factors(_classes(records), num_records=count, threshold=threshold), expected)


def test_over_all_offsets_every_record_has_exactly_its_factor() -> None:
    factors = np.append(FACTORS, 19 - FACTORS.sum())
    order = np.random.default_rng(0).permutation(8)
    offsets = (np.arange(2000) + 0.5) / 2000
    counts = np.stack([draw_counts(factors, order, offset) for offset in offsets])
    np.testing.assert_allclose(counts.mean(0), factors, atol=1e-3)


@given(st.lists(st.floats(1.0, 30.0), min_size=1, max_size=40), st.integers(0, 2**32), st.integers(0, 50))
def test_an_epoch_has_each_record_its_factor_rounded_down_or_up(factors: list[float], seed: int, epoch: int) -> None:
    order = RecordOrder(seed, len(factors), np.array(factors))
    counts = np.bincount(_epoch(order, epoch), minlength=len(factors))
    assert counts.sum() == order.epoch_size
    assert sum(factors) - 1e-5 <= order.epoch_size < sum(factors) + 1
    # The factors are scaled up until their sum is a whole number.
    scaled = np.array(factors) * max(1.0, order.epoch_size / sum(factors))
    assert (counts >= np.floor(scaled - 1e-9)).all()
    assert (counts <= np.ceil(scaled + 1e-9)).all()
    assert (counts >= 1).all()


def test_frequencies_over_many_epochs_are_the_factors() -> None:
    order = RecordOrder(5, len(FACTORS), FACTORS)
    assert order.epoch_size == 18  # of 17.6
    epochs = 1000
    mean = sum(np.bincount(_epoch(order, epoch), minlength=len(FACTORS)) for epoch in range(epochs)) / epochs
    scaled = FACTORS * 18 / 17.6
    spread = np.sqrt((scaled % 1) * (1 - scaled % 1) / epochs)
    assert (np.abs(mean - scaled) <= 5 * spread + 1e-12).all()


def test_epochs_and_seeds_differ_and_any_position_can_be_asked_first() -> None:
    order, again, other = (RecordOrder(seed, len(FACTORS), FACTORS) for seed in (5, 5, 6))
    epochs = [_epoch(order, number) for number in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert epochs[2] == _epoch(again, 2)
    assert epochs[1] != _epoch(other, 1)


def test_factors_of_one_are_a_permutation() -> None:
    order = RecordOrder(1, 50, np.ones(50))
    assert order.epoch_size == 50
    assert sorted(_epoch(order, 3)) == list(range(50))


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_an_epochs_length_does_not_depend_on_rounding(size: int) -> None:
    """A tenth cannot be written exactly; a thousand of them, summed up, are not quite a hundred."""
    order = RecordOrder(0, size, np.full(size, 1.1))
    assert order.epoch_size == {1: 2, 2: 3, 1000: 1100}[size]
    assert len(_epoch(order, 0)) == order.epoch_size
