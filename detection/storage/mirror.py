"""Working folders: a local folder that follows a remote one, for programs that write in place."""

import contextlib
import fnmatch
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from detection.storage.gcs import objects
from detection.storage.gcs.client import AbsentError, ConflictError, in_parallel
from detection.storage.lock import Use
from detection.storage.paths import is_remote, join, relative
from detection.storage.processes import LOCK_FILE
from schemas.errors import CocoflowError, DataError

_ATTEMPTS = 5
_NEVER = (LOCK_FILE, "*.tmp")  # names, at any depth, that are never mirrored


@dataclass(frozen=True)
class _Known:
    """A file that is the same on both sides.

    Attributes:
        size: bytes.
        changed: time of the local file's last change in ns.
        stored: the object.
    """

    size: int
    changed: int
    stored: objects.Stored


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
        self._known: dict[str, _Known] = {}
        self._attempted: dict[str, set[str]] = {}  # name -> checksums of uploads whose end is not known
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
        raise DataError(f"{self.path}: changes all the time. Wait until its writer has ended, and repeat the command.")

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
            present = {name: self.local / name for name in self._local_names()}
            changed = [name for name, file in present.items() if self._has_changed(name, file)]
            ranks = {name: self._rank(name) for name in changed}
            in_parallel(self._upload, [name for name in changed if ranks[name] < 0])
            for name in sorted((name for name in changed if ranks[name] >= 0), key=lambda name: (ranks[name], name)):
                self._upload(name)
            gone = sorted(set(self._known) - set(present), key=lambda name: (-self._rank(name), name))
            for name in gone:
                objects.delete(self._known[name].stored.path, generation=self._known[name].stored.generation)
                del self._known[name]
            for name in sorted(set(self._attempted) - set(present)):
                stored = objects.find(join(self.path, name))
                if stored is not None and stored.crc32c in self._attempted[name]:
                    objects.delete(stored.path, generation=stored.generation)
                del self._attempted[name]

    def require_held(self) -> None:
        """Checks that this process still holds the folder, if it did; see `lock.Use`.

        Raises:
            CocoflowError: another process holds it by now.
            DataError: the service cannot be asked.
        """
        if self._use is not None:
            self._use.require_held()

    def _pull(self) -> None:
        listed = {relative(one.path, self.path): one for one in objects.list_tree(str(self.path))}
        listed = {name: one for name, one in listed.items() if not self._is_excluded(name)}
        wanted = [
            (name, one)
            for name, one in listed.items()
            if name not in self._known
            or self._known[name].stored.generation != one.generation
            or self._has_changed(name, self.local / name)
        ]
        in_parallel(lambda job: self._download(*job), wanted)
        for name in set(self._known) - set(listed):
            (self.local / name).unlink(missing_ok=True)
            del self._known[name]

    def _download(self, name: str, stored: objects.Stored) -> None:
        file = self.local / name
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_name(f".{file.name}.tmp")
        try:
            objects.download(stored, unfinished)
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)
        self._note(name, file, stored)

    def _upload(self, name: str) -> None:
        file = self.local / name
        before = file.stat()
        known = self._known.get(name)
        path = join(self.path, name)
        try:
            stored = objects.write(path, file, generation=known.stored.generation if known else 0)
        except ConflictError:
            current = objects.find(path)
            if current is None or current.crc32c not in self._attempted.get(name, ()):
                raise
            stored = objects.write(path, file, generation=current.generation)
        except DataError:
            # It may have been written all the same, and only the answer got lost.
            self._attempted.setdefault(name, set()).add(objects.crc32c(file))
            raise
        self._attempted.pop(name, None)
        self._known[name] = _Known(before.st_size, before.st_mtime_ns, stored)

    def _note(self, name: str, file: Path, stored: objects.Stored) -> None:
        status = file.stat()
        self._known[name] = _Known(status.st_size, status.st_mtime_ns, stored)

    def _has_changed(self, name: str, file: Path) -> bool:
        known = self._known.get(name)
        if known is None or not file.exists():
            return True
        status = file.stat()
        return (status.st_size, status.st_mtime_ns) != (known.size, known.changed)

    def _local_names(self) -> list[str]:
        names = (file.relative_to(self.local).as_posix() for file in self.local.rglob("*") if file.is_file())
        return sorted(name for name in names if not self._is_excluded(name))

    def _rank(self, name: str) -> int:
        """The place in the order of the files that come last; -1: it does not matter."""
        matches = [rank for rank, pattern in enumerate(self._last) if _matches(name, pattern)]
        return max(matches, default=-1)

    def _is_excluded(self, name: str) -> bool:
        return any(_matches(name, pattern) for pattern in self._exclude)


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
        use: of the folder, which every `push` requires to be held still; None: nobody holds it.

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
