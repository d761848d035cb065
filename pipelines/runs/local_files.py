"""Files of a run that need a local disk, its metadata database and log, and their copies in a remote `run.root`.

SQLite cannot work on Cloud Storage.  The database is copied here when a run begins, and back
whenever TFX has changed it: before a component runs, and when its results are registered.
After a kill in between, the remote database does not know the newest results; the next run
makes them again, and the pusher finds the model that it has pushed already.
"""

import contextlib
import logging
import shutil
import signal
import sqlite3
import threading
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from detection.storage import files
from detection.storage.lock import Use
from detection.storage.mirror import Mirror, working_folder
from detection.storage.output_folders import scratch_tempdir
from detection.storage.paths import is_remote, name_of, parent
from pipelines.folders import RunLayout
from schemas.errors import CocoflowError, DataError

_LOOK_SECONDS = 1.0  # between looks whether the database has changed; Cloud Storage takes one write a second
_LOG_SECONDS = 60.0  # between copies of the log, which are whole each time

_LOGGER = logging.getLogger("cocoflow.run")


class LocalFiles(NamedTuple):
    """Local paths of the metadata database and of the log."""

    database: Path
    log: Path


@contextlib.contextmanager
def local_files(layout: RunLayout, use: Use) -> Iterator[LocalFiles]:
    """Yields the local files of a run; remote copies are up to date when the block ends, also with an error.

    To be called in the main thread, which is interrupted if another process takes the folder over.

    Args:
        layout: of a folder that this process holds.
        use: of this folder.

    Raises:
        DataError: the remote files cannot be read, or cannot be written at the end.
        CocoflowError: another process has taken the folder over.
    """
    if not is_remote(layout.root):
        yield LocalFiles(Path(layout.metadata), Path(layout.log))
        return
    with scratch_tempdir() as scratch, working_folder(parent(layout.metadata), use=use) as mirror:
        local = LocalFiles(scratch / name_of(layout.metadata), scratch / name_of(layout.log))
        stored = mirror.local / local.database.name
        if stored.exists():
            shutil.copyfile(stored, local.database)
        if files.is_file(layout.log):
            files.copy_file(layout.log, local.log)
        with _kept_remotely(local, mirror, layout.log):
            yield local


@contextlib.contextmanager
def _kept_remotely(local: LocalFiles, mirror: Mirror, log: str) -> Iterator[None]:
    """Copies the files while the block runs, and at its end.

    If another process has taken the folder over, the block is interrupted: TFX has no better way to
    end before its next component writes there.
    """
    stop = threading.Event()
    lost: list[CocoflowError] = []
    thread = threading.Thread(target=_follow, args=(local, mirror, log, stop, lost), name="run-files", daemon=True)
    thread.start()
    try:
        with _interruptible(lost):
            yield
    except BaseException:
        _end(thread, stop)
        if lost:
            raise lost[0] from None
        with _failures_logged():
            _copy_database(local.database, mirror)
            _copy_log(local.log, log)
        raise
    _end(thread, stop)
    _copy_database(local.database, mirror)
    _copy_log(local.log, log)


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


def _end(thread: threading.Thread, stop: threading.Event) -> None:
    stop.set()
    thread.join()


def _follow(local: LocalFiles, mirror: Mirror, log: str, stop: threading.Event, lost: list[CocoflowError]) -> None:
    """Copies the database when it has changed, and the log from time to time, until `stop` or a loss of the folder."""
    copied, log_copied = _version(local.database), time.monotonic()
    while not stop.wait(_LOOK_SECONDS):
        try:
            mirror.require_held()
            with _failures_logged():
                version = _version(local.database)
                if version != copied:
                    _copy_database(local.database, mirror)
                    copied = version
                if time.monotonic() - log_copied > _LOG_SECONDS:
                    log_copied = time.monotonic()
                    _copy_log(local.log, log)
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
    except (DataError, sqlite3.Error, OSError) as error:
        _LOGGER.warning("the run's metadata and log could not be copied: %s", error)


def _version(database: Path) -> tuple[int, int] | None:
    """What changes with every transaction: SQLite writes the file then; None: there is no database."""
    try:
        status = database.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


def _copy_database(database: Path, mirror: Mirror) -> None:
    """Copies the state after the last finished transaction."""
    if not database.exists():
        return
    unfinished = mirror.local / f".{database.name}.tmp"  # a name that is not mirrored
    unfinished.unlink(missing_ok=True)
    uri = f"file:{urllib.parse.quote(str(database))}?mode=ro"
    with (
        contextlib.closing(sqlite3.connect(uri, uri=True)) as source,
        contextlib.closing(sqlite3.connect(unfinished)) as copy,
    ):
        source.backup(copy)
    unfinished.replace(mirror.local / database.name)
    mirror.push()


def _copy_log(log: Path, destination: str) -> None:
    if not log.exists():
        return
    still = log.with_name(f"{log.name}.copy")  # the log grows while it is uploaded
    shutil.copyfile(log, still)
    files.copy_file(still, destination)
