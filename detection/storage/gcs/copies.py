"""Local copies of objects, for `staging`.

Each process has a folder of copies of its own, below `$COCOFLOW_CACHE` or the folder for temporary
files. It is removed when its process ends, or after a kill by the next process. Copies are keyed by
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
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from detection.storage.file_system import FileState
from detection.storage.gcs import objects
from detection.storage.gcs.client import absent, in_parallel, while_written
from detection.storage.markers import OWN_FILES
from detection.storage.paths import is_remote, name_of
from detection.storage.staging import CACHE_VARIABLE
from detection.storage.temporary import temporary_folder
from schemas.errors import ConfigError, DataError

_STEM = "cocoflow-copies"

_locks: dict[int, threading.Lock] = {}  # by process: a forked child has its own


def local_copy(path: str, *, complete: str | None, only: Sequence[str]) -> Path:
    """Returns a local copy of a remote file or folder; see `staging.local_copy`."""
    path = path.rstrip("/")
    return while_written(path, lambda: _objects_of(path, complete, only), lambda found: _copied(path, found))


def _objects_of(path: str, complete: str | None, only: Sequence[str]) -> dict[str, FileState]:
    """Returns the objects to copy by relative path; that of a single file is ""."""
    file = objects.find(path) if complete is None else None
    if file is not None:
        return {"": file}
    found = objects.list_tree(path)
    if complete is None:
        if not found and not objects.has_objects(path):
            raise absent(path)
    elif complete not in found:
        raise DataError(
            f"{path}: not complete: no {complete}. Its writer failed or is still at work; wait for it, or write it "
            "again."
        )
    chosen = (name for name in found if not only or any(fnmatchcase(name, pattern) for pattern in only))
    return {name: found[name] for name in chosen if name not in OWN_FILES}


def _copied(path: str, found: dict[str, FileState]) -> Path:
    """Returns the copy of these objects; makes it if need be."""
    named = os.environ.get(CACHE_VARIABLE, "")
    if is_remote(named):
        raise ConfigError(f"{CACHE_VARIABLE} {named}: the cache is for local copies. Set it to a local folder.")
    state = json.dumps([path, sorted((name, one.version) for name, one in found.items())])
    parent = os.path.abspath(named or tempfile.gettempdir())
    try:
        with _locks.setdefault(os.getpid(), threading.Lock()):
            entry = _folder_of(os.getpid(), parent) / hashlib.sha256(state.encode()).hexdigest()[:32]
            if not entry.exists():
                _download(entry, name_of(path), found)
    except OSError as error:
        raise DataError(
            f"{path}: cannot copy it to {parent}: {error.strerror}. Free space there, or set {CACHE_VARIABLE} to a "
            "folder that you may write to, with space for remote data."
        ) from None
    return entry / name_of(path)


@functools.cache
def _folder_of(process: int, parent: str) -> Path:
    """Returns the folder for the copies of a process."""
    until_the_end = contextlib.ExitStack()
    atexit.register(until_the_end.close)
    return until_the_end.enter_context(temporary_folder(Path(parent, _STEM), mode=0o700))


def _download(entry: Path, name: str, found: dict[str, FileState]) -> None:
    unfinished = entry.with_suffix(".tmp")
    target = unfinished / name
    jobs = [(one, target / relative_path if relative_path else target) for relative_path, one in found.items()]
    try:
        for folder in {file.parent for _, file in jobs} | ({target} if "" not in found else set()):
            folder.mkdir(parents=True, exist_ok=True)
        in_parallel(lambda job: objects.download(*job), jobs)
        unfinished.rename(entry)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
