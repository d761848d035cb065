"""Reading path of one training step: the files of ours whose code builds and runs it.

    python -m benchmarks.training_path

A profile counts the files that are entered from the config section `train` to the updated
weights: the train state and the loop are built, then one step runs on a batch in memory,
with every rule on (L2 loss, clipping, EMA weights, loss scale, summaries).  The step runs
line by line, so the profile sees all of its Python.

Not counted, because a reader of the step does not need them: the network and its tensor
functions (`detection/models`, `detection/ops`), the question which devices there are
(`detection/training/distributed`), and the sections of the configuration (`schemas`).
They are printed apart.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import tensorflow as tf

from detection.input_pipeline.training_batches import Batch
from detection.training.build_step import state_from_config, train_loop_from_config
from detection.types import Labels
from schemas.config.config import Config
from schemas.config.config_io import load_config

ROOT = Path(__file__).resolve().parents[1]
MAX_FILES = 8
NOT_COUNTED = ("detection/models/", "detection/ops/", "detection/training/distributed/", "schemas/")
ASSIGNMENTS = (
    "model.name=efficientdet-nano",
    "model.image_size=64",
    "model.overrides={neck: {filters: 16, cells: 1}, head: {layers: 1}}",
    "train.batch_size=1",
    "train.steps=10",
    "train.schedule.learning_rate=0.002",
    "train.run_eagerly=true",
    "train.precision=mixed_float16",
    "train.clip.bias_multiplier=2",
    "train.freeze=['.*stem']",
    "train.summaries={gradient_norms: true, gradient_histograms_every: 1}",
)


def entered_files(work: Callable[[], Any]) -> set[str]:
    """Runs `work`; returns the files of ours that it enters, as paths below the repository."""
    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            entered.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    below = (Path(name).relative_to(ROOT).as_posix() for name in entered if name.startswith(f"{ROOT}/"))
    return {path for path in below if path.startswith(("detection/", "schemas/"))}


def run_step(config: Config) -> None:
    """Builds the train state and the loop, and runs one step."""
    strategy = tf.distribute.get_strategy()
    state = state_from_config(config, [{}] * 3, strategy=strategy)
    loop = train_loop_from_config(config.train, state, strategy=strategy)
    height, width = state.model.image_size
    labels = Labels(
        boxes=tf.constant([[[4.0, 4.0, height / 2, width / 2]]]),
        classes=tf.constant([[1]]),
        valid=tf.constant([[True]]),
    )
    batch = Batch(tf.zeros([1, height, width, 3]), labels, tf.zeros([1], tf.int32))
    loop(iter(tf.data.Dataset.from_tensors(batch)), 1)


def step_files(config: Config) -> tuple[list[str], list[str]]:
    """Returns the files of a training step: those that count, and the others."""
    entered = sorted(entered_files(lambda: run_step(config)))
    return (
        [path for path in entered if not path.startswith(NOT_COUNTED)],
        [path for path in entered if path.startswith(NOT_COUNTED)],
    )


def main() -> None:
    """Prints the files."""
    counted, others = step_files(load_config(None, ASSIGNMENTS))
    print(f"{len(counted)} files of one training step, at most {MAX_FILES}:", *counted, sep="\n  ")
    print(f"{len(others)} others, network, devices and configuration:", *others, sep="\n  ")


if __name__ == "__main__":
    main()
