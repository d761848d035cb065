"""The configuration's update rule in training steps of a tiny detector."""

import contextlib
import functools
import json
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from detection.input_pipeline.training_batches import Batch
from detection.models.layers.batch_norm import batch_norms
from detection.models.registry import detector_from_config
from detection.training.build_step import l2_from_config, state_from_config
from detection.training.engine.gradients import GradientSummaries, transform_gradients
from detection.training.engine.state import TrainState
from detection.training.engine.step import NanGuard, StepReport, TrainStep
from detection.types import Labels
from schemas.config.config_io import load_config
from schemas.errors import ConfigError
from tests.detection.families import smallest_detectors
from tests.detection.models.harness import DETECTORS
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_loop import Values, values
from tests.detection.training.tiny_run import AUTOML

Run = Callable[..., StepReport]
EACH_FAMILY = [
    pytest.param(name, marks=[] if name in ("efficientdet-nano", "mask-rcnn-nano") else pytest.mark.extended)
    for name in smallest_detectors()
]
CONSTANT = ("schedule.name=constant", "schedule.warmup_steps=0", "schedule.reference_batch_size=null")


@pytest.fixture(scope="module", autouse=True)
def _tiny_is_known() -> None:
    tiny_detector.register()


def _training(
    *assignments: str, strategy: tf.distribute.Strategy | None = None, momentum: float = 0.0, traced: bool = False
) -> tuple[TrainState, Run]:
    """A state and the function that takes a step on a batch, the same each time; traced, if there are many steps."""
    strategy = strategy or tf.distribute.get_strategy()
    model = ("model.name=tiny", f"model.overrides.positives_momentum={momentum}")
    config = load_config(None, [AUTOML, *model, *(f"train.{assignment}" for assignment in assignments)])
    state = state_from_config(config, [{}] * 3, strategy=strategy)
    with strategy.scope():
        guard = NanGuard(skips=0)
    step = TrainStep(
        state,
        guard,
        seed=0,
        l2=l2_from_config(config.train, state.trainable),
        transform_gradients=functools.partial(transform_gradients, **config.train.clip.model_dump()),
        gradient_summaries=GradientSummaries(norms=False, histograms_every=0),
    )

    def on_replicas(batch: Batch) -> StepReport:
        return strategy.run(step, args=(batch,))

    called = tf.function(on_replicas, autograph=False) if traced else on_replicas

    def run(factor: float = 1.0) -> StepReport:
        return tf.nest.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], called(_batch(factor))
        )

    return state, run


def test_regularizers_replace_the_weight_decay_of_the_kernels_that_they_match_first() -> None:
    parts = "[{match: class_net/, l1: 0.5}, {match: '.*predict', l2: 0.25}]"
    optimizer = "optimizer={name: sgd, weight_decay: 0.125, weight_decay_exclude: [efficientnet], regularizers: %s}"
    config = load_config(None, [AUTOML, "model.name=retinanet-nano", f"train.{optimizer % parts}"]).train
    state = state_from_config(
        load_config(None, [AUTOML, "model.name=retinanet-nano"]), [{}] * 3, strategy=tf.distribute.get_strategy()
    )
    loss = l2_from_config(config, state.trainable)
    assert loss is not None
    expected = 0.0
    for variable in state.trainable:
        path, value = variable.path, np.array(variable, np.float64)
        if not path.endswith("kernel") or path.startswith("efficientnet"):
            continue
        if path.startswith("class_net/"):
            expected += 0.5 * np.abs(value).sum()
        else:
            expected += (0.25 if "predict" in path else 0.125) * np.square(value).sum() / 2.0
    assert float(loss()) == pytest.approx(expected, rel=1e-4)
    decoupled = config.model_copy(update={"optimizer": config.optimizer.model_copy(update={"name": "adamw"})})
    only_parts = l2_from_config(decoupled, state.trainable)
    assert only_parts is not None
    assert 0.0 < float(only_parts()) < float(loss())


@pytest.mark.parametrize("name", EACH_FAMILY)
def test_initial_weights_are_those_of_keras_with_the_same_seed(name: str, two_replicas: tf.distribute.Strategy) -> None:
    """Others' scripts that call `keras.utils.set_random_seed` and build the same network get the same weights.

    Each replica has them, whatever other threads draw, and the global generators stay as they are.
    """
    overrides = f"model.overrides={json.dumps(DETECTORS[name])}"
    config = load_config(None, [AUTOML, f"model.name={name}", overrides, "train.seed=5"])
    keras.utils.set_random_seed(5)
    expected = detector_from_config(config.model, [{}] * 3, precision="float32")
    before = random.getstate()
    states = {two_replicas: state_from_config(config, [{}] * 3, strategy=two_replicas)}
    assert random.getstate() == before
    with _drawing():
        alone = tf.distribute.get_strategy()
        states[alone] = state_from_config(config, [{}] * 3, strategy=alone)
    for strategy, state in states.items():
        for ours, variable in zip(state.model.variables, expected.variables, strict=True):
            replicas = strategy.experimental_local_results(ours.value)
            assert len(replicas) == strategy.num_replicas_in_sync
            for replica in replicas:
                np.testing.assert_array_equal(replica.numpy(), variable.numpy())


@contextlib.contextmanager
def _drawing() -> Iterator[None]:
    """Another thread draws random numbers during the block, as the client of Cloud Storage does."""
    drawn, ended = threading.Event(), threading.Event()

    def draw() -> None:
        while not ended.is_set():
            random.randrange(2**60)
            random.randint(0, 1000)
            drawn.set()

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        assert drawn.wait(60)
        yield
    finally:
        ended.set()
        thread.join()


def _batch(factor: float) -> Batch:
    boxes = tf.constant([[[4.0, 4.0, 20.0, 28.0]]] * 4)
    labels = Labels(boxes=boxes, classes=tf.constant([[0], [1], [2], [1]]), valid=tf.ones([4, 1], tf.bool))
    images = tf.random.stateless_normal([4, 32, 32, 3], [1, 2]) * factor
    return Batch(images, labels, tf.zeros([4], tf.int32))


def _changed(before: Values, after: Values) -> set[str]:
    return {name for name, value in before.items() if (value != after[name]).any()}


@pytest.mark.parametrize(
    ("assignments", "l2"),
    [
        (["optimizer.name=rmsprop", "optimizer.centered=true", "schedule.name=polynomial"], True),
        (["optimizer.name=adam", "optimizer.weight_decay=0", "schedule.hold_steps=5", "clip.value=0.1"], False),
        (["optimizer.name=adamw", "ema.enabled=false", "clip.bias_multiplier=2"], False),
        (["optimizer.nesterov=true", "clip.global_norm=null", "clip.norm_ratio=0.02"], True),
        (["optimizer.name=adadelta", "optimizer.rho=0.5", "schedule.total_steps=5000"], True),
        (["optimizer.name=adagrad", "clip.bias_multiplier=2", "clip.bias_variables=bias"], True),
        (["optimizer.name=lars", "optimizer.legacy_momentum=true", "precision=mixed_float16", "loss_scale=8"], True),
    ],
)
def test_every_kind_of_rule_trains(assignments: list[str], l2: bool) -> None:
    state, run = _training(*assignments)
    before = values(state)
    report = run()
    assert bool(report.finite)
    assert ("l2_loss" in report.scalars) == l2
    assert {variable.path for variable in state.model.variables} <= _changed(before, values(state))


def test_the_rate_goes_by_the_runs_step() -> None:
    state, run = _training("schedule.warmup_steps=10", "schedule.reference_batch_size=null", "steps=20")
    rates = [float(run().scalars["learning_rate"]) for _ in range(3)]
    np.testing.assert_allclose(rates, [0.008, 0.0152, 0.0224], rtol=1e-6)
    state.step.assign(10)
    assert float(run().scalars["learning_rate"]) == np.float32(0.08)


@pytest.mark.parametrize("name", ["sgd", "rmsprop", "adam", "adamw", "adadelta", "adagrad", "lars"])
def test_a_factor_of_the_learning_rate_is_one_of_the_step(name: str) -> None:
    """The first match counts; AdamW's decay has the factor, too."""
    rule = (f"optimizer.name={name}", "schedule.learning_rate=0.5", *CONSTANT)
    factors = (
        "optimizer.learning_rate_factors=[{match: tiny/block/kernel, factor: 0.25}, {match: tiny/block/, factor: 4}]"
    )
    steps = []
    for assignments in (rule, (*rule, factors)):
        state, _ = _training(*assignments)
        before = {variable.path: variable.numpy() for variable in state.trainable}
        gradients = [tf.random.stateless_normal(variable.shape, [3, 4]) for variable in state.trainable]
        state.optimizer.apply(gradients, list(state.trainable))
        steps.append({variable.path: variable.numpy() - before[variable.path] for variable in state.trainable})
    expected = {"tiny/block/kernel": 0.25, "tiny/block/bias": 4.0}
    assert expected.keys() < steps[0].keys()
    for path, step in steps[0].items():
        assert np.abs(step).max() > 0
        np.testing.assert_allclose(steps[1][path], expected.get(path, 1.0) * step, rtol=1e-4, atol=1e-6, err_msg=path)


def test_a_factor_that_matches_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learning_rate_factors.*'backbone/'"):
        _training("optimizer.learning_rate_factors=[{match: backbone/, factor: 0.1}]")


def test_lars_adapts_the_kernels_that_are_not_excluded() -> None:
    """A plain step is rate * gradient; an adapted one has the norm rate * coefficient * |w|."""
    state, _ = _training(
        "optimizer={name: lars, momentum: 0, lars_coefficient: 0.01, lars_weight_decay: 0, lars_exclude: ['tem/']}",
        "pattern_match=anywhere",
        "schedule.learning_rate=0.5",
        *CONSTANT,
    )
    before = {variable.path: variable.numpy() for variable in state.trainable}
    state.optimizer.apply([tf.ones(variable.shape) for variable in state.trainable], list(state.trainable))
    for variable in state.trainable:
        step = before[variable.path] - variable.numpy()
        expected = 0.5
        if variable.path in ("tiny/block/kernel", "tiny/head/kernel"):
            expected *= 0.01 * np.linalg.norm(before[variable.path]) / np.sqrt(step.size)
        np.testing.assert_allclose(step, np.full_like(step, expected), rtol=1e-3, err_msg=variable.path)


def test_patterns_of_the_optimizer_are_logged_once_with_their_counts(caplog: pytest.LogCaptureFixture) -> None:
    keys = ("optimizer.name=lars", "optimizer.lars_exclude=[tiny/head]", "optimizer.weight_decay_exclude=[.*block]")
    with caplog.at_level("INFO", logger="cocoflow.trainer"):
        _training(*keys)
    assert [record.getMessage() for record in caplog.records] == [
        "train.optimizer.lars_exclude: 'tiny/head' matches 1 of 3 variables",
        "train.optimizer.weight_decay_exclude: '.*block' matches 1 of 3 variables",
    ]


@pytest.mark.parametrize(
    ("keys", "warnings"),
    [(["total_steps=500"], 1), (["total_steps=500", "end_learning_rate=0.001"], 0), (["total_steps=5000"], 0)],
)
def test_a_schedule_that_ends_at_zero_before_the_run_does_is_warned_of(
    keys: list[str], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    _training("steps=1000", *(f"schedule.{key}" for key in keys))
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(messages) == warnings
    assert all("total_steps = 500 is less than train.steps = 1000: the learning rate" in text for text in messages)


def test_what_is_frozen_neither_moves_nor_is_averaged_nor_decays() -> None:
    state, run = _training("freeze=[tiny/stem]", "optimizer.weight_decay=0.1")
    before = values(state)
    report = run()
    fixed = {variable.path for variable in state.model.variables if variable.path.startswith("tiny/stem")}
    assert len(fixed) == 6
    assert state.ema is not None
    assert not fixed & set(state.ema.weights)
    assert not fixed & _changed(before, values(state))
    kernels = [before[path] for path in ("tiny/block/kernel", "tiny/head/kernel")]
    np.testing.assert_allclose(
        report.scalars["l2_loss"], 0.1 * sum((kernel**2).sum() / 2 for kernel in kernels), rtol=1e-5
    )


@pytest.mark.parametrize(("batch_norm", "moves"), [("statistics", {"gamma", "beta"}), ("all", set())])
def test_batch_norm_is_fixed_in_part_or_whole(batch_norm: str, moves: set[str]) -> None:
    state, run = _training(f"freeze_batch_norm={batch_norm}")
    before = values(state)
    run()
    changed = _changed(before, values(state))
    assert {name.split("/")[-1] for name in changed if name.startswith(("tiny/stem_norm", "tiny/block_norm"))} == moves
    assert "tiny/stem/kernel" in changed


def test_batch_norm_is_synchronised_unless_switched_off() -> None:
    for assignments, expected in (([], True), (["sync_batch_norm=false"], False)):
        state, _ = _training(*assignments)
        assert [layer.synchronized for layer in batch_norms(state.model)] == [expected] * 2


def test_ema_weights_follow_what_changes_and_statistics_on_request() -> None:
    for assignments, statistics in ((["ema.include_batch_norm=false"], 0), ([], 4), (["freeze=[tiny/stem_norm]"], 2)):
        state, _ = _training(*assignments)
        assert state.ema is not None
        assert sum("moving_" in name for name in state.ema.weights) == statistics
        assert {variable.path for variable in state.trainable} <= set(state.ema.weights)


@pytest.fixture(params=["one", "two"])
def strategy(request: pytest.FixtureRequest) -> tf.distribute.Strategy:
    if request.param == "one":
        return tf.distribute.OneDeviceStrategy("/cpu:0")
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def test_the_norm_that_is_told_is_the_global_batchs_before_any_rule(strategy: tf.distribute.Strategy) -> None:
    """Plain descent at a rate of 0.5 moves the weights by half of the gradient."""
    plain = ("optimizer.momentum=0", "optimizer.weight_decay=0", "schedule.learning_rate=0.5", *CONSTANT)
    state, run = _training(*plain, "clip={per_variable_norm: null, global_norm: null}", strategy=strategy)
    before = [variable.numpy() for variable in state.trainable]
    told = float(run().scalars["gradient_norm"])
    moved = [variable.numpy() - value for variable, value in zip(state.trainable, before, strict=True)]
    np.testing.assert_allclose(told, 2 * np.sqrt(sum((value**2).sum() for value in moved)), rtol=1e-4)
    _, run = _training(*plain, f"clip={{global_norm: {told / 10}, bias_multiplier: 2}}", strategy=strategy)
    np.testing.assert_allclose(run().scalars["gradient_norm"], told, rtol=1e-6)


def test_an_overflow_under_a_dynamic_scale_is_skipped_counted_and_halves_it(
    strategy: tf.distribute.Strategy, tmp_path: Path
) -> None:
    """float16 ends at 65,504: gradients of a loss scaled by 2 ** 40 overflow, the loss itself does not."""
    precision = ("precision=mixed_float16", f"loss_scale_initial={2.0**40}")
    state, run = _training(*precision, *CONSTANT, strategy=strategy, traced=True)
    assert state.loss_scale is not None
    before = values(state)
    report = run()
    assert bool(report.finite)
    assert not bool(report.halted)
    assert not np.isfinite(report.scalars["gradient_norm"])
    assert [float(report.scalars[name]) for name in ("loss_scale", "skipped_steps")] == [2.0**40, 1.0]
    assert _changed(before, values(state)) == set()
    assert state.step.numpy() == 1
    assert state.loss_scale.scale.numpy() == 2.0**39

    path = state.checkpoint().save(str(tmp_path / "ckpt"))
    again, _ = _training(*precision, *CONSTANT)
    again.checkpoint().restore(path).assert_consumed()
    assert again.loss_scale is not None
    assert [again.loss_scale.scale.numpy(), again.loss_scale.skipped_steps.numpy()] == [2.0**39, 1]

    while float(report.scalars["skipped_steps"]) == state.step.numpy():
        report = run()
    assert 2.0 < float(report.scalars["loss_scale"]) < 2.0**38
    assert np.isfinite(report.scalars["gradient_norm"])
    assert "tiny/stem/kernel" in _changed(before, values(state))

    scale, skipped = state.loss_scale.scale.numpy(), state.loss_scale.skipped_steps.numpy()
    assert not bool(run(float("nan")).finite), "no scale is to blame for a loss that is not finite"
    assert (state.loss_scale.scale.numpy(), state.loss_scale.skipped_steps.numpy()) == (scale, skipped)


def test_an_overflow_under_a_fixed_scale_is_an_error() -> None:
    state, run = _training("precision=mixed_float16", f"loss_scale={2.0**40}", *CONSTANT)
    before = values(state)
    report = run()
    assert not bool(report.finite)
    assert bool(report.halted)
    assert [float(report.scalars[name]) for name in ("loss_scale", "skipped_steps")] == [2.0**40, 0.0]
    assert _changed(before, values(state)) == set()


def test_a_skipped_step_leaves_the_losses_statistics_alone(strategy: tf.distribute.Strategy, tmp_path: Path) -> None:
    """Each replica has four objects; checkpoints of runs without an average hold none."""
    replicas = strategy.num_replicas_in_sync
    number = 4.0 * replicas + 1.0
    state, run = _training(*CONSTANT, strategy=strategy, momentum=0.75)
    run()
    (average,) = state.model.loss_statistics

    def copies() -> list[float]:
        return [float(copy) for copy in strategy.experimental_local_results(average.value)]

    assert copies() == [number] * replicas
    average.assign(number + 8.0)
    run()
    assert copies() == [number + 6.0] * replicas
    before = values(state)
    assert bool(run(float("nan")).halted)
    assert _changed(before, values(state)) == set()

    path = state.checkpoint().save(str(tmp_path / "ckpt"))
    again, _ = _training(*CONSTANT, momentum=0.75)
    again.checkpoint().restore(path).assert_consumed()
    assert [float(variable) for variable in again.model.loss_statistics] == [number + 6.0]
    names = {name.partition("/")[0] for name, _ in tf.train.list_variables(path)}
    assert "losses" in names
    without, _ = _training(*CONSTANT)
    path = without.checkpoint().save(str(tmp_path / "without"))
    assert {name.partition("/")[0] for name, _ in tf.train.list_variables(path)} == names - {"losses"}


def test_initial_weights_follow_from_the_seed() -> None:
    first, again, other = (values(_training(f"seed={seed}")[0]) for seed in (3, 3, 4))
    assert not _changed(first, again)
    assert any("kernel" in path for path in _changed(first, other))
