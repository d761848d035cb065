"""Steps in a loop: what they change, what they do not, and what is told of them."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from detection.input_pipeline.training_batches import Batch
from detection.training.engine import loop as loop_module
from detection.training.engine.gradients import write_histogram
from detection.training.engine.loop import LoopReport
from detection.training.engine.state import TrainState
from detection.types import Labels
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_loop import TinyLoop, Values, assert_equal, new_loop, restarted_loop

SIDE, OBJECTS = 32, 3
KEYS = ("train.batch_size=4", "train.schedule.warmup_steps=0", "train.schedule.learning_rate=0.5")
EAGER = "train.run_eagerly=true"
SKIPPING = "train.nonfinite={policy: skip, max_in_a_row: 2}"


class Run(NamedTuple):
    """A training run made by hand, on a loop that other runs of its configuration take over."""

    tiny: TinyLoop

    def __call__(self, batches: list[Batch]) -> LoopReport:
        return self.tiny.loop(self._iterator(batches), len(batches))

    def windows(self, batches: list[Batch], *, start: int, every: int) -> Iterator[tuple[int, LoopReport]]:
        return self.tiny.loop.windows(self._iterator(batches), start=start, stop=start + len(batches), every=every)

    def values(self) -> Values:
        return self.tiny.values()

    def _iterator(self, batches: list[Batch]) -> Any:
        strategy = self.tiny.strategy
        flat = [(batch.images, *batch.labels[:3], batch.truncated) for batch in batches]
        columns = tuple(tf.concat(column, axis=0) for column in zip(*flat, strict=True))
        slices = tf.data.Dataset.from_tensor_slices(columns).batch(
            4 // strategy.num_replicas_in_sync, drop_remainder=True
        )
        slices = slices.map(lambda images, *rest: Batch(images, Labels(*rest[:3]), rest[3]))
        return iter(strategy.distribute_datasets_from_function(lambda context: slices))


def _run(*assignments: str, strategy: tf.distribute.Strategy | None = None) -> Run:
    return Run(restarted_loop(*KEYS, *assignments, strategy=strategy))


def _batch(number: int, *, bad: bool = False) -> Batch:
    random = np.random.default_rng(number)
    images = random.normal(size=(4, SIDE, SIDE, 3)).astype(np.float32)
    corners = random.uniform(0, 16, (4, OBJECTS, 2))
    if bad:
        # A NaN in the image alone does not reach the loss on CPUs whose ReLU makes zeros of NaN.
        images[1, 5, 5, 0] = corners[1, 0, 0] = math.nan
    labels = Labels(
        boxes=tf.constant(np.concatenate([corners, corners + 8], -1), tf.float32),
        classes=tf.constant(random.integers(0, 3, (4, OBJECTS)), tf.int32),
        valid=tf.fill([4, OBJECTS], True),
    )
    return Batch(tf.constant(images), labels, tf.constant([number, 0, 0, 0]))


@pytest.mark.parametrize("keys", [[], ["train.jit_compile=true"], [EAGER]])
def test_nothing_changes_from_the_first_step_on_that_is_not_finite(keys: list[str]) -> None:
    short = _run(*keys)
    short([_batch(0), _batch(1)])
    expected = short.values()
    whole = _run(*keys)
    fresh = whole.values()
    report = whole([_batch(0), _batch(1), _batch(2, bad=True), _batch(3), _batch(4)])
    assert (report.steps, report.skipped, report.bad_step, report.halted) == (2, 1, 2, True)
    assert not math.isfinite(report.bad["loss"])
    assert math.isfinite(report.sums["loss"])
    assert whole.tiny.state.step.numpy() == 2
    assert_equal(whole.values(), expected)
    assert whole([_batch(5)]).halted
    assert_equal(whole.values(), expected)
    assert any((value != fresh[name]).any() for name, value in whole.values().items())


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_skipped_step_changes_nothing_but_the_number_of_steps(
    replicas: int, two_replicas: tf.distribute.Strategy
) -> None:
    strategy = two_replicas if replicas == 2 else None
    skipping = _run(SKIPPING, strategy=strategy)
    report = skipping([_batch(0), _batch(1, bad=True), _batch(2)])
    assert (report.steps, report.skipped, report.bad_step, report.halted) == (2, 1, 1, False)
    assert skipping.tiny.state.step.numpy() == 3
    found = skipping.values()
    clean = _run(SKIPPING, strategy=strategy)
    clean([_batch(0)])
    clean.tiny.state.step.assign(2)
    clean([_batch(2)])
    assert_equal(found, clean.values())


def test_too_many_skips_in_a_row_end_the_run() -> None:
    run = _run(SKIPPING)
    pattern = [True, True, False, True, True, False, True, True, True, False]
    report = run([_batch(number, bad=bad) for number, bad in enumerate(pattern)])
    assert (report.steps, report.skipped, report.bad_step, report.halted) == (2, 7, 0, True)
    assert run.tiny.state.step.numpy() == 8


def test_a_gradient_that_is_not_finite_counts_although_the_loss_is(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = tiny_detector.TinyDetector.losses

    def with_a_kink(self: Any, outputs: tf.Tensor, labels: Labels, *rest: Any, **more: Any) -> dict[str, tf.Tensor]:
        return losses(self, outputs, labels, *rest, **more) | {"kink": tf.norm(outputs - tf.stop_gradient(outputs))}

    monkeypatch.setattr(tiny_detector.TinyDetector, "losses", with_a_kink)
    run = Run(new_loop(*KEYS, EAGER))
    before = run.values()
    report = run([_batch(0)])
    assert report.halted
    assert math.isfinite(report.bad["loss"])
    assert not math.isfinite(report.bad["gradient_norm"])
    assert_equal(run.values(), before)


def test_an_overflow_that_a_loss_scale_excuses_is_no_error() -> None:
    """The scale is so great that the first gradients overflow; the steps count, and weights stay until one fits."""
    run = _run(EAGER, "train.precision=mixed_float16", "train.loss_scale_initial=1e38")
    before = run.values()
    report = run([_batch(0)])
    assert (report.steps, report.halted) == (1, False)
    assert report.last["skipped_steps"] == 1.0
    assert report.counts["gradient_norm"] == 0.0
    assert report.counts["loss"] == 1.0
    assert_equal(run.values(), before)


def test_scalars_of_a_loop_are_those_of_its_steps() -> None:
    batches = [_batch(number) for number in range(3)]
    together = _run()
    report = together(batches)
    expected = together.values()
    one_by_one = _run()
    reports = [one_by_one([batch]) for batch in batches]
    assert report.steps == 3
    assert set(report.sums) >= {"loss", "class_loss", "box_loss", "l2_loss", "learning_rate", "gradient_norm"}
    for name, total in report.sums.items():
        assert total == pytest.approx(sum(one.last[name] for one in reports), rel=1e-5)
        assert report.counts[name] == 3
    assert report.last == pytest.approx(reports[-1].last, rel=1e-5)
    assert report.sums["instances_cut_off"] == 0 + 1 + 2
    for name, value in one_by_one.values().items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_windows_of_a_call_are_calls_of_their_own() -> None:
    """Windows of three steps from step 1 on, with a step that is not finite, then with one that ends the run."""
    bad = (4, 8, 9, 10)
    batches = [_batch(number, bad=number in bad) for number in range(11)]
    together = _run(SKIPPING)
    together(batches[:1])
    windows = dict(together.windows(batches[1:], start=1, every=3))
    values = together.values()
    apart = _run(SKIPPING)
    apart(batches[:1])
    assert list(windows) == [3, 6, 9, 11]
    expected = [apart(batches[start:stop]) for start, stop in ((1, 3), (3, 6), (6, 9), (9, 11))]
    for window, alone in zip(windows.values(), expected, strict=True):
        assert (window.steps, window.skipped, window.halted) == (alone.steps, alone.skipped, alone.halted)
        assert window.counts == alone.counts
        assert window.bad_step == alone.bad_step
        for name, total in alone.sums.items():
            assert window.sums[name] == pytest.approx(total, rel=1e-6)
        assert window.last == pytest.approx(alone.last, rel=1e-6)
    ends = [report.ended_at for report in windows.values()]
    assert ends == sorted(ends)
    assert all(report.seconds >= report.waited >= 0.0 for report in windows.values())
    assert [report.bad_step for report in windows.values()] == [None, 4, 8, 9]
    assert [report.halted for report in windows.values()] == [False, False, False, True]
    assert_equal(values, apart.values())


@pytest.mark.parametrize(
    "kind", ["xla", *(pytest.param(kind, marks=pytest.mark.extended) for kind in ("plain", "two replicas"))]
)
def test_norms_and_histograms_are_those_of_the_gradients_before_clipping(
    kind: str, two_replicas: tf.distribute.Strategy, tmp_path: Path
) -> None:
    keys = ["train.clip.global_norm=1e-3", "train.schedule.learning_rate=1e-3"]
    keys += ["train.jit_compile=true"] if kind == "xla" else []
    strategy = two_replicas if kind == "two replicas" else None
    told = ["train.summaries.gradient_norms=true", "train.summaries.gradient_histograms_every=2"]
    run, silent = _run(*keys, *told, strategy=strategy), _run(*keys, strategy=strategy)
    batches = [_batch(number) for number in range(2)]
    (report,) = dict(run.windows(batches, start=0, every=2)).values()
    one_replica = silent if strategy is None else _run(*keys)
    gradients = []
    for number, batch in enumerate(batches):
        gradients.append(_gradients(one_replica.tiny.state, batch, number))
        one_replica([batch])
    if strategy is not None:
        silent(batches)
    assert_equal(run.values(), silent.values())

    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        for name, values in report.histograms.items():
            write_histogram(name, values, step=2)
    events = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0})
    events.Reload()
    assert events.Tags()["tensors"] == [f"gradient/{path}" for path in sorted(gradients[0])]
    for path in gradients[0]:
        norms = [np.linalg.norm(gradient[path]) for gradient in gradients]
        assert report.sums[f"gradient_norm/{path}"] == pytest.approx(sum(norms), rel=1e-3, abs=1e-6), path
        if path.endswith(("stem/bias", "block/bias")):
            continue  # batch norm makes it 0 but for rounding
        (event,) = events.Tensors(f"gradient/{path}")
        left, right, counts = tf.make_ndarray(event.tensor_proto).T
        expected, edges = np.histogram(gradients[1][path], bins=30)
        np.testing.assert_allclose([left[0], right[-1]], edges[[0, -1]], rtol=1e-3, atol=1e-7)
        np.testing.assert_allclose(left[1:], right[:-1])
        assert counts.sum() == expected.sum() == gradients[1][path].size
        # A value at an edge may fall to either side.
        assert np.abs(np.cumsum(counts) - np.cumsum(expected)).max() <= max(1, 0.01 * expected.sum())


def _gradients(state: TrainState, batch: Batch, number: int) -> dict[str, npt.NDArray[Any]]:
    """Gradients by the variable's path, of a step written out again; without its effects on batch norm."""
    seed = tf.random.fold_in(tf.constant([0, 0x5EED], tf.int32), number)
    kernels = [variable for variable in state.trainable if variable.path.endswith("kernel")]
    with tf.GradientTape() as tape, keras.StatelessScope(initialize_variables=False):
        outputs = state.model(batch.images, training=True, seed=seed)
        loss = tf.add_n(list(state.model.losses(outputs, batch.labels).values()))
        loss += 4e-5 * tf.add_n([tf.reduce_sum(kernel.value**2) / 2 for kernel in kernels])
    gradients = tape.gradient(loss, [variable.value for variable in state.trainable])
    return {variable.path: np.asarray(value) for variable, value in zip(state.trainable, gradients, strict=True)}


def test_an_eager_run_runs_python_at_every_step_and_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    call = tiny_detector.TinyDetector.call

    def looked_at(self: Any, images: tf.Tensor, **keywords: Any) -> tf.Tensor:
        seen.append(tf.executing_eagerly())
        return call(self, images, **keywords)

    eager = _run(EAGER)
    monkeypatch.setattr(tiny_detector.TinyDetector, "call", looked_at)
    batches = [_batch(number) for number in range(2)]
    eager(batches)
    assert seen == [True, True]
    monkeypatch.undo()
    compiled = _run()
    compiled(batches)
    values = eager.values()
    for name, value in compiled.values().items():
        np.testing.assert_allclose(values[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.usefixtures("op_determinism")  # TensorFlow's own clock would be asked without it
def test_time_without_a_batch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that every batch moves by 10 and every step by 1; eagerly, where nothing runs at once."""

    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(loop_module, "time", clock)
    losses = tiny_detector.TinyDetector.losses

    def taking_time(self: Any, outputs: tf.Tensor, labels: Labels, *rest: Any, **more: Any) -> dict[str, tf.Tensor]:
        clock.now += 1.0
        return losses(self, outputs, labels, *rest, **more)

    monkeypatch.setattr(tiny_detector.TinyDetector, "losses", taking_time)

    class Batches:
        def __next__(self) -> Batch:
            clock.now += 10.0
            return _batch(0)

    report = new_loop(*KEYS, EAGER).loop(Batches(), 3)
    assert (report.waited, report.seconds) == (30.0, 33.0)
