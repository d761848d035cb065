"""Training runs of seconds that save after every step and can be made to kill themselves in the middle of a save.

`python -m tests.detection.training.killed_run` imports what they need once, which takes
longer than a run.  Each line on stdin, a JSON object with the arguments of `train_in_child`,
starts a run in a process of its own; it tells its process id and its progress on stdout,
and `ended` with its exit status.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tensorflow.python.checkpoint import checkpoint_management

from detection.training.checkpoints import manager as checkpoints
from tests.detection.training import tiny_detector
from tests.detection.training.tiny_run import SMALL, run

# Where a save is cut off, and the function at whose call that is.
MOMENTS: dict[str, tuple[Any, str]] = {
    "written": (checkpoints, "_flush"),  # the files are there, the list does not know them
    "listed": (checkpoint_management.CheckpointManager, "_sweep"),  # nothing is removed yet
    "removing": (checkpoint_management, "_delete_file_if_exists"),  # half of an old one is removed
}
ASSIGNMENTS = (*SMALL, "train.checkpoint_every=1", "train.keep_checkpoints=2", "train.log_every=1")


def train_in_child(moment: str, output: str, shards: Sequence[str], assignments: Sequence[str]) -> int:
    """Starts a run; returns its process id.

    Args:
        moment: at which it kills itself, as in `listed:7` (name of `MOMENTS`, number of
            the call), or empty.
        output: its folder.
        shards: records.
        assignments: `key=value`, over `ASSIGNMENTS`.
    """
    child = os.fork()
    if child:
        return child
    try:
        print(f"pid {os.getpid()}", flush=True)
        if moment:
            _kill_at(moment)
        run(Path(output), shards, *ASSIGNMENTS, *assignments, exports=False)
        os._exit(0)
    except BaseException:
        logging.exception("the run failed")
        os._exit(1)


def _kill_at(moment: str) -> None:
    name, _, number = moment.partition(":")
    owner, attribute = MOMENTS[name]
    original: Callable[..., Any] = getattr(owner, attribute)
    calls = [0]

    def counted(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)

    setattr(owner, attribute, counted)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    tiny_detector.register()
    for line in sys.stdin:
        _, status = os.waitpid(train_in_child(**json.loads(line)), 0)
        print(f"ended {os.waitstatus_to_exitcode(status)}", flush=True)
