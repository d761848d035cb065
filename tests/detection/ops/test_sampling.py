"""Properties of the samples: exact counts, no repetition, uniformity, independence of replicas."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from detection.ops.replicas import micro_batch, own_slice
from detection.ops.sampling import Slots, sample_balanced

SEED = tf.constant([3, -7])
_sample = partial(sample_balanced, seed=SEED, index=0)


def _masks(rows: int, positives: int, negatives: int, *, batch: int = 1) -> tuple[tf.Tensor, tf.Tensor]:
    """The first rows of a shuffled order are positive, the next ones negative."""
    random = np.random.default_rng(0)
    order = np.stack([random.permutation(rows) for _ in range(batch)])
    return tf.constant(order < positives), tf.constant((order >= positives) & (order < positives + negatives))


def _check(slots: Slots, positive: np.ndarray, negative: np.ndarray, *, count: int, limit: int) -> None:
    for image in range(len(positive)):
        positives = min(int(positive[image].sum()), limit)
        used = min(positives + int(negative[image].sum()), count)
        np.testing.assert_array_equal(slots.positive[image], np.arange(count) < positives)
        np.testing.assert_array_equal(slots.valid[image], np.arange(count) < used)
        indices = slots.indices[image].numpy()
        assert positive[image, indices[:positives]].all()
        assert negative[image, indices[positives:used]].all()
        assert len(set(indices[:used].tolist())) == used
        assert not indices[used:].any()


@settings(max_examples=60)
@given(
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(0, 4),
    st.integers(1, 10),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
)
def test_counts_are_exact(positives: int, negatives: int, others: int, count: int, fraction: float) -> None:
    rows = max(positives + negatives + others, 1)
    positive, negative = _masks(rows, positives, negatives, batch=2)
    slots = _sample(positive, negative, count=count, positive_fraction=fraction)
    assert slots.indices.shape == (2, count)
    _check(slots, positive.numpy(), negative.numpy(), count=count, limit=int(count * fraction))


def test_every_row_is_as_likely() -> None:
    """Of 20 positives 5 are drawn and of 30 negatives 7: each row's share over many draws is 1/4 and 7/30."""
    draws = 4000
    positive, negative = (tf.repeat(mask, draws, axis=0) for mask in _masks(60, 20, 30))
    slots = _sample(positive, negative, count=12, positive_fraction=5 / 12)
    shares = np.bincount(slots.indices.numpy().ravel(), minlength=60) / draws
    deviation = np.sqrt(0.25 * 0.75 / draws)
    assert np.abs(shares[positive[0]] - 5 / 20).max() < 5 * deviation
    assert np.abs(shares[negative[0]] - 7 / 30).max() < 5 * deviation
    assert not shares[~(positive[0] | negative[0]).numpy()].any()
    pairs = (slots.indices.numpy()[:, :5, None] == np.flatnonzero(positive[0])[:2]).any(axis=1).all(axis=1)
    assert abs(pairs.mean() - 5 * 4 / (20 * 19)) < 5 * np.sqrt(0.05 / draws)


def test_seed_index_and_position_matter() -> None:
    positive, negative = (tf.repeat(mask, 2, axis=0) for mask in _masks(200, 40, 160))
    draw = partial(sample_balanced, positive, negative, count=32, positive_fraction=0.5)
    base, again = (draw(seed=SEED, index=0).indices.numpy() for _ in range(2))
    np.testing.assert_array_equal(base, again)
    assert (base[0] != base[1]).any()
    for seed, index in ((SEED, 1), (tf.constant([3, 8]), 0)):
        assert (draw(seed=seed, index=index).indices.numpy() != base).any()


@pytest.mark.parametrize("count", [2, 4])
def test_micro_batches_draw_as_the_whole_batch(count: int) -> None:
    positive, negative = _masks(50, 20, 25, batch=4)
    whole = _sample(positive, negative, count=12, positive_fraction=0.5)
    size = 4 // count
    for number in range(count):
        part = slice(number * size, (number + 1) * size)
        with micro_batch(number, count):
            own = _sample(positive[part], negative[part], count=12, positive_fraction=0.5)
        np.testing.assert_array_equal(own.indices, whole.indices[part])


def test_two_replicas_draw_as_one(two_replicas: tf.distribute.Strategy) -> None:
    positive, negative = _masks(50, 20, 25, batch=4)
    whole = _sample(positive, negative, count=12, positive_fraction=0.5)

    def replica() -> tf.Tensor:
        rows = [own_slice(mask) for mask in (positive, negative)]
        return _sample(*rows, count=12, positive_fraction=0.5).indices

    parts = two_replicas.experimental_local_results(tf.function(lambda: two_replicas.run(replica))())
    np.testing.assert_array_equal(np.concatenate(parts), whole.indices)
