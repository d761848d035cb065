"""Working folders of Cloud Storage; see `detection.storage.mirror`."""

import contextlib
import fnmatch
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from detection.storage.file_system import FileState
from detection.storage.gcs import folders, objects
from detection.storage.gcs.client import in_parallel, while_written
from detection.storage.lock import FolderLock
from detection.storage.markers import LOCK_FILE, TEMPORARY_SUFFIX
from detection.storage.mirror import Mirror
from detection.storage.output_folders import scratch_folder
from detection.storage.paths import join
from schemas.errors import CocoflowError

_NEVER = (LOCK_FILE, f"*{TEMPORARY_SUFFIX}")  # names, at any depth, that are never mirrored


class RemoteMirror(Mirror):
    """A local folder that follows a remote one.

    Args:
        path: remote folder.
        local: local folder.
        last: see `mirror.working_folder`.
        exclude: see `mirror.working_folder`.
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
        """Downloads new and changed objects; see `Mirror.pull`."""
        with self._lock:
            while_written(self.path, self._objects, self._pull)

    def push(self) -> None:
        """Uploads changed files; see `Mirror.push`."""
        with self._lock:
            if self._use is not None:
                self._use.require_held()
            present = self._local_names()
            changed = [(self._rank(name), name) for name in present if self._has_changed(name)]
            in_parallel(self._upload, [name for rank, name in changed if rank < 0])
            for _, name in sorted(one for one in changed if one[0] >= 0):
                self._upload(name)
            for name in sorted(set(self._known) - set(present), key=lambda name: (-self._rank(name), name)):
                state = self._known[name][1]
                objects.delete(state.path, generation=state.version)
                del self._known[name]

    def push_folder(self, name: str, *, last: Sequence[str]) -> None:
        """Uploads a folder; see `Mirror.push_folder`."""
        folders.upload(self.local / name, join(self.path, name), last=last, replace=True)

    def _objects(self) -> dict[str, FileState]:
        return {name: one for name, one in objects.list_tree(self.path).items() if not self._is_excluded(name)}

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
def working_folder(
    path: str, *, last: Sequence[str], exclude: Sequence[str], use: FolderLock | None
) -> Iterator[RemoteMirror]:
    """Yields a temporary folder with the content of a remote one; see `mirror.working_folder`."""
    with scratch_folder() as local:
        try:
            mirror = RemoteMirror(path, local, last=last, exclude=exclude, use=use)
            mirror.pull()
            yield mirror
        except CocoflowError as error:  # the temporary folder is gone when the user reads of it
            error.args = tuple(str(part).replace(str(local), path.rstrip("/")) for part in error.args)
            raise
