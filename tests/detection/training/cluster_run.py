"""Training runs of several processes on this machine, as several machines would be.

`python -m tests.detection.training.cluster_run OUTPUT SHARD... -- KEY=VALUE ...` is one of them.
"""

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from detection.training import train as training
from schemas.config.config_io import load_config
from schemas.errors import CocoflowError
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_run import AUTOML, CATEGORIES

# Drop-connect, synchronised batch norm, EMA weights and clipping are on.
SMALL = (
    "model.name=tiny",
    "train.batch_size=4",
    "train.steps=20",
    "train.checkpoint_every=10",
    "train.log_every=10",
    "train.steps_per_loop=5",
    "train.schedule.learning_rate=0.05",
    "train.schedule.reference_batch_size=null",
    "train.clip.global_norm=0.5",
)


def run_small(output: Path, shards: Sequence[str], *assignments: str) -> None:
    """Trains the tiny detector for 20 steps, in this process."""
    tiny_detector.register()
    config = load_config(None, [AUTOML, *SMALL, *assignments])
    training.train(config, shards=shards, categories=CATEGORIES, output=output)


@contextlib.contextmanager
def images_saved(path: Path) -> Iterator[None]:
    """Makes training in the block write what it will see in its first two steps: float32 [2, B, H, W, 3]."""
    make_batches = training.batches_from_config

    def saving(*args: Any, strategy: Any, **keywords: Any) -> Any:
        looked_at = make_batches(*args, strategy=strategy, **keywords)
        steps = [strategy.experimental_local_results(next(looked_at).images) for _ in range(2)]
        np.save(path, [np.concatenate(replicas) for replicas in steps])
        return make_batches(*args, strategy=strategy, **keywords)

    with mock.patch.object(training, "batches_from_config", saving):
        yield


def free_addresses(count: int) -> list[str]:
    """Addresses on this machine that nothing listens to."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def start_workers(folder: Path, shards: Sequence[str], *assignments: Sequence[str]) -> list[subprocess.Popen[str]]:
    """Starts a chief and workers, a process per list of assignments, all training into `folder`/run.

    Process i says what it has to say in `folder`/log-i, writes its first images to `folder`/images-i.npy,
    and has `folder`/tmp-i for its temporary files.
    """
    addresses = free_addresses(len(assignments))
    workers = []
    for number, own in enumerate(assignments):
        scratch = folder / f"tmp-{number}"
        scratch.mkdir(parents=True, exist_ok=True)
        task = {"type": "worker", "index": number - 1} if number else {"type": "chief", "index": 0}
        config = {"cluster": {"chief": addresses[:1], "worker": addresses[1:]}, "task": task}
        environment = os.environ | {
            "TF_CONFIG": json.dumps(config),
            "TMPDIR": str(scratch),
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "PYTHONDONTWRITEBYTECODE": "1",  # AutoGraph imports files that it writes to TMPDIR
            "COCOFLOW_TEST_IMAGES": str(folder / f"images-{number}.npy"),
        }
        command = [sys.executable, "-m", __name__, str(folder / "run"), *shards, "--", *own]
        with (folder / f"log-{number}").open("w") as log:
            worker = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True)
        workers.append(worker)
    return workers


def log_of(folder: Path, number: int) -> str:
    """What a process has said."""
    return (folder / f"log-{number}").read_text()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    output, *rest = sys.argv[1:]
    end = rest.index("--")
    try:
        with images_saved(Path(os.environ["COCOFLOW_TEST_IMAGES"])):
            run_small(Path(output), rest[:end], *rest[end + 1 :])
    except CocoflowError as error:
        sys.exit(f"error: {error}")
