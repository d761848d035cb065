"""Training speed: our engine against a bare loop over the same model, and with real input.

    python -m benchmarks.training [--model efficientdet-nano] [--image-size 256] [--batch-size 8] [--steps 20]
        [--rounds 5] [--images 256] [--set KEY=VALUE ...] [--ways WAY ...]

In one process, in turn, round after round, each way trains a model of its own for the
same number of steps; compiling is not counted:

bare: `tf.GradientTape`, the model's losses and the same optimizer of Keras, one compiled
    step per call, on one batch in memory; no clipping, EMA, weight decay, logs or checks.
plain-20: our loop, 20 steps per call, with those rules off.  Against bare, that is what the
    engine itself costs: the NaN guard, scalars, randomness by step.
plain-1: as plain-20, one step per call.
ours-20: our loop with the rules of the default configuration, 20 steps a call.
ours-1: as ours-20, one step per call.
input: as ours-20 on JPEG records of 640x480 with 8 objects: read, decoded, augmented.

Prints per way images/s of the clock, and the processors' seconds a step; the ratios to
bare of both, round by round, as median and spread: those of the processors suffer less
where others use the machine.  Where the input cannot keep up, `waits` is the fraction of
time that steps waited for their batch.  `input alone` is what the input gives where
nothing is trained.  On a GPU or TPU look at the clock's ratio only.
"""

import argparse
import gc
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from detection.input_pipeline.record_reader import RecordReader
from detection.input_pipeline.training_batches import Batch
from detection.models.detector import Detector
from detection.training.build_run import batches_from_config
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


class Measured(NamedTuple):
    """One round of steps: seconds of the clock and of the processors, and seconds in which steps waited."""

    clock: float
    processors: float
    waited: float


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


def _bare(config: Config, strategy: tf.distribute.Strategy) -> Way:
    train_config = config.train
    model = state_from_config(config, num_classes=_CLASSES, strategy=strategy).model
    optimizer = keras.optimizers.SGD(train_config.schedule.learning_rate, momentum=train_config.optimizer.momentum)
    optimizer.build(model.trainable_variables)
    variables = [variable.value for variable in model.trainable_variables]
    batch = _batch(model, train_config.batch_size)
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


def _ours(config: Config, strategy: tf.distribute.Strategy, *, steps_per_call: int, data: Any = None) -> Way:
    state = state_from_config(config, num_classes=_CLASSES, strategy=strategy)
    loop = train_loop_from_config(config.train, state, strategy=strategy)
    if data is None:
        dataset = tf.data.Dataset.from_tensors(_batch(state.model, config.train.batch_size)).repeat()
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
    return lambda model: batches_from_config(config, model, reader, _CATEGORIES, strategy=strategy, start_step=0)


def _input_alone(batches: Any) -> Way:
    def run(steps: int) -> float:
        for _ in range(steps):
            next(batches)
        return 0.0

    return run


WAYS = ("bare", "plain-20", "plain-1", "ours-20", "ours-1", "input", "input alone")


def _make_ways(
    names: list[str], options: list[str], strategy: tf.distribute.Strategy, folder: Path, images: int
) -> Iterator[tuple[str, Way]]:
    config = load_config(None, options)
    plain = load_config(None, [*options, *_RULES_OFF])
    data = _real_input(config, strategy, folder, images)
    for name in names:
        way, _, calls = name.partition("-")
        if way == "bare":
            yield name, _bare(config, strategy)
        elif way in ("plain", "ours"):
            yield name, _ours(plain if way == "plain" else config, strategy, steps_per_call=int(calls))
        elif name == "input":
            yield name, _ours(config, strategy, steps_per_call=20, data=data)
        else:
            model = state_from_config(config, num_classes=_CLASSES, strategy=strategy).model
            yield name, _input_alone(data(model))


def _measure(way: Way, steps: int) -> Measured:
    clock, processors = time.perf_counter(), time.process_time()
    waited = way(steps)
    return Measured(time.perf_counter() - clock, time.process_time() - processors, waited)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def _compare(args: argparse.Namespace, options: list[str], folder: Path) -> dict[str, list[Measured]]:
    train_config = load_config(None, options).train
    strategy = make_strategy(train_config.strategy)
    results: dict[str, list[Measured]] = {name: [] for name in args.ways}
    with op_determinism(needed=is_deterministic(train_config, strategy)):
        ways = dict(_make_ways(args.ways, options, strategy, folder, args.images))
        for way in ways.values():
            way(2)
        for _, (name, way) in itertools.product(range(args.rounds), ways.items()):
            results[name].append(_measure(way, args.steps))
    return results


def _report(results: dict[str, list[Measured]], *, images: int, steps: int) -> None:
    for name, rounds in results.items():
        line = f"{name:12} {_spread([images / one.clock for one in rounds])} images/s"
        line += f", processors {_spread([one.processors / steps for one in rounds])} s a step"
        if "bare" in results and name not in ("bare", "input alone"):
            for field, what in ((0, "clock"), (1, "processors")):
                ratios = [one[field] / bound[field] for one, bound in zip(rounds, results["bare"], strict=True)]
                line += f", {what} {_spread(ratios)} x bare"
        if any(one.waited for one in rounds):
            line += f", waits {statistics.median([one.waited / one.clock for one in rounds]):.1%}"
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
    parser.add_argument("--set", nargs="+", default=[], help="more of the configuration")
    args = parser.parse_args()
    options = [
        f"model.name={args.model}",
        f"model.image_size={args.image_size}",
        f"train.batch_size={args.batch_size}",
        "train.steps=1000000",
        *args.set,
    ]
    print(
        f"{args.model}, {args.image_size} px, batch {args.batch_size}, {args.steps} steps a round, {args.rounds} rounds"
    )
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        results = _compare(args, options, Path(folder))
        gc.collect()  # inputs that are still there read ahead
    _report(results, images=args.steps * args.batch_size, steps=args.steps)
    print(f"load {os.getloadavg()[0]:.1f} after")


if __name__ == "__main__":
    main()
