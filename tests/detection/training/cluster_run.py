"""Training runs of several processes on this machine, as several machines would be."""

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

from detection.training import train as training
from schemas.config.config_io import load_config
from schemas.errors import CocoflowError
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_run import AUTOML, CATEGORIES
from tests.forked_calls import forked_calls

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
def together() -> Iterator[Callable[..., None]]:
    """Yields a function with the arguments of `train_together`, in a process that has imported what it needs."""
    environment = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    with forked_calls(__name__, environment=environment) as calls:

        def train(
            folder: Path,
            shards: Sequence[str],
            assignments: Sequence[str] = (),
            until: Path | str = "",
            expected: Sequence[int] = (0, 0),
        ) -> None:
            code = calls(f"{__name__}:train_together", str(folder), shards, assignments, str(until), expected)
            assert code == 0, [log_of(folder, number)[-3000:] for number in range(len(expected))]

        yield train


def _free_addresses(count: int) -> list[str]:
    """Addresses on this machine that nothing listens to."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def train_together(
    folder: str, shards: Sequence[str], assignments: Sequence[str], until: str, expected: Sequence[int]
) -> None:
    """Trains in a chief and a worker, both into `folder`/run.

    Process i says what it has to say in `folder`/log-i, and has `folder`/tmp-i for its temporary files.

    Args:
        folder: of the two.
        shards: records.
        assignments: `key=value`, over `SMALL`.
        until: file at whose appearance the worker gets SIGTERM; empty: both end by themselves.
        expected: exit codes.
    """
    addresses = _free_addresses(len(expected))
    children = [_start(number, addresses, Path(folder), shards, assignments) for number in range(len(expected))]
    while until and not Path(until).exists():
        assert os.waitpid(-1, os.WNOHANG) == (0, 0), "a process has ended"
        time.sleep(0.1)
    if until:
        os.kill(children[-1], signal.SIGTERM)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == list(expected)


def _start(
    number: int, addresses: Sequence[str], folder: Path, shards: Sequence[str], assignments: Sequence[str]
) -> int:
    child = os.fork()
    if child:
        return child
    scratch = folder / f"tmp-{number}"
    scratch.mkdir(parents=True, exist_ok=True)
    task = {"type": "worker", "index": number - 1} if number else {"type": "chief", "index": 0}
    config = {"cluster": {"chief": addresses[:1], "worker": addresses[1:]}, "task": task}
    os.environ.update(TF_CONFIG=json.dumps(config), TMPDIR=str(scratch))
    tempfile.tempdir = None
    sys.dont_write_bytecode = True  # AutoGraph imports files that it writes to TMPDIR
    with (folder / f"log-{number}").open("w") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    try:
        with mock.patch.object(training, "check_inference_losses"):  # as expensive as the steps
            run_small(folder / "run", shards, *assignments)
        os._exit(0)
    except CocoflowError as error:
        print(f"error: {error}", flush=True)
    except BaseException:
        logging.exception("the run failed")
    os._exit(1)


def log_of(folder: Path, number: int) -> str:
    """What a process has said."""
    return (folder / f"log-{number}").read_text()
