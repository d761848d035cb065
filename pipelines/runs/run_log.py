"""The log of a run: written on a local disk, and copied from time to time to a remote `run.root`."""

import contextlib
import logging
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from detection.storage import files
from detection.storage.file_system import FolderLock
from detection.storage.paths import is_remote, name_of
from detection.storage.temporary import scratch_tempdir
from pipelines.folders import RunLayout
from schemas.errors import CocoflowError, DataError

_LOOK_SECONDS = 1.0  # between looks whether the folder is still held
_LOG_SECONDS = 60.0  # between copies of the log, which are complete each time

_LOGGER = logging.getLogger("cocoflow.run")


@contextlib.contextmanager
def local_log(layout: RunLayout, use: FolderLock) -> Iterator[Path]:
    """Yields the local file of a run's log; a remote copy is up to date when the block ends, also with an error.

    To be called in the main thread, which is interrupted if another process takes the folder over: TFX has no better
    way to end before its next component writes there.

    Args:
        layout: of a folder that this process holds.
        use: of this folder.

    Raises:
        DataError: the remote log cannot be read, or cannot be written at the end.
        CocoflowError: another process has taken the folder over.
    """
    if not is_remote(layout.root):
        yield Path(layout.log)
        return
    with scratch_tempdir() as scratch:
        log = scratch / name_of(layout.log)
        if files.is_file(layout.log):
            files.copy_file(layout.log, log)
        stop = threading.Event()
        lost: list[CocoflowError] = []
        thread = threading.Thread(target=_follow, args=(log, layout.log, use, stop, lost), name="run-log", daemon=True)
        thread.start()
        ended = False
        try:
            with _interruptible(lost):
                yield log
            ended = True
        finally:
            stop.set()
            thread.join()
            if lost:
                raise lost[0] from None
            # An error of the block counts more than one of its log.
            with contextlib.nullcontext() if ended else _failures_logged():
                use.require_held()
                _copy(log, layout.log)


@contextlib.contextmanager
def _interruptible(lost: Sequence[CocoflowError]) -> Iterator[None]:
    """Lets a loss interrupt the block also where SIGINT is ignored, as shells have it for a script's `command &`."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if lost:
            raise KeyboardInterrupt

    ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _follow(log: Path, destination: str, use: FolderLock, stop: threading.Event, lost: list[CocoflowError]) -> None:
    """Copies the log from time to time, until `stop` or a loss of the folder."""
    copied = time.monotonic()
    while not stop.wait(_LOOK_SECONDS):
        try:
            use.require_held()
            if time.monotonic() - copied > _LOG_SECONDS:
                copied = time.monotonic()
                with _failures_logged():
                    _copy(log, destination)
        except DataError:  # the service does not answer; the next look may find it
            continue
        except CocoflowError as error:
            lost.append(error)
            _LOGGER.error("%s", error)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return


@contextlib.contextmanager
def _failures_logged() -> Iterator[None]:
    try:
        yield
    except (CocoflowError, OSError) as error:
        _LOGGER.warning("the run's log could not be copied: %s", error)


def _copy(log: Path, destination: str) -> None:
    if not log.exists():
        return
    still = log.with_name(f"{log.name}.copy")  # the log grows while it is uploaded
    shutil.copyfile(log, still)
    files.copy_file(still, destination)
