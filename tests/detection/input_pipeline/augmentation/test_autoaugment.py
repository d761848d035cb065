"""Which operations are chosen, how often and in which order; and that it fits the input pipeline."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from detection.input_pipeline.augmentation import autoaugment as module
from detection.input_pipeline.augmentation.autoaugment import (
    POLICIES,
    RANDAUGMENT_OPERATIONS,
    Policy,
    Step,
    autoaugment,
    randaugment,
)
from detection.input_pipeline.augmentation.autoaugment_operations import OPERATIONS, Draw, Operation
from detection.input_pipeline.sample import Sample
from tests.detection.input_pipeline.augmentation.coordinate_images import assert_equal, coordinate_sample

BLACK = Sample(tf.zeros([1, 1, 3], tf.uint8), tf.zeros([0, 4]), tf.zeros([0], tf.int32))
WHOLE, PER_BOX = "Equalize", "Equalize_Only_BBoxes"


def _recorder(per_box: bool) -> Operation:
    """Doubles red and adds the argument, writes down the probability (in %) in green, a draw in blue."""

    def run(sample: Sample, draw: Draw) -> Sample:
        red, green, blue = tf.unstack(tf.cast(sample.image, tf.float32), axis=-1)
        number = tf.random.stateless_uniform([], draw.seed, maxval=256, dtype=tf.int32)
        pixels = [red * 2 + draw.argument, 0 * green + 100 * draw.probability, 0 * blue + tf.cast(number, tf.float32)]
        return sample._replace(image=tf.cast(tf.round(tf.stack(pixels, axis=-1)), tf.uint8))

    return Operation(run, lambda level: level, per_box)


@pytest.fixture(name="_recorders")
def _with_recorders(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, operation in OPERATIONS.items():
        monkeypatch.setitem(module.OPERATIONS, name, _recorder(operation.per_box))


def _pixels(augment: Callable[[tf.Tensor], Sample], count: int) -> np.ndarray:
    """Int [count, 3]: the pixel after each of `count` seeds."""
    seeds = tf.data.Dataset.range(count).map(lambda number: tf.stack([7, tf.cast(number, tf.int32)]))
    images = seeds.map(lambda seed: augment(seed).image[0, 0]).batch(count)
    return next(iter(images)).numpy().astype(int)


def _assert_frequency(draws: np.ndarray, expected: float) -> None:
    assert abs(draws.mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / draws.size)


@pytest.mark.usefixtures("_recorders")
def test_each_sub_policy_is_as_likely_and_each_step_has_its_probability() -> None:
    policy: Policy = (
        (Step("Color", 1.0, 1), Step("Sharpness", 0.25, 2)),
        (Step("Sharpness", 0.5, 5), Step("Color", 1.0, 7)),
        (Step("Color", 0.0, 50), Step("Contrast", 1.0, 11)),
        (Step("Cutout", 1.0, 13),),
    )
    red = _pixels(lambda seed: autoaugment(BLACK, policy=policy, seed=seed), 2000)[:, 0]
    # A step makes 2 * red + level, so 5 then 7 is 17, and 7 then 5 would be 19.
    expected = {1: 0.75 / 4, 4: 0.25 / 4, 17: 0.5 / 4, 7: 0.5 / 4, 11: 0.25, 13: 0.25}
    assert set(red) == set(expected)
    for value, fraction in expected.items():
        _assert_frequency(red == value, fraction)


@pytest.mark.usefixtures("_recorders")
def test_operations_on_single_boxes_always_run_and_get_the_probability() -> None:
    policy: Policy = ((Step(PER_BOX, 0.3, 3),), (Step(WHOLE, 0.6, 5),))
    pixels = _pixels(lambda seed: autoaugment(BLACK, policy=policy, seed=seed), 1000)
    _assert_frequency(pixels[:, 0] == 3, 0.5)
    _assert_frequency(pixels[:, 0] == 5, 0.3)
    assert set(pixels[pixels[:, 0] == 3][:, 1]) == {30}
    assert set(pixels[pixels[:, 0] == 5][:, 1]) == {60}


@pytest.mark.usefixtures("_recorders")
def test_the_draws_of_an_operation_do_not_hang_on_the_choice() -> None:
    """Among the images that a step gated at 0.2 acts on, the operation's own draw takes all values."""
    policy: Policy = ((Step("Color", 0.2, 1),), (Step("Sharpness", 1.0, 2),))
    pixels = _pixels(lambda seed: autoaugment(BLACK, policy=policy, seed=seed), 3000)
    for level in (1, 2):
        draws = pixels[pixels[:, 0] == level][:, 2]
        assert abs(draws.mean() - 127.5) < 4 * 73.9 / np.sqrt(draws.size)
        assert np.abs(np.histogram(draws, 4, (0, 256))[0] / draws.size - 0.25).max() < 0.08


@pytest.mark.usefixtures("_recorders")
def test_randaugment_draws_each_of_its_operations_in_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(RANDAUGMENT_OPERATIONS):
        recorder = _recorder(per_box=False)
        monkeypatch.setitem(module.OPERATIONS, name, recorder._replace(argument=lambda _, number=number: number))
    one = _pixels(lambda seed: randaugment(BLACK, seed=seed), 2000)[:, 0]
    two = _pixels(lambda seed: randaugment(BLACK, layers=2, seed=seed), 2000)[:, 0]
    for number in range(10):
        _assert_frequency(one == number, 0.1)
    for number in range(28):
        ways = sum(2 * first + second == number for first in range(10) for second in range(10))
        _assert_frequency(two == number, ways / 100)


@pytest.mark.usefixtures("_recorders")
def test_randaugment_hands_its_magnitude_on() -> None:
    assert set(_pixels(lambda seed: randaugment(BLACK, seed=seed), 20)[:, 0]) == {15}
    assert set(_pixels(lambda seed: randaugment(BLACK, magnitude=4.0, seed=seed), 20)[:, 0]) == {4}


def _sample() -> Sample:
    return coordinate_sample(
        160, 240, [(60, 90, 100, 150), (8, 134, 90, 208), (80, 4, 147, 125)], crowds=[False, True, False]
    )


def _augmentations() -> Iterator[tuple[str, Callable[[Sample, tf.Tensor], Sample]]]:
    for name in POLICIES:
        yield name, lambda sample, seed, name=name: autoaugment(sample, policy=POLICIES[name], seed=seed)
    yield "randaugment", lambda sample, seed: randaugment(sample, magnitude=6.0, seed=seed)


@pytest.mark.parametrize(
    "augment",
    [
        pytest.param(each, id=name, marks=pytest.mark.extended if name in ("v1", "v2", "v3") else [])
        for name, each in _augmentations()
    ],
)
def test_policies_run_without_state_and_give_valid_samples(augment: Callable[[Sample, tf.Tensor], Sample]) -> None:
    sample = _sample()
    sample = sample._replace(weights=tf.ones(tf.shape(sample.classes)), maskless=sample.crowds)
    augmented = tf.function(lambda seed: augment(sample, seed)).get_concrete_function(tf.TensorSpec([2], tf.int32))
    assert not _stateful_ops(augmented.graph)
    assert augmented.structured_outputs.image.shape[2] == 3
    assert augmented.structured_outputs.boxes_yxyx.shape.as_list() == [None, 4]
    different = set()
    for number in range(12):
        result = augmented(tf.constant([number, 1]))
        assert_equal(result, augmented(tf.constant([number, 1])))
        different.add(result.image.numpy().tobytes())
        boxes, count = result.boxes_yxyx.numpy(), len(result.boxes_yxyx)
        assert ((boxes >= 0) & (boxes <= 1)).all()
        assert (boxes[:, 2:] > boxes[:, :2]).all()
        assert result.image.shape == (160, 240, 3)
        shapes = [tuple(each.shape) for each in result[2:]]
        assert shapes == [(count,), (count, 160, 240), (count, 2, 3), (count,), (count,), (count,)]
    # The test policy knows two: to the left and to the right.
    assert len(different) >= 2


def _stateful_ops(graph: tf.Graph) -> set[str]:
    """Kinds of ops that op determinism or a resumed run could not bear in an input pipeline."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    known = {node.op: op_def_registry.get(node.op) for node in nodes}
    return {name for name, definition in known.items() if definition is not None and definition.is_stateful}


def test_samples_without_masks_and_keypoints_pass_a_data_set() -> None:
    sample = Sample(*_sample()[:3])
    policy: Policy = ((Step("ShearX_BBox", 1.0, 5), Step("TranslateY_Only_BBoxes", 1.0, 2)),)
    seeds = tf.data.Dataset.range(3).map(lambda number: tf.stack([0, tf.cast(number, tf.int32)]))
    results = list(seeds.map(lambda seed: autoaugment(sample, policy=policy, seed=seed)))
    assert len(results) == 3
    for number, result in enumerate(results):
        assert_equal(result, autoaugment(sample, policy=policy, seed=tf.constant([0, number])))


def test_the_policies() -> None:
    assert {name: len(policy) for name, policy in POLICIES.items()} == {
        "v0": 5,
        "v1": 20,
        "v2": 15,
        "v3": 15,
        "test": 1,
    }
    assert POLICIES["v1"][:5] == POLICIES["v0"]
    steps = [step for policy in POLICIES.values() for chain in policy for step in chain]
    assert {step.operation for step in steps} <= set(OPERATIONS)
    assert all(0 <= step.probability <= 1 and 0 <= step.level <= 10 for step in steps)
    assert POLICIES["v0"][4] == (Step("Rotate_BBox", 0.6, 10), Step("Color", 1.0, 6))
    assert POLICIES["v2"][10][1:] == (Step("BBox_Cutout", 1.0, 4), Step("Cutout", 0.2, 8))
