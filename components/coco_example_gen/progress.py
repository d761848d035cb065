"""Tells how far a Beam pipeline is, whatever runs it."""

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence

from components.coco_example_gen.shards import RESULT

_SECONDS = 10.0  # between two lines

log = logging.getLogger("cocoflow.example_gen")


@contextlib.contextmanager
def told_progress(plans: Sequence[str]) -> Iterator[None]:
    """Logs every few seconds how many of the plans have their result."""
    stop = threading.Event()
    teller = threading.Thread(target=_tell, args=(plans, stop), daemon=True)
    teller.start()
    try:
        yield
    finally:
        stop.set()
        teller.join()


def _tell(plans: Sequence[str], stop: threading.Event) -> None:
    while not stop.wait(_SECONDS):
        done = sum(os.path.exists(plan + RESULT) for plan in plans)
        log.info("%d of %d shards", done, len(plans))
