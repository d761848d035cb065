"""Denoising queries against those of D-FINE's authors, from the same random numbers."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detection.models.dfine.denoising import Draws, denoising_queries, draw
from detection.models.dfine.matching import Objects
from tests.detection.models.dfine import original

CLASSES, QUERIES, MOST, COPIES = 80, 300, 9, 100


def objects_of(arrays: dict[str, np.ndarray], most: int) -> Objects:
    counts = arrays["target_counts"]
    boxes, classes = np.zeros((len(counts), most, 4), np.float32), np.zeros((len(counts), most), np.int32)
    for image, count in enumerate(counts):
        boxes[image, :count] = arrays[f"target_boxes_{image}"]
        classes[image, :count] = arrays[f"target_labels_{image}"]
    valid = np.arange(most) < counts[:, np.newaxis]
    return Objects(tf.constant(boxes), tf.constant(classes), tf.constant(valid))


def draws_of(arrays: dict[str, np.ndarray], slots: int) -> Draws:
    """Those of the original, which has no unused slots, and any numbers for the others."""
    names = ("flip_uniform", "new_label", "sign", "part_uniform")
    values = [np.asarray(arrays[f"dn/draw_{name}"]) for name in names]
    flips, classes, signs, parts = (
        np.concatenate([value, np.ones([len(value), slots - value.shape[1], *value.shape[2:]], value.dtype)], axis=1)
        for value in values
    )
    return Draws(*map(tf.constant, (flips, classes.astype(np.int32), 2.0 * signs.astype(np.float32) - 1.0, parts)))


@pytest.mark.parametrize("name", ["n256_train", "n192x320_train", "s256_silu_train"])
def test_queries_and_masks_equal_the_originals(name: str, oracle_dir: Path) -> None:
    _, arrays, _ = original.read_case(oracle_dir / "dfine", name)
    slots = 2 * COPIES
    count = arrays["dn/classes"].shape[1]
    assert slots >= count
    objects = objects_of(arrays, MOST)
    most = tf.reduce_max(objects.counts)
    found = denoising_queries(
        objects, draws_of(arrays, slots), copies=COPIES, most=most, num_classes=CLASSES, num_queries=QUERIES
    )
    assert int(found.groups) == arrays["dn/groups"]
    np.testing.assert_array_equal(found.used, np.arange(slots) < count)
    np.testing.assert_array_equal(found.classes[:, :count], arrays["dn/classes"])
    np.testing.assert_allclose(found.boxes[:, :count], arrays["dn/boxes_unact"], atol=2e-4)
    for image, row in enumerate(found.object_of.numpy()):
        expected = arrays[f"dn/positive_index_{image}"]
        np.testing.assert_array_equal(np.flatnonzero(row >= 0), expected)
        np.testing.assert_array_equal(row[expected], expected % int(most))
    kept = np.r_[:count, slots : slots + QUERIES]
    np.testing.assert_array_equal(found.blocked.numpy()[np.ix_(kept, kept)], arrays["dn/attention_mask"])
    # An unused slot is a key of itself alone, and has one.
    unused = np.arange(count, slots)
    seen = ~found.blocked.numpy()[:, unused]
    assert seen.sum() == len(unused)
    assert seen[unused, np.arange(len(unused))].all()


def test_no_object_in_the_batch_uses_no_slot() -> None:
    objects = Objects(tf.zeros([2, 4, 4]), tf.zeros([2, 4], tf.int32), tf.zeros([2, 4], tf.bool))
    draws = draw(tf.constant([1, 2]), images=2, slots=2 * COPIES, num_classes=3)
    most = tf.constant(0)
    found = denoising_queries(objects, draws, copies=COPIES, most=most, num_classes=3, num_queries=5)
    assert not found.used.numpy().any()
    assert (found.object_of.numpy() == -1).all()
    assert np.isfinite(found.boxes).all()
    assert not found.blocked.numpy()[:, -5:].any()


def test_of_many_objects_the_first_are_copied() -> None:
    valid = tf.constant([[True] * 7, [True] * 3 + [False] * 4])
    objects = Objects(tf.random.stateless_uniform([2, 7, 4], [0, 0]), tf.zeros([2, 7], tf.int32), valid)
    draws = draw(tf.constant([1, 2]), images=2, slots=8, num_classes=3)
    found = denoising_queries(objects, draws, copies=4, most=tf.constant(7), num_classes=3, num_queries=5)
    assert int(found.groups) == 1
    assert found.object_of.numpy().tolist() == [[0, 1, 2, 3, -1, -1, -1, -1], [0, 1, 2, -1, -1, -1, -1, -1]]
    assert found.used.numpy().all()
    assert (found.classes.numpy() == 3).tolist() == [[False] * 8, [False, False, False, True] * 2]


def test_draws_are_uniform_and_depend_on_the_seed() -> None:
    draws, others = (draw(tf.constant([seed, 0]), images=50, slots=200, num_classes=4) for seed in (1, 2))
    assert set(np.unique(draws.signs)) == {-1.0, 1.0}
    np.testing.assert_allclose([np.mean(draws.flips), np.mean(draws.parts)], 0.5, atol=0.02)
    np.testing.assert_allclose(np.bincount(np.ravel(draws.classes)) / 10_000, 0.25, atol=0.02)
    for one, other in zip(draws, others, strict=True):
        assert (np.asarray(one) != np.asarray(other)).any()
