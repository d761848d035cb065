"""A training step of D-FINE-N against its authors' PyTorch code, in one interleaved run, and its matcher's share.

    python -m benchmarks.dfine --original FOLDER --python PYTHON

FOLDER is a checkout of https://github.com/Peterande/D-FINE, PYTHON a Python with torch and scipy.  Both take the same
random pictures of 256 x 256 in batches of 8, with 20 objects each by default, in float32 on two threads, clip gradients
by the global norm 0.1 and update by AdamW.  In turn, each takes some steps; processor seconds count, which other work
on the machine changes little.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from scipy.optimize import linear_sum_assignment

from detection.models.dfine import model as dfine_model
from detection.models.dfine.criterion import match_all
from detection.models.registry import build_detector
from detection.ops.assignment import assign
from detection.types import Labels

_SIDE, _BATCH, _CLASSES, _BATCHES = 256, 8, 80, 4


def _batches(objects: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shape = (_BATCHES, _BATCH, objects)
    sides = random.uniform(0.05, 0.3, (*shape, 2))
    centers = random.uniform(sides / 2, 1 - sides / 2)
    return {
        "images": random.uniform(0, 1, (_BATCHES, _BATCH, _SIDE, _SIDE, 3)).astype(np.float32),
        "boxes": np.concatenate([centers, sides], axis=-1).astype(np.float32),
        "classes": random.integers(0, _CLASSES, shape),
    }


class _Ours:
    """Steps of ours, with a matcher in place of `match_all`."""

    def __init__(self, batches: dict[str, np.ndarray], matcher: Callable[..., tf.Tensor]) -> None:
        self._matcher = matcher
        keras.utils.set_random_seed(0)
        self._detector = build_detector("dfine-n", num_classes=_CLASSES, image_size=_SIDE)
        self._variables = [variable.value for variable in self._detector.trainable_variables]
        self._optimizer = keras.optimizers.AdamW(8e-4, weight_decay=1e-4, global_clipnorm=0.1)
        self._optimizer.build(self._detector.trainable_variables)
        centers, sides = np.split(batches["boxes"][..., [1, 0, 3, 2]] * _SIDE, 2, axis=-1)
        boxes = np.concatenate([centers - sides / 2, centers + sides / 2], axis=-1)
        everywhere = tf.ones(batches["classes"].shape[1:], tf.bool)
        self._data = [
            (tf.constant(images), Labels(tf.constant(own), tf.constant(classes, tf.int32), everywhere))
            for images, own, classes in zip(batches["images"], boxes, batches["classes"], strict=True)
        ]
        self._step = tf.function(self._one, autograph=False)

    def _one(self, images: tf.Tensor, labels: Labels, seed: tf.Tensor) -> tf.Tensor:
        vars(dfine_model)["match_all"] = self._matcher
        with tf.GradientTape() as tape:
            outputs = self._detector(images, training=True, seed=seed)
            loss = tf.add_n(list(self._detector.losses(outputs, labels, training=True).values()))
        gradients = tape.gradient(loss, self._variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        self._optimizer.apply(gradients, self._detector.trainable_variables)
        return loss

    def __call__(self, steps: int) -> tuple[float, float]:
        """Takes steps; returns processor and wall-clock seconds."""
        start = time.process_time(), time.perf_counter()
        for number in range(steps):
            self._step(*self._data[number % _BATCHES], tf.constant([0, number])).numpy()
        return time.process_time() - start[0], time.perf_counter() - start[1]


def _without_matcher() -> Callable[..., tf.Tensor]:
    """Returns matches that cost nothing, in the shape of those of `match_all`."""

    def matches(predictions: Any, encoder: Any, objects: Any, **_: Any) -> tf.Tensor:
        queries = encoder.logits.shape[1]
        numbers = tf.range(queries)
        of_image = tf.where(numbers < tf.expand_dims(objects.counts, 1), numbers, -1)
        return tf.tile(tf.expand_dims(of_image, 0), [len(predictions.layers) + 2, 1, 1])

    return matches


def _matchers(objects: int) -> None:
    """Prints the seconds of the assignments of a step, of five sets of predictions, and of scipy in their place."""

    def assign_by_scipy(costs: np.ndarray) -> np.ndarray:
        return np.stack([linear_sum_assignment(matrix)[1] for matrix in costs]).astype(np.int32)

    costs = tf.constant(np.random.default_rng(0).normal(size=(5 * _BATCH, objects, 300)).astype(np.float32))
    matchers: dict[str, Callable[[], Any]] = {
        "ours": tf.function(lambda: assign(costs, tf.fill([5 * _BATCH], objects))),
        "scipy": tf.function(lambda: tf.numpy_function(assign_by_scipy, [costs], tf.int32)),
    }
    for name, matcher in matchers.items():
        matcher()
        start, rounds = time.process_time(), 20
        for _ in range(rounds):
            matcher()
        print(f"assignments alone, {name}: {(time.process_time() - start) / rounds:.4f} processor seconds per step")


def _theirs(python: str, folder: Path, batches: Path) -> Callable[[int], tuple[float, float]]:
    command = [python, str(Path(__file__).with_name("dfine_original.py")), str(folder), str(batches)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def take(steps: int) -> tuple[float, float]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{steps}\n")
        process.stdin.flush()
        processor, clock = map(float, process.stdout.readline().split())
        return processor, clock

    return take


def _summary(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    """Measures, and prints medians with the spread over the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--original", metavar="FOLDER", type=Path, required=True)
    parser.add_argument("--python", metavar="PYTHON", default=sys.executable)
    parser.add_argument("--objects", type=int, default=20, help="of an image")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="steps per round")
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(2)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    batches = _batches(arguments.objects)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(
            Path(folder, "batches.npz"), images=batches["images"], boxes=batches["boxes"], classes=batches["classes"]
        )
        theirs = _theirs(arguments.python, arguments.original, Path(folder, "batches.npz"))
        ours: dict[str, _Ours] = {}
        for matcher, function in {"ours": match_all, "none": _without_matcher()}.items():
            ours[matcher] = _Ours(batches, function)
        takes: dict[str, Callable[[int], tuple[float, float]]] = {
            f"ours, matcher: {matcher}": one for matcher, one in ours.items()
        } | {"PyTorch": theirs}
        for take in (*takes.values(), *takes.values()):  # the first step after another network's traces anew
            take(2)
        rounds = []
        for _ in range(arguments.rounds):
            rounds.append({name: take(arguments.steps) for name, take in takes.items()})
    _matchers(arguments.objects)
    for name in rounds[0]:
        for unit, place in (("processor", 0), ("clock", 1)):
            seconds = [row[name][place] / arguments.steps for row in rounds]
            ratios = [row[name][place] / row["PyTorch"][place] for row in rounds]
            print(f"{name}: {unit} seconds per step {_summary(seconds)}, of PyTorch {_summary(ratios)}")


if __name__ == "__main__":
    main()
