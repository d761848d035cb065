"""Local copies of objects: for reading only, and folders that follow a remote one, for programs that write in place.

Each process has a folder of copies for reading of its own, below `$COCOFLOW_CACHE` or the folder for temporary
files. It is removed when its process ends, or after a kill by the next process. Copies are keyed by
object generation, so they never go stale.
"""

import atexit
import contextlib
import fnmatch
import functools
import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from detection.storage.file_system import LOCK_FILE, OWN_FILES, TEMPORARY_SUFFIX, FileState, FolderLock, WorkingFolder
from detection.storage.gcs import folders, objects
from detection.storage.gcs.client import absent, in_parallel, while_written
from detection.storage.paths import is_remote, join, name_of
from detection.storage.temporary import CACHE_VARIABLE, scratch_folder, temporary_folder
from schemas.errors import CocoflowError, ConfigError, DataError

_STEM = "cocoflow-copies"
_NEVER = (LOCK_FILE, f"*{TEMPORARY_SUFFIX}")  # names, at any depth, that are never pulled or pushed

_locks: dict[int, threading.Lock] = {}  # by process: a forked child has its own


def local_copy(path: str, *, complete: str | None, only: Sequence[str]) -> Path:
    """Returns a local copy of a remote file or folder; see `files.local_copy`."""
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
    chosen = (name for name in found if not only or any(fnmatch.fnmatchcase(name, pattern) for pattern in only))
    return {name: found[name] for name in chosen if name not in OWN_FILES}


def _copied(path: str, found: dict[str, FileState]) -> Path:
    """Returns the copy of these objects; makes it if need be."""
    named = os.environ.get(CACHE_VARIABLE, "")
    if is_remote(named):
        raise ConfigError(f"{CACHE_VARIABLE} {named}: the cache is for local copies. Set it to a local folder.")
    state = json.dumps([path, sorted((name, file.version) for name, file in found.items())])
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
    jobs = [(state, target / below if below else target) for below, state in found.items()]
    try:
        for folder in {file.parent for _, file in jobs} | ({target} if "" not in found else set()):
            folder.mkdir(parents=True, exist_ok=True)
        in_parallel(lambda job: objects.download(*job), jobs)
        unfinished.rename(entry)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


class RemoteWorkingFolder(WorkingFolder):
    """A local folder that follows a remote one.

    Args:
        path: remote folder.
        local: local folder.
        last: see `lock.open_working_folder`.
        exclude: see `lock.open_working_folder`.
        use: lock of the folder; None: nobody holds it.
    """

    def __init__(
        self, path: str, local: Path, *, last: Sequence[str], exclude: Sequence[str], use: FolderLock | None
    ) -> None:
        super().__init__(path, local)
        self._last = last
        self._exclude = (*exclude, *_NEVER)
        self._use = use
        # Files that are the same on both sides: the local file's size and time of change in ns, and the object.
        self._known: dict[str, tuple[tuple[int, int], FileState]] = {}
        self._lock = threading.Lock()

    def pull(self) -> None:
        """Downloads new and changed objects; see `WorkingFolder.pull`."""
        with self._lock:
            while_written(self.path, self._objects, self._pull)

    def push(self) -> None:
        """Uploads changed files; see `WorkingFolder.push`."""
        with self._lock:
            if self._use is not None:
                self._use.require_held()
            present = self._local_names()
            changed = [(self._rank(name), name) for name in present if self._has_changed(name)]
            in_parallel(self._upload, [name for rank, name in changed if rank < 0])
            for _, name in sorted(job for job in changed if job[0] >= 0):
                self._upload(name)
            for name in sorted(set(self._known) - set(present), key=lambda name: (-self._rank(name), name)):
                state = self._known[name][1]
                objects.delete(state.path, generation=state.version)
                del self._known[name]

    def push_folder(self, name: str, *, last: Sequence[str]) -> None:
        """Uploads a folder; see `WorkingFolder.push_folder`."""
        folders.upload(self.local / name, join(self.path, name), last=last, replace=True)

    def _objects(self) -> dict[str, FileState]:
        return {name: state for name, state in objects.list_tree(self.path).items() if not self._is_excluded(name)}

    def _pull(self, remote: dict[str, FileState]) -> None:
        outdated = [
            (name, state)
            for name, state in remote.items()
            if name not in self._known or self._known[name][1] != state or self._has_changed(name)
        ]
        in_parallel(lambda job: self._download(*job), outdated)
        for name in set(self._known) - set(remote):
            (self.local / name).unlink(missing_ok=True)
            del self._known[name]

    def _download(self, name: str, state: FileState) -> None:
        file = self.local / name
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f".{file.name}{TEMPORARY_SUFFIX}")
        try:
            objects.download(state, unfinished)
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)
        self._known[name] = (_size_and_time(file), state)

    def _upload(self, name: str) -> None:
        file = self.local / name
        before = _size_and_time(file)
        generation = self._known[name][1].version if name in self._known else 0
        self._known[name] = (before, objects.write(join(self.path, name), file, generation=generation))

    def _has_changed(self, name: str) -> bool:
        file = self.local / name
        return name not in self._known or not file.exists() or self._known[name][0] != _size_and_time(file)

    def _local_names(self) -> list[str]:
        names = (file.relative_to(self.local).as_posix() for file in self.local.rglob("*") if file.is_file())
        return sorted(name for name in names if not self._is_excluded(name))

    def _rank(self, name: str) -> int:
        """Returns the position of a file among those that are uploaded last; -1: not among them."""
        matches = [rank for rank, pattern in enumerate(self._last) if _matches(name, pattern)]
        return max(matches, default=-1)

    def _is_excluded(self, name: str) -> bool:
        return any(_matches(name, pattern) for pattern in self._exclude)


def _size_and_time(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _matches(name: str, pattern: str) -> bool:
    """Returns whether a pattern matches a relative path or its last name."""
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name.rsplit("/", maxsplit=1)[-1], pattern)


@contextlib.contextmanager
def open_working_folder(
    path: str, *, last: Sequence[str], exclude: Sequence[str], use: FolderLock | None
) -> Iterator[RemoteWorkingFolder]:
    """Yields a temporary folder with the content of a remote one; see `lock.open_working_folder`."""
    with scratch_folder() as local:
        try:
            folder = RemoteWorkingFolder(path, local, last=last, exclude=exclude, use=use)
            folder.pull()
            yield folder
        except CocoflowError as error:  # the temporary folder is gone when the user reads of it
            error.args = tuple(str(part).replace(str(local), path.rstrip("/")) for part in error.args)
            raise
