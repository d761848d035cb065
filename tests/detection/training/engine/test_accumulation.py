"""An update from several micro-batches equals that of the whole batch."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from detection.input_pipeline.training_batches import Batch
from detection.training.engine.loop import LoopReport
from detection.training.engine.state import TrainState
from detection.types import Labels
from tests.detection.training.tiny_loop import Values, new_loop, restarted_loop

pytestmark = pytest.mark.slow
WHOLE = ("train.batch_size=8",)
IN_FOUR = ("train.batch_size=2", "train.accumulate_steps=4")
IN_TWO = ("train.batch_size=4", "train.accumulate_steps=2")
EAGER = "train.run_eagerly=true"
# Statistics of a micro-batch are not those of the whole batch.
FROZEN = "train.freeze_batch_norm=statistics"
KEYS = (
    "model.overrides.positives_momentum=0.75",
    "train.schedule.warmup_steps=0",
    "train.schedule.learning_rate=0.5",
    "train.optimizer.weight_decay=0.01",
    "train.clip.global_norm=0.05",
)


class Run(NamedTuple):
    """Results of a training of the tiny detector."""

    values: Values
    report: LoopReport
    state: TrainState


def _batch(number: int, *, bad: bool = False) -> Batch:
    """Eight images of which the first two have no object and the last two the most."""
    random = np.random.default_rng(number)
    corners = random.uniform(0, 16, (8, 5, 2))
    if bad:
        corners[6, 0, 0] = math.nan
    labels = Labels(
        boxes=tf.constant(np.concatenate([corners, corners + 8], -1), tf.float32),
        classes=tf.constant(random.integers(0, 3, (8, 5)), tf.int32),
        valid=tf.constant(np.arange(5) < np.array([0, 0, 1, 2, 1, 3, 5, 5])[:, None]),
    )
    return Batch(tf.constant(random.normal(size=(8, 32, 32, 3)), tf.float32), labels, tf.range(8))


def _for_replicas(batch: Batch, replicas: int, micro_batches: int) -> list[Batch]:
    """Deals the images of a step to the replicas: each micro-batch holds successive images."""
    order = np.arange(8).reshape(micro_batches, replicas, -1).transpose(1, 0, 2).reshape(replicas, -1)
    return [
        tf.nest.map_structure(lambda value, rows=rows: None if value is None else tf.gather(value, rows), batch)
        for rows in order
    ]


def _run(
    *assignments: str, steps: Sequence[Batch] | None = None, strategy: tf.distribute.Strategy | None = None
) -> Run:
    tiny = restarted_loop(*KEYS, *assignments, strategy=strategy)
    strategy = tiny.strategy
    batches = [_batch(number) for number in range(3)] if steps is None else steps
    parts = [
        part
        for batch in batches
        for part in _for_replicas(batch, strategy.num_replicas_in_sync, tiny.config.train.accumulate_steps)
    ]
    flat = [(part.images, *part.labels[:3], part.truncated) for part in parts]
    data = tf.data.Dataset.from_tensor_slices(tuple(tf.stack(column) for column in zip(*flat, strict=True)))
    data = data.map(lambda images, *rest: Batch(images, Labels(*rest[:3]), rest[3]))
    iterator = iter(strategy.distribute_datasets_from_function(lambda context: data))
    report = tiny.loop(iterator, len(batches))
    return Run(tiny.values(), report, tiny.state)


def _assert_close(left: Run, right: Run, atol: float = 1e-6) -> None:
    assert left.values.keys() == right.values.keys()
    for name, value in left.values.items():
        np.testing.assert_allclose(value, right.values[name], rtol=0, atol=atol, err_msg=name)
    assert left.report.last.keys() == right.report.last.keys()
    for name, scalar in right.report.last.items():
        assert left.report.last[name] == pytest.approx(scalar, rel=1e-5), name


@pytest.fixture(scope="module")
def whole() -> Run:
    return _run(*WHOLE, FROZEN)


@pytest.mark.parametrize("keys", [IN_FOUR, (*IN_FOUR, EAGER), (*IN_TWO, "train.jit_compile=true")])
def test_micro_batches_update_as_the_whole_batch_does(whole: Run, keys: Sequence[str]) -> None:
    """With momentum, L2 loss, clipping, EMA, drop-connect, scaled rates and positives that differ by micro-batch."""
    run = _run(*keys, FROZEN)
    _assert_close(run, whole)
    assert run.report.sums["instances_cut_off"] == 3 * sum(range(8))


def test_batch_norm_of_two_replicas_is_that_of_one(two_replicas: tf.distribute.Strategy) -> None:
    """A micro-batch is normalised by its own statistics, over all replicas."""
    _assert_close(_run(*IN_TWO, strategy=two_replicas), _run(*IN_TWO), atol=2e-6)


def test_moving_statistics_take_the_mean_over_micro_batches() -> None:
    """Those of the first layer, whose inputs are the same for any division; its variances have Bessel's correction."""
    batch = _batch(0)
    run = _run(*IN_TWO, steps=[batch])
    fresh = new_loop(*KEYS, *IN_TWO).state.model
    inputs = fresh.stem(batch.images).numpy().reshape(2, -1, fresh.stem_norm.gamma.shape[0])
    norm = run.state.model.stem_norm
    means, variances = inputs.mean(axis=1).mean(axis=0), inputs.var(axis=1, ddof=1).mean(axis=0)
    np.testing.assert_allclose(norm.moving_mean.numpy(), 0.01 * means, atol=1e-6)
    np.testing.assert_allclose(norm.moving_variance.numpy(), 0.99 + 0.01 * variances, atol=1e-6)


def test_a_micro_batch_that_is_not_finite_changes_nothing() -> None:
    batches = [_batch(0), _batch(1, bad=True), _batch(2)]
    run = _run(*IN_FOUR, EAGER, "train.nonfinite.policy=skip", steps=batches)
    assert (run.report.steps, run.report.skipped, run.report.bad_step) == (2, 1, 1)
    assert run.state.step.numpy() == 3
    assert all(np.isfinite(value).all() for value in run.values.values())


def test_gradients_that_overflow_under_a_loss_scale_halve_it() -> None:
    run = _run(*IN_FOUR, EAGER, "train.precision=mixed_float16", "train.loss_scale_initial=1e38", steps=[_batch(0)])
    assert (run.report.steps, run.report.halted) == (1, False)
    assert run.report.last["skipped_steps"] == 1.0
    assert run.state.loss_scale is not None
    assert float(run.state.loss_scale.scale) == pytest.approx(0.5e38)
