"""Progress of a Beam pipeline: counts images on the workers, and logs their sum in this process.

Beam has no counter that all runners report while they run: the one in memory reports at the end of the pipeline.
"""

import contextlib
import logging
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detection.storage.atomic import write_bytes
from detection.storage.files import is_dir, list_folder, read_many
from detection.storage.paths import join
from schemas.progress import PROGRESS_ATTRIBUTE, WorkProgress

_LOG_SECONDS = 10.0  # between two lines
_WRITE_SECONDS = 5.0  # between two writes of a worker process

log = logging.getLogger("cocoflow.beam")


@dataclass
class _Count:
    """The count of this process, and when it is next written."""

    images: int = 0
    due: float = field(default_factory=lambda: time.monotonic() + _WRITE_SECONDS)
    name: str = field(default_factory=lambda: uuid.uuid4().hex)


_COUNTS: defaultdict[str, _Count] = defaultdict(_Count)  # by folder: a worker may serve several pipelines
_LOCK = threading.Lock()  # several bundles run at once in one process


class ImageCounter:
    """Counts images on workers; DoFns hold it.

    Args:
        folder: folder for this alone, shared by all workers.  Each worker process writes its count to one file.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def add(self, images: int = 1) -> None:
        """Counts images that are done."""
        with _LOCK:
            count = _COUNTS[self._folder]
            count.images += images
            now = time.monotonic()
            if now < count.due:
                return
            count.due = now + _WRITE_SECONDS
            content = str(count.images).encode()
        with contextlib.suppress(Exception):  # work does not fail because of its progress
            write_bytes(join(self._folder, count.name), content, durable=False)


@contextlib.contextmanager
def report_progress(work: str, runner: Any, total: int | None, folder: str | Path) -> Iterator[ImageCounter]:
    """Logs a line every ten seconds while the block runs a pipeline, and at the end of one that took longer.

    Args:
        work: name of the work, such as "reading images".
        runner: runner of the pipeline.  If it has a method `progress`, its text ends each line.  If it has an
            attribute `restarts`, each change starts the count anew.
        total: number of images; None: unknown.
        folder: folder, shared by all workers.

    Yields:
        The counter, for the pipeline's DoFns.
    """
    counts = join(folder, f"progress-{uuid.uuid4().hex}")
    ended = threading.Event()
    reporter = threading.Thread(target=_report, args=(work, runner, total, counts, ended), daemon=True)
    start = time.monotonic()
    reporter.start()
    try:
        yield ImageCounter(counts)
    finally:
        ended.set()
        reporter.join()
    if total is not None and time.monotonic() - start >= _LOG_SECONDS:
        _log(work, total, total)


def _report(work: str, runner: Any, total: int | None, counts: str, ended: threading.Event) -> None:
    restarts, before = 0, 0
    while not ended.wait(_LOG_SECONDS):
        with contextlib.suppress(Exception):  # the next line has the sum
            counted = _sum(counts)
            if restarts != getattr(runner, "restarts", 0):
                restarts, before = runner.restarts, counted
            # Beam may retry bundles, whose images then count twice.
            done = counted - before if total is None else min(counted - before, total)
            _log(work, done, total, workers=getattr(runner, "progress", str)())


def _sum(counts: str) -> int:
    """Sums the counts of all worker processes."""
    # A hidden file is one that is being written.
    names = [name for name in list_folder(counts) if not name.startswith(".")] if is_dir(counts) else []
    return sum(map(int, read_many(counts, names)))


def _log(work: str, done: int, total: int | None, *, workers: str = "") -> None:
    images = f"{done:,} images" if total is None else f"{done:,} of {total:,} images"
    line = f"{images}, {workers}" if workers else images
    log.info("%s", line, extra={PROGRESS_ATTRIBUTE: WorkProgress(work, done, total, line)})
