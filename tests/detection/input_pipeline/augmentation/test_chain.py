import numpy as np
import tensorflow as tf

from detection.input_pipeline.augmentation.chain import Augmentation, augment
from detection.input_pipeline.sample import Sample
from tests.detection.input_pipeline.augmentation.coordinate_images import assert_equal, coordinate_sample

SAMPLE = coordinate_sample(6, 8, [(1, 2, 4, 7)])
SEED = tf.constant([5, 6])


def _add(sample: Sample, *partners: Sample, seed: tf.Tensor) -> Sample:
    """Marks the image with a draw of its own and with its partners."""
    draw = tf.random.stateless_uniform([], seed, maxval=256, dtype=tf.int32)
    for partner in partners:
        draw += tf.cast(partner.image[0, 0, 2], tf.int32)
    return sample._replace(image=sample.image + tf.cast(draw % 256, tf.uint8))


def _times_three(sample: Sample, *, seed: tf.Tensor) -> Sample:
    return sample._replace(image=sample.image * 3)


def _no_partner(seed: tf.Tensor) -> Sample:
    raise AssertionError("no step wants a partner")


def _run(*steps: Augmentation, seed: tf.Tensor = SEED) -> Sample:
    return augment(SAMPLE, steps, draw_partner=_no_partner, seed=seed)


def test_nothing_to_do_changes_nothing() -> None:
    assert_equal(_run(), SAMPLE)


def test_steps_follow_each_other_and_another_step_changes_no_draw() -> None:
    alone = _run(Augmentation(4, _add)).image.numpy() - SAMPLE.image.numpy()
    assert len(np.unique(alone)) == 1
    before = _run(Augmentation(2, _times_three, 1.0), Augmentation(4, _add)).image.numpy()
    np.testing.assert_array_equal(before, SAMPLE.image.numpy() * 3 + alone)
    after = _run(Augmentation(4, _add), Augmentation(2, _times_three)).image.numpy()
    np.testing.assert_array_equal(after, (SAMPLE.image.numpy() + alone) * 3)
    other = _run(Augmentation(3, _add)).image.numpy() - SAMPLE.image.numpy()
    assert (other != alone).all()


def test_a_step_acts_as_often_as_asked_in_a_graph_with_fields_that_are_not_there() -> None:
    sample = SAMPLE._replace(masks=None, crowds=None)

    @tf.function
    def run(seed: tf.Tensor) -> Sample:
        return augment(sample, [Augmentation(1, _times_three, 0.3)], draw_partner=_no_partner, seed=seed)

    acted = [bool((run(tf.constant([number, 1])).image != sample.image).numpy().any()) for number in range(200)]
    assert 35 < sum(acted) < 85  # 60, six standard deviations and a half either way
    assert run(SEED).masks is None


def test_partners_are_drawn_by_seeds_of_their_own_and_only_where_the_step_acts() -> None:
    drawn: list[tuple[int, ...]] = []

    def draw_partner(seed: tf.Tensor) -> Sample:
        def note(value: np.ndarray) -> np.ndarray:
            drawn.append(tuple(value))
            return value

        number = tf.numpy_function(note, [seed], tf.int32)[1] % 7
        image = tf.fill([3, 3, 3], tf.cast(tf.abs(number), tf.uint8))
        return SAMPLE._replace(image=tf.ensure_shape(image, [3, 3, 3]))

    @tf.function
    def run(seed: tf.Tensor) -> Sample:
        return augment(SAMPLE, [Augmentation(1, _add, 0.5, partners=3)], draw_partner=draw_partner, seed=seed)

    acted = 0
    for number in range(20):
        count = len(drawn)
        changed = bool((run(tf.constant([0, number])).image != SAMPLE.image).numpy().any())
        assert len(drawn) - count in (0, 3)
        assert len(drawn) - count == 3 or not changed
        acted += len(drawn) - count == 3
    assert 3 < acted < 17
    assert len(set(drawn)) == len(drawn)
