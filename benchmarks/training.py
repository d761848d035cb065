"""Training speed: our engine against bare and plain loops over the same model, and with real input.

    python -m benchmarks.training [--model efficientdet-nano] [--image-size 256] [--batch-size 8] [--steps 20]
        [--rounds 5] [--images 256] [--ready-targets] [--set KEY=VALUE ...] [--ways WAY ...]

In one process, in turn, round after round, each way trains a model of its own for the
same number of steps; a first round, which compiles, is not counted:

bare: `tf.GradientTape`, the model's losses and the same optimizer of Keras, one compiled
    step per call, on one batch in memory; no clipping, EMA, weight decay, logs or checks.
backbone: as bare, but only the network up to the pyramid's inputs, with the mean of its outputs
    as the loss.
keras: the rules of google/automl's recipe as one would write them with Keras: as bare, with
    L2 loss, clipping and EMA in a line each, and Keras' batch norm, which is not fused.
plain-20: our loop, 20 steps per call, with those rules off.  Against bare, that is what the
    engine itself costs: the NaN guard, scalars, randomness by step.
plain-1: as plain-20, one step per call.
ours-20: our loop with the rules of google/automl's recipe, 20 steps a call.
ours-1: as ours-20, one step per call.
input: as ours-20 on JPEG records of 640x480 with 8 objects: read, decoded, augmented.

Prints per way images/s of the clock, and the processors' seconds a step; the ratios to
bare of both, round by round, as median and spread: those of the processors suffer less
where others use the machine.  Where the input cannot keep up, `waits` is the fraction of
time that steps waited for their batch.  `input alone` is what the input gives where
nothing is trained.  On a GPU or TPU look at the clock's ratio only.  With `--ready-targets`,
anchors are matched with objects before the measurement, as google/automl's input does.

`--others MODEL=PYTHON ...` measures a step of models of `benchmarks.other_models` in turn with ours, by interpreters of
other environments; with `--ways ours-1` alone, the ratios are to that.
"""

import argparse
import gc
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from benchmarks.measure import Measured, OtherModel, measure_rounds, spread
from detection.input_pipeline.record_reader import RecordReader
from detection.input_pipeline.training_batches import Batch
from detection.models.detector import Detector
from detection.models.efficientdet.model import EfficientDet
from detection.models.layers.batch_norm import BatchNormalization
from detection.training.build_input import batches_from_config, input_options_from_config
from detection.training.build_step import is_deterministic, state_from_config, train_loop_from_config
from detection.training.distributed.strategy import make_strategy, op_determinism
from detection.types import Labels
from schemas import features
from schemas.config.config import Config
from schemas.config.config_io import load_config

_CLASSES = 90
_OBJECTS = 8
_SIZE = (480, 640)
_CATEGORIES = [{"id": number + 1, "name": f"c{number}"} for number in range(_CLASSES)]
_RULES_OFF = (
    "train.ema.enabled=false",
    "train.clip={per_variable_norm: null, global_norm: null}",
    "train.optimizer.weight_decay=0",
)


# Runs a number of steps; returns the seconds in which they waited for their batch.
Way = Callable[[int], float]


def _batch(model: Detector, batch_size: int) -> Batch:
    """One batch in memory, as the input makes them."""
    random = np.random.default_rng(0)
    height, width = model.image_size
    corners = random.uniform(0, 0.6, (batch_size, 100, 2)) * [height, width]
    sides = random.uniform(0.1, 0.4, (batch_size, 100, 2)) * [height, width]
    valid = np.arange(100) < _OBJECTS
    labels = Labels(
        boxes=tf.constant(np.concatenate([corners, corners + sides], -1) * valid[:, None], tf.float32),
        classes=tf.constant(random.integers(0, _CLASSES, (batch_size, 100)) * valid, tf.int32),
        valid=tf.constant(np.broadcast_to(valid, (batch_size, 100))),
    )
    images = tf.random.stateless_normal([batch_size, height, width, 3], [0, 0])
    return Batch(images, labels, tf.zeros([batch_size], tf.int32))


def _model(config: Config, strategy: tf.distribute.Strategy) -> Detector:
    return state_from_config(config, [{}] * _CLASSES, strategy=strategy).model


def _make_targets_ready(model: Detector, batch: Batch) -> None:
    """Replaces the matching of anchors with objects by its result for `batch`."""
    losses = cast(EfficientDet, model)._dense_losses
    targets = losses.assign(batch.labels)
    vars(losses)["assign"] = lambda labels: targets


def _bare(config: Config, strategy: tf.distribute.Strategy, *, ready: bool) -> Way:
    train_config = config.train
    model = _model(config, strategy)
    optimizer = keras.optimizers.SGD(train_config.schedule.learning_rate, momentum=train_config.optimizer.momentum)
    optimizer.build(model.trainable_variables)
    variables = [variable.value for variable in model.trainable_variables]
    batch = _batch(model, train_config.fixed_batch_size)
    if ready:
        _make_targets_ready(model, batch)
    jit_compile = train_config.jit_compile is True

    @tf.function(jit_compile=jit_compile, autograph=False)
    def step(images: tf.Tensor, labels: tuple[tf.Tensor, ...]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            terms = model.losses(model(images, training=True, seed=tf.constant([1, 2])), Labels(*labels))
            loss = tf.add_n(list(terms.values()))
        optimizer.apply(tape.gradient(loss, variables), model.trainable_variables)
        return loss

    def run(steps: int) -> float:
        for _ in range(steps):
            loss = step(batch.images, tuple(batch.labels[:3]))
        loss.numpy()
        return 0.0

    return run


def _backbone(config: Config, strategy: tf.distribute.Strategy) -> Way:
    model = _model(config, strategy)
    backbone: Any = model.backbone
    variables = [variable.value for variable in backbone.trainable_variables]
    images = _batch(model, config.train.fixed_batch_size).images

    @tf.function(jit_compile=config.train.jit_compile is True, autograph=False)
    def step(images: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_mean(level) for level in backbone(images, training=True, seed=None)])
        return tf.linalg.global_norm(tape.gradient(loss, variables, unconnected_gradients="zero"))

    def run(steps: int) -> float:
        for _ in range(steps):
            norm = step(images)
        norm.numpy()
        return 0.0

    return run


def _keras(config: Config, strategy: tf.distribute.Strategy, *, ready: bool) -> Way:
    train_config = config.train
    decay, clip, average = train_config.optimizer.weight_decay, train_config.clip, train_config.ema.decay
    model = _model(config, strategy)
    optimizer = keras.optimizers.SGD(train_config.schedule.learning_rate, momentum=train_config.optimizer.momentum)
    optimizer.build(model.trainable_variables)
    variables = [variable.value for variable in model.trainable_variables]
    kernels = [variable.value for variable in model.trainable_variables if variable.path.endswith("kernel")]
    weights = [variable.value for variable in model.variables]
    averages = [tf.Variable(weight, trainable=False) for weight in weights]
    batch = _batch(model, train_config.fixed_batch_size)
    if ready:
        _make_targets_ready(model, batch)

    @tf.function(jit_compile=train_config.jit_compile is True, autograph=False)
    def step(images: tf.Tensor, labels: tuple[tf.Tensor, ...]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            terms = model.losses(model(images, training=True, seed=tf.constant([1, 2])), Labels(*labels))
            loss = tf.add_n(list(terms.values())) + decay * tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels])
        gradients = [tf.clip_by_norm(gradient, clip.per_variable_norm) for gradient in tape.gradient(loss, variables)]
        gradients, _ = tf.clip_by_global_norm(gradients, clip.global_norm)
        optimizer.apply(gradients, model.trainable_variables)
        for value, weight in zip(averages, weights, strict=True):
            value.assign(average * value + (1.0 - average) * weight)
        return loss

    def run(steps: int) -> float:
        with mock.patch.object(BatchNormalization, "_fused", _unfused):
            for _ in range(steps):
                loss = step(batch.images, tuple(batch.labels[:3]))
            loss.numpy()
        return 0.0

    return run


def _unfused(layer: BatchNormalization, inputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Batch norm in training as Keras computes it."""
    mean, variance = tf.nn.moments(inputs, [0, 1, 2])
    gamma, beta = tf.convert_to_tensor(layer.gamma.value), tf.convert_to_tensor(layer.beta.value)
    return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, layer.epsilon), mean, variance


def _ours(
    config: Config, strategy: tf.distribute.Strategy, *, steps_per_call: int, ready: bool = False, data: Any = None
) -> Way:
    state = state_from_config(config, [{}] * _CLASSES, strategy=strategy)
    loop = train_loop_from_config(config.train, state, strategy=strategy)
    if data is None:
        batch = _batch(state.model, config.train.effective_batch_size)
        if ready:
            _make_targets_ready(state.model, batch)
        dataset = tf.data.Dataset.from_tensors(batch).repeat()
        batches = iter(strategy.distribute_datasets_from_function(lambda context: dataset))
    else:
        batches = data(state.model)

    def run(steps: int) -> float:
        done, waited = 0, 0.0
        while done < steps:
            count = min(steps_per_call, steps - done)
            waited += loop(batches, count).waited
            done += count
        return waited

    return run


def _records(folder: Path, count: int) -> list[str]:
    """One shard of JPEGs with smooth content, which take as long to decode as photographs of their size in bytes."""
    path = folder / "data-00000-of-00001"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number in range(count):
            writer.write(_record(np.random.default_rng(number)))
    return [str(path)]


def _record(random: np.random.Generator) -> bytes:
    coarse = random.integers(0, 256, (_SIZE[0] // 16, _SIZE[1] // 16, 3)).astype(np.float32)
    noise = random.normal(0, 6, (*_SIZE, 3))
    pixels = tf.cast(tf.clip_by_value(tf.image.resize(coarse, _SIZE, "bicubic") + noise, 0, 255), tf.uint8)
    corners, sides = random.uniform(0, 0.6, (2, _OBJECTS)), random.uniform(0.1, 0.4, (2, _OBJECTS))
    floats = {
        features.BBOX_YMIN: corners[0],
        features.BBOX_XMIN: corners[1],
        features.BBOX_YMAX: corners[0] + sides[0],
        features.BBOX_XMAX: corners[1] + sides[1],
    }
    entries = {key: tf.train.Feature(float_list=tf.train.FloatList(value=value)) for key, value in floats.items()}
    encoded = tf.io.encode_jpeg(pixels, quality=90).numpy()
    entries[features.ENCODED] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded]))
    labels = random.integers(1, _CLASSES + 1, _OBJECTS)
    entries[features.CLASS_LABEL] = tf.train.Feature(int64_list=tf.train.Int64List(value=labels))
    return bytes(tf.train.Example(features=tf.train.Features(feature=entries)).SerializeToString())


def _real_input(config: Config, strategy: tf.distribute.Strategy, folder: Path, images: int) -> Callable[[Any], Any]:
    reader = RecordReader(_records(folder, images))

    def batches(model: Detector) -> tf.data.Iterator:
        options = input_options_from_config(config, model, _CATEGORIES)
        return batches_from_config(config.train, reader, options, repeat_factors=None, strategy=strategy, start_step=0)

    return batches


def _input_alone(batches: Any) -> Way:
    def run(steps: int) -> float:
        for _ in range(steps):
            next(batches)
        return 0.0

    return run


WAYS = ("bare", "backbone", "keras", "plain-20", "plain-1", "ours-20", "ours-1", "input", "input alone")


def _make_ways(
    args: argparse.Namespace, options: list[str], strategy: tf.distribute.Strategy, folder: Path
) -> Iterator[tuple[str, Way]]:
    config = load_config(None, options)
    plain = load_config(None, [*options, *_RULES_OFF])
    data = _real_input(config, strategy, folder, args.images)
    loops = {"bare": _bare, "keras": _keras}
    for name in args.ways:
        way, _, calls = name.partition("-")
        if way in loops:
            yield name, loops[way](config, strategy, ready=args.ready_targets)
        elif way == "backbone":
            yield name, _backbone(config, strategy)
        elif way in ("plain", "ours"):
            rules = plain if way == "plain" else config
            yield name, _ours(rules, strategy, steps_per_call=int(calls), ready=args.ready_targets)
        elif name == "input":
            yield name, _ours(config, strategy, steps_per_call=20, data=data)
        else:
            yield name, _input_alone(data(_model(config, strategy)))


def _compare(
    args: argparse.Namespace, options: list[str], folder: Path
) -> tuple[dict[str, list[Measured]], dict[str, list[float]]]:
    """Returns the seconds of each round of each way, and the seconds in which its steps waited for their batch."""
    train_config = load_config(None, options).train
    strategy = make_strategy(train_config.strategy)
    waited: dict[str, list[float]] = {name: [] for name in args.ways}

    def run_round(name: str, way: Way) -> None:
        waited[name].append(way(args.steps))

    with op_determinism(needed=is_deterministic(train_config, strategy)):
        ways = dict(_make_ways(args, options, strategy, folder))
        others = {name: _other(name, python, args) for name, python in args.others}
        runs = {name: partial(run_round, name, way) for name, way in ways.items()}
        results = measure_rounds(runs, args.rounds, others=others)
    # The first round, in which steps are compiled, is not measured.
    return results, {name: seconds[1:] for name, seconds in waited.items()}


def _other(name: str, python: str, args: argparse.Namespace) -> Callable[[], Measured]:
    model = OtherModel(python, name, args.batch_size, _OBJECTS)

    def run_round() -> Measured:
        clock, processors = zip(*(model("train") for _ in range(args.steps)), strict=True)
        return Measured(sum(clock), sum(processors))

    return run_round


def _report(results: dict[str, list[Measured]], waited: dict[str, list[float]], *, images: int, steps: int) -> None:
    baseline = "bare" if "bare" in results else next(iter(results))
    for name, rounds in results.items():
        line = f"{name:12} {spread([images / one.clock for one in rounds], 3)} images/s"
        line += f", processors {spread([one.processors / steps for one in rounds], 3)} s a step"
        if name not in (baseline, "input alone"):
            for field, what in ((0, "clock"), (1, "processors")):
                ratios = [one[field] / bound[field] for one, bound in zip(rounds, results[baseline], strict=True)]
                line += f", {what} {spread(ratios, 3)} x {baseline}"
        if any(waited.get(name, ())):
            fractions = [seconds / one.clock for seconds, one in zip(waited[name], rounds, strict=True)]
            line += f", waits {statistics.median(fractions):.1%}"
        print(line)


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="efficientdet-nano")
    parser.add_argument("--image-size", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20, help="a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=256, help="records of real input")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--ready-targets", action="store_true", help="match anchors before the measurement")
    parser.add_argument(
        "--others", nargs="+", default=[], metavar="MODEL=PYTHON", type=lambda value: value.split("=", 1)
    )
    parser.add_argument("--set", nargs="+", default=[], help="more of the configuration")
    args = parser.parse_args()
    options = [
        f"model.name={args.model}",
        f"model.image_size={args.image_size}",
        f"train.batch_size={args.batch_size}",
        "train.steps=1000000",
        # google/automl's rules, as in the figures so far.
        "train.optimizer={name: sgd, weight_decay: 4.0e-5}",
        "train.schedule={learning_rate: 0.08, reference_batch_size: 64, warmup_learning_rate: 0.008}",
        *args.set,
    ]
    print(
        f"{args.model}, {args.image_size} px, batch {args.batch_size}, {args.steps} steps a round, {args.rounds} rounds"
    )
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        results, waited = _compare(args, options, Path(folder))
        gc.collect()  # inputs that are still there read ahead
    _report(results, waited, images=args.steps * args.batch_size, steps=args.steps)
    print(f"load {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
