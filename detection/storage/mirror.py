"""Working folders: a local folder that follows a remote one, for programs that write in place."""

import contextlib
import fnmatch
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from detection.storage.gcs import folders, objects
from detection.storage.gcs.client import AbsentError, ConflictError, in_parallel
from detection.storage.lock import Use
from detection.storage.paths import is_remote, join, relative
from detection.storage.processes import LOCK_FILE
from schemas.errors import CocoflowError, DataError

_ATTEMPTS = 5
_NEVER = (LOCK_FILE, "*.tmp")  # names, at any depth, that are never mirrored


class Mirror:
    """A folder to work in, and where it belongs.

    If the path is local, the folder is the path itself, and `pull` and `push` do nothing.

    Attributes:
        path: where the folder belongs.
        local: where to read and write.
    """

    def __init__(
        self, path: str | Path, local: Path, *, last: Sequence[str], exclude: Sequence[str], use: Use | None = None
    ) -> None:
        self.path = path
        self.local = local
        self._use = use
        self._last = last
        self._exclude = (*exclude, *_NEVER)
        # Files that are the same on both sides: the local file's size and time of change in ns, and the object.
        self._known: dict[str, tuple[tuple[int, int] | None, objects.Stored]] = {}
        self._failed = False
        self._lock = threading.Lock()

    def pull(self) -> None:
        """Makes the local folder's files those of the remote one, as of one moment.

        Local files that were never pushed stay, unless the remote folder has files of their names.

        Raises:
            DataError: the remote folder cannot be read, or changes all the time.
        """
        if not is_remote(self.path):
            return
        with self._lock:
            for _ in range(_ATTEMPTS):
                with contextlib.suppress(AbsentError, ConflictError):  # written after it was listed
                    self._pull()
                    return
        raise DataError(f"{self.path}: is being written. Wait for the writer to finish, then rerun.")

    def push(self) -> None:
        """Uploads the files that changed since the last `pull` or `push`, and deletes what is gone.

        Files come first, then those of `last` in order, so that what they name is there; deletions
        come at the end.  Fails in between: what was done stays done, and the next `push` does the rest.

        Raises:
            ConflictError: another process wrote or removed one of these objects.
            CocoflowError: another process holds the folder by now.
            DataError: the remote folder cannot be written.
        """
        if not is_remote(self.path):
            return
        with self._lock:
            self.require_held()
            if self._failed:
                self._look_again()
            self._failed = True
            self._push()
            self._failed = False

    def push_folder(self, name: str, *, last: Sequence[str]) -> None:
        """Uploads a folder that `push` leaves out, over an old one, so that it appears complete.

        Args:
            name: relative path of the folder.
            last: see `atomic.new_directory`.

        Raises:
            DataError: the remote folder cannot be written.
        """
        if is_remote(self.path):
            folders.upload(self.local / name, join(self.path, name), last=last, replace=True)

    def require_held(self) -> None:
        """Checks that this process still holds the folder, if it did; see `lock.Use`.

        Raises:
            CocoflowError: another process holds it by now.
            DataError: the service cannot be asked.
        """
        if self._use is not None:
            self._use.require_held()

    def _look_again(self) -> None:
        """Lists the remote folder after a failed push: a write may have been done, and only its answer got lost."""
        known, unknown = self._known, (None, None)
        self._known = {
            name: known[name] if known.get(name, unknown)[1] == stored else (None, stored)
            for name, stored in self._listed().items()
        }

    def _push(self) -> None:
        present = self._local_names()
        changed = [(self._rank(name), name) for name in present if self._has_changed(name)]
        in_parallel(self._upload, [name for rank, name in changed if rank < 0])
        for _, name in sorted(one for one in changed if one[0] >= 0):
            self._upload(name)
        for name in sorted(set(self._known) - set(present), key=lambda name: (-self._rank(name), name)):
            stored = self._known[name][1]
            objects.delete(stored.path, generation=stored.generation)
            del self._known[name]

    def _pull(self) -> None:
        listed = self._listed()
        wanted = [
            (name, stored)
            for name, stored in listed.items()
            if name not in self._known or self._known[name][1] != stored or self._has_changed(name)
        ]
        in_parallel(lambda job: self._download(*job), wanted)
        for name in set(self._known) - set(listed):
            (self.local / name).unlink(missing_ok=True)
            del self._known[name]

    def _listed(self) -> dict[str, objects.Stored]:
        listed = {relative(one.path, self.path): one for one in objects.list_tree(str(self.path))}
        return {name: one for name, one in listed.items() if not self._is_excluded(name)}

    def _download(self, name: str, stored: objects.Stored) -> None:
        file = self.local / name
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f".{file.name}.tmp")
        try:
            objects.download(stored, unfinished)
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)
        self._known[name] = (_facts(file), stored)

    def _upload(self, name: str) -> None:
        file = self.local / name
        facts = _facts(file)
        generation = self._known[name][1].generation if name in self._known else 0
        self._known[name] = (facts, objects.write(join(self.path, name), file, generation=generation))

    def _has_changed(self, name: str) -> bool:
        file = self.local / name
        return name not in self._known or not file.exists() or self._known[name][0] != _facts(file)

    def _local_names(self) -> list[str]:
        names = (file.relative_to(self.local).as_posix() for file in self.local.rglob("*") if file.is_file())
        return sorted(name for name in names if not self._is_excluded(name))

    def _rank(self, name: str) -> int:
        """The place in the order of the files that come last; -1: it does not matter."""
        matches = [rank for rank, pattern in enumerate(self._last) if _matches(name, pattern)]
        return max(matches, default=-1)

    def _is_excluded(self, name: str) -> bool:
        return any(_matches(name, pattern) for pattern in self._exclude)


def _facts(file: Path) -> tuple[int, int]:
    """Size of a local file, and time of its last change in ns."""
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches a relative path or its last name."""
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name.rsplit("/", maxsplit=1)[-1], pattern)


@contextlib.contextmanager
def working_folder(
    path: str | Path, *, last: Sequence[str] = (), exclude: Sequence[str] = (), use: Use | None = None
) -> Iterator[Mirror]:
    """Yields a folder to work in, with the content of `path`; the block pushes what it wrote.

    Remote: a temporary folder, which is removed when the block ends, without a `push`: the
    block decides what is fit to be seen.  A `CocoflowError` of the block names `path` instead of it.

    Args:
        path: local or remote folder; a remote one need not exist, a local one is made.
        last: patterns of relative paths or names of files that name others, such as `*.index` and
            `checkpoint`; they are uploaded after what they name, in this order.
        exclude: patterns of files that stay here.
        use: lock of the folder, checked by every `push`; None: nobody holds it.

    Raises:
        DataError: see `Mirror.pull`.
    """
    if not is_remote(path):
        Path(path).mkdir(parents=True, exist_ok=True)
        yield Mirror(path, Path(path), last=last, exclude=exclude, use=use)
        return
    local = Path(tempfile.mkdtemp(prefix="cocoflow-work-"))
    try:
        mirror = Mirror(path, local, last=last, exclude=exclude, use=use)
        mirror.pull()
        yield mirror
    except CocoflowError as error:  # the temporary folder is gone when the user reads of it
        error.args = tuple(str(part).replace(str(local), str(path).rstrip("/")) for part in error.args)
        raise
    finally:
        shutil.rmtree(local, ignore_errors=True)
