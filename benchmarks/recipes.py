"""What a recipe reaches: trains a configuration with several seeds, and evaluates raw and EMA weights.

    python -m benchmarks.recipes --data DIR [--config YAML] [--set KEY=VALUE ...] [--seeds 0 1 2] [--iou-type segm]

Prints a line per seed, and the means: AP and AP50 on the evaluation split of the EMA and the raw weights of the last
checkpoint; the same with the statistics of batch norm measured anew, as means over 12 training batches; the seconds of
the processors (user and system) that training and its export took, without validation.  Where "statistics anew" is
better by more than 0.03 AP, `model.overrides.batch_norm.momentum` is too high for the run's length.
"""

import argparse
import functools
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from benchmarks.measure import measure
from components.coco_example_gen.to_examples import write_examples
from detection.inference.formats.saved_model import SignatureDetector
from detection.inference.formats.serving_module import ServingModule
from detection.input_pipeline.record_reader import RecordReader
from detection.input_pipeline.training_batches import Batch
from detection.models.detector import Detector
from detection.models.layers.batch_norm import batch_norms
from detection.models.registry import detector_from_config
from detection.training.build_input import input_options_from_config
from detection.training.checkpoints.files import checkpoint_path
from detection.training.checkpoints.manager import load_weights
from detection.training.monitoring.step_batches import StepBatches
from detection.training.train import train
from detection.training.validation.split import ValidationSplit
from pipelines import DEFAULT_CONFIG
from schemas.artifacts import CHECKPOINTS, CONFIG_YAML, DATASET_JSON, split_dir
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.config.train.optimization import WeightsKind
from schemas.metrics import IouType

_BATCHES = 12  # that statistics are measured on


class Scores(NamedTuple):
    """AP and AP50 of one set of weights."""

    ap: float
    ap50: float

    def __str__(self) -> str:
        return f"{self.ap:.3f} / {self.ap50:.3f}"


class Trained:
    """A finished training: evaluates the weights of its last checkpoint.

    Args:
        output: output folder of `train`.
        shards: TFRecord files by split.
        categories: COCO categories, by ascending id.
        iou_type: IoU type of the metrics.
    """

    def __init__(self, output: Path, shards: dict[str, list[str]], categories: list[Any], *, iou_type: IouType) -> None:
        self._config = load_config(output / CONFIG_YAML)
        self._checkpoint = checkpoint_path(output / CHECKPOINTS, self._config.train.fixed_steps)
        self._detector: Detector = detector_from_config(
            self._config.model, categories, precision=self._config.train.precision
        )
        batch_size = self._config.evaluate.batch_size
        self._signature = SignatureDetector(
            ServingModule(self._detector, categories).serve_encoded, batch_size=batch_size
        )
        self._split = ValidationSplit(
            RecordReader(shards["eval"]),
            categories=categories,
            batch_size=batch_size,
            iou_types=[iou_type],
            given=[iou_type],
        )
        options = input_options_from_config(self._config, self._detector, categories)
        size = self._config.train.effective_batch_size
        self._batches = StepBatches(
            RecordReader(shards["train"]), options, seed=self._config.train.seed + 1, batch_size=size
        )

    def scores(self, weights: WeightsKind, *, measured_anew: bool) -> Scores:
        """Evaluates the weights, optionally with other statistics of batch norm."""
        load_weights(self._detector, self._checkpoint, weights=weights)
        if measured_anew:
            _measure_statistics(self._detector, self._batches.batches(0, _BATCHES))
        [evaluated] = self._split.evaluate(self._signature)
        metrics = evaluated.by_name
        return Scores(metrics["AP"], metrics["AP50"])


def _measure_statistics(detector: Detector, batches: list[Batch]) -> None:
    """Sets the moving statistics to their means over the batches."""
    layers = batch_norms(detector)
    for layer in layers:
        layer.momentum = 0.0
    seen = []
    for number, batch in enumerate(batches):
        detector(batch.images, training=True, seed=tf.constant([number, 0], tf.int32))
        seen.append([[np.array(layer.moving_mean), np.array(layer.moving_variance)] for layer in layers])
    for layer, of_layer in zip(layers, zip(*seen, strict=True), strict=True):
        mean, variance = (np.mean(values, axis=0) for values in zip(*of_layer, strict=True))
        layer.moving_mean.assign(mean)
        layer.moving_variance.assign(variance)


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="DIR")
    parser.add_argument("--config", default=str(DEFAULT_CONFIG), metavar="YAML")
    parser.add_argument("--set", dest="assignments", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--iou-type", default="bbox", choices=["bbox", "segm"])
    args = parser.parse_args()
    config = load_config(args.config, [*args.assignments, f"data.root={args.data}", "train.validation={every: null}"])
    with tempfile.TemporaryDirectory() as folder:
        _run(config, args, Path(folder))


def _run(config: Config, args: argparse.Namespace, folder: Path) -> None:
    examples = folder / "examples"
    write_examples(config, str(examples))
    categories = sorted(json.loads((examples / DATASET_JSON).read_text())["categories"], key=lambda one: one["id"])
    shards = {split: sorted(map(str, (examples / split_dir(split)).iterdir())) for split in ("train", "eval")}
    kinds: tuple[WeightsKind, ...] = ("ema", "raw") if config.train.ema.enabled else ("raw",)
    variants: list[tuple[WeightsKind, bool]] = [(kind, anew) for kind in kinds for anew in (False, True)]
    names = [f"{kind}, statistics anew" if anew else kind for kind, anew in variants]
    print("  ".join([f"{'seed':>5}", *(f"{name:>21}" for name in names), "processors"]), flush=True)
    rows: list[list[Scores]] = []
    seconds = []
    for seed in args.seeds:
        seeded = config.model_copy(update={"train": config.train.model_copy(update={"seed": seed})})
        output = folder / f"seed-{seed}"
        run = functools.partial(train, seeded, shards=shards["train"], categories=categories, output=output)
        seconds.append(measure(run).processors)
        trained = Trained(output, shards, categories, iou_type=args.iou_type)
        rows.append([trained.scores(kind, measured_anew=anew) for kind, anew in variants])
        _print_row(str(seed), rows[-1], seconds[-1])
    means = [Scores(*map(statistics.mean, zip(*column, strict=True))) for column in zip(*rows, strict=True)]
    _print_row("mean", means, statistics.mean(seconds))


def _print_row(name: str, scores: list[Scores], seconds: float) -> None:
    print("  ".join([f"{name:>5}", *(f"{score!s:>21}" for score in scores), f"{seconds:8.0f} s"]), flush=True)


if __name__ == "__main__":
    main()
