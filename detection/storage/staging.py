"""Local copies of remote files and folders, for code that opens, maps or seeks in local files.

Each process has a folder of copies of its own, below `$COCOFLOW_CACHE` or the folder for temporary
files.  It goes with its process; what a kill leaves, the next process removes.  Copies are keyed by
object generation, so they never go stale.
"""

import atexit
import contextlib
import functools
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from detection.storage.gcs import folders, objects
from detection.storage.gcs.client import AbsentError, ConflictError, absent, in_parallel
from detection.storage.paths import is_remote, name_of, relative
from detection.storage.temporary import temporary_folder
from schemas.errors import ConfigError, DataError

CACHE_VARIABLE = "COCOFLOW_CACHE"
_STEM = "cocoflow-copies"
_ATTEMPTS = 5  # while somebody writes what is copied

_locks: dict[tuple[int, Path], threading.Lock] = {}  # of a process' copies; a forked child has its own


def local_copy(path: str | Path, *, complete: str | None = None, only: Sequence[str] = ()) -> Path:
    """Returns a local file or folder with the content of `path`, for reading only.

    Remote ones are downloaded, several files at a time, unless this process has these very
    generations; checksums are compared.  The last name of the path stays.

    Args:
        path: file or folder.  A local one is returned as it is.
        complete: for a folder: the file that makes it whole, such as `saved_model.pb`, or
            `atomic.COMPLETE_MARKER`, without which a remote folder is refused; None: any folder will do.
        only: for a folder: patterns of the relative paths to copy, as of `fnmatch`; none: all.

    Raises:
        DataError: there is no such file or folder, or it is not complete, is written all the time,
            or cannot be read; or there is no space for it.
        ConfigError: `$COCOFLOW_CACHE` is remote.
    """
    if not is_remote(path):
        return Path(path)
    text = str(path).rstrip("/")
    for attempt in range(_ATTEMPTS):
        stored = _objects_of(text, complete)
        if only:
            stored = {name: one for name, one in stored.items() if any(fnmatchcase(name, pattern) for pattern in only)}
        try:
            return _copied(text, stored)
        except (AbsentError, ConflictError):  # written between the list and the download
            time.sleep(0.2 * 2**attempt)
    raise DataError(f"{path}: is being written. Wait for the writer to finish, then rerun.")


def _objects_of(path: str, complete: str | None) -> dict[str, objects.Stored]:
    """What is to be copied: relative path -> object; one file has the relative path ""."""
    if complete is None:
        file = objects.find(path) if "/" in path.removeprefix("gs://") else None
        if file is not None:
            return {"": file}
    below = objects.list_tree(path)
    if complete is not None:
        below = folders.require_complete(path, below, complete)
    elif not below and not objects.has_objects(path):
        raise absent(path)
    return {relative(one.path, path): one for one in below}


def _copied(path: str, stored: dict[str, objects.Stored]) -> Path:
    """The copy of these objects; makes it if need be."""
    named = os.environ.get(CACHE_VARIABLE, "")
    if is_remote(named):
        raise ConfigError(f"{CACHE_VARIABLE} {named}: the cache is for local copies. Set it to a local folder.")
    state = json.dumps([path, sorted((name, one.generation) for name, one in stored.items())])
    parent = os.path.abspath(named or tempfile.gettempdir())
    try:
        with _locks.setdefault((os.getpid(), Path(parent)), threading.Lock()):
            folder = _folder_of(os.getpid(), parent)  # once: threads do not wait for each other in `functools.cache`
        entry = folder / hashlib.sha256(state.encode()).hexdigest()[:32]
        with _locks.setdefault((os.getpid(), entry), threading.Lock()):
            if not entry.exists():
                _download(entry, name_of(path), stored)
    except OSError as error:
        raise DataError(
            f"{path}: cannot copy it to {parent}: {error.strerror}. Free space there, or set {CACHE_VARIABLE} to a "
            "folder that you may write to, with space for remote data."
        ) from None
    return entry / name_of(path)


@functools.cache
def _folder_of(process: int, parent: str) -> Path:
    """The folder for the copies of a process."""
    until_the_end = contextlib.ExitStack()
    atexit.register(until_the_end.close)
    return until_the_end.enter_context(temporary_folder(Path(parent, _STEM), mode=0o700))


def _download(entry: Path, name: str, stored: dict[str, objects.Stored]) -> None:
    unfinished = entry.with_suffix(".tmp")
    target = unfinished / name
    jobs = [(one, target / relative_path if relative_path else target) for relative_path, one in stored.items()]
    try:
        for folder in {file.parent for _, file in jobs} | ({target} if "" not in stored else set()):
            folder.mkdir(parents=True, exist_ok=True)
        in_parallel(lambda job: objects.download(*job), jobs)
        unfinished.rename(entry)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
