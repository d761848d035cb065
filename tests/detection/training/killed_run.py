"""Training runs of seconds that save after every step and kill themselves; for `tests.forked_calls`."""

import functools
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tensorflow.python.checkpoint import checkpoint_management

from detection.training.checkpoints import manager as checkpoints
from detection.training.engine.loop import TrainLoop
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_run import BALANCED, SMALL, run

# Functions at whose call a run ends.
MOMENTS: dict[str, tuple[Any, str]] = {
    "written": (checkpoints, "_flush"),  # the files are there, the list does not know them
    "listed": (checkpoint_management.CheckpointManager, "_sweep"),  # nothing is removed yet
    "removing": (checkpoint_management, "_delete_file_if_exists"),  # half of an old one is removed
    "training": (TrainLoop, "windows"),  # the next step
}
ASSIGNMENTS = (*SMALL, *BALANCED, "train.checkpoint_every=1", "train.keep_checkpoints=2", "train.log_every=1")


def train(output: str, shards: Sequence[str], assignments: Sequence[str], moment: Sequence[Any]) -> None:
    """Trains, in a process that is for this alone.

    Args:
        output: folder of the run.
        shards: records.
        assignments: `key=value`, over `ASSIGNMENTS`.
        moment: when the process kills itself: name in `MOMENTS`, number of the call there, and seconds after that call;
            empty: never.
    """
    tiny_detector.register()
    if moment:
        _kill_at(*moment)
    run(Path(output), shards, *ASSIGNMENTS, *assignments, exports=False)


def _kill_at(name: str, number: int, delay: float) -> None:
    owner, attribute = MOMENTS[name]
    original: Callable[..., Any] = getattr(owner, attribute)
    calls = [0]

    @functools.wraps(original)  # TensorFlow looks at the signature
    def counted(*arguments: Any, **keywords: Any) -> Any:
        calls[0] += 1
        if calls[0] == number and not delay:
            os.kill(os.getpid(), signal.SIGKILL)
        if calls[0] == number:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return original(*arguments, **keywords)

    setattr(owner, attribute, counted)
