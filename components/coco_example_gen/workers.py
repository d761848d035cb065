"""Workers on the cores of one machine, and the progress of a conversion.

Threads start at once, but share Python's lock; processes do not, and each takes some
fifteen seconds to import what it needs.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence

from components.coco_example_gen.shards import RESULT
from detection.storage.files import list_folder
from detection.storage.paths import parent
from schemas.errors import DataError

# Images, for each core beyond the first, from which on processes are done earlier than threads.
_PROCESSES_PAY = 30_000
_SECONDS = 10.0  # between two lines

log = logging.getLogger("cocoflow.example_gen")


def local_options(images: int) -> list[str]:
    """Beam options for reading some number of images on this machine; none: threads do it."""
    cores = os.cpu_count() or 1
    if images * (cores - 1) < _PROCESSES_PAY:
        return []
    return ["--direct_running_mode=multi_processing", f"--direct_num_workers={cores}"]


@contextlib.contextmanager
def told_progress(plans: Sequence[str]) -> Iterator[None]:
    """Logs every few seconds how many of the plans, all in one folder, have their result."""
    stop = threading.Event()
    teller = threading.Thread(target=_log_progress, args=(plans, stop), daemon=True)
    teller.start()
    try:
        yield
    finally:
        stop.set()
        teller.join()


def _log_progress(plans: Sequence[str], stop: threading.Event) -> None:
    while not stop.wait(_SECONDS):
        with contextlib.suppress(DataError):  # the next line will tell
            done = sum(name.endswith(RESULT) for name in list_folder(parent(plans[0])))
            log.info("%d of %d shards", done, len(plans))
