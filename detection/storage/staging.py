"""Local copies of remote files and folders, for code that opens, maps or seeks in local files.

The copies lie in a cache that all processes of a machine share: `$COCOFLOW_CACHE`, or
`cocoflow-cache-UID` in the folder for temporary files.  A copy is of certain generations of its
objects, so that it never becomes outdated; a lock keeps it while a process that asked for it
lives.  Beyond `$COCOFLOW_CACHE_GB` (50), or when the disk is nearly full, the copies unused for longest go.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from detection.storage.atomic import explained, remove_leftovers, temporary_folder
from detection.storage.gcs import folders, objects
from detection.storage.gcs.client import AbsentError, ConflictError, absent, in_parallel
from detection.storage.paths import is_remote, name_of, relative
from schemas.errors import ConfigError, DataError

CACHE_VARIABLE = "COCOFLOW_CACHE"
CACHE_SIZE_VARIABLE = "COCOFLOW_CACHE_GB"
_DEFAULT_GB = 50.0
_SPARE_BYTES = 1 << 30  # of the disk that copies leave free
_ATTEMPTS = 5  # while somebody writes what is copied
_LIST = "files.json"  # of a copy: its name, and the sizes of its files
_CONTENT = "content"
_MAKING, _USING = ".making", ".using"  # suffixes of a copy's lock files

_in_use: dict[Path, int] = {}  # copy -> descriptor of its lock, which this process shares until its end


def local_copy(path: str | Path, *, complete: str | None = None, only: Sequence[str] = ()) -> Path:
    """Returns a local file or folder with the content of `path`, for reading only.

    Remote ones are downloaded, several files at a time, unless the cache has these very
    generations; checksums are compared.  The last name of the path stays.

    Args:
        path: file or folder.  A local one is returned as it is.
        complete: for a folder: the file that makes it whole, such as `saved_model.pb`, or
            `atomic.COMPLETE_MARKER`, without which a remote folder is refused; None: any folder will do.
        only: for a folder: patterns of the relative paths to copy, as of `fnmatch`; none: all.

    Raises:
        DataError: there is no such file or folder, or it is not complete, is written all the time,
            or cannot be read; or the cache has no space for it.
        ConfigError: see `cache_folder`.
    """
    if not is_remote(path):
        return Path(path)
    text = str(path).rstrip("/")
    for attempt in range(_ATTEMPTS):
        stored = _objects_of(text, complete)
        if only:
            stored = {name: one for name, one in stored.items() if any(fnmatchcase(name, pattern) for pattern in only)}
        try:
            return _cached(text, stored)
        except (AbsentError, ConflictError):  # written between the list and the download
            time.sleep(0.2 * 2**attempt)
    raise DataError(f"{path}: changes all the time. Wait until its writer has ended, and repeat the command.")


def cache_path() -> Path:
    """Returns the path of the copies' folder.

    Raises:
        ConfigError: it is remote.
    """
    named = os.environ.get(CACHE_VARIABLE, "")
    if is_remote(named):
        raise ConfigError(f"{CACHE_VARIABLE} {named}: the cache is for local copies. Set it to a local folder.")
    return Path(named or Path(tempfile.gettempdir(), _default_name()))


def _default_name() -> str:
    return f"cocoflow-cache-{os.getuid()}"


def cache_folder() -> Path:
    """Returns the folder of the copies; makes it.

    Raises:
        ConfigError: it cannot be made or belongs to another user.
    """
    folder = cache_path()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.name == _default_name() and folder.lstat().st_uid != os.getuid():
            raise ConfigError(f"{folder}: belongs to another user. Set {CACHE_VARIABLE} to a folder of yours.")
    except OSError as error:
        raise ConfigError(
            f"{CACHE_VARIABLE} {folder}: cannot make this folder: {error.strerror}. "
            "Set it to a folder you may write to, with space for remote data."
        ) from None
    return folder


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


def _cached(path: str, stored: dict[str, objects.Stored]) -> Path:
    """The copy of these objects; makes it if need be."""
    state = json.dumps([path, sorted((name, one.generation) for name, one in stored.items())])
    entry = cache_folder() / hashlib.sha256(state.encode()).hexdigest()[:32]
    copy = entry / _CONTENT / name_of(path)
    if entry in _in_use and _is_whole(entry):
        return copy
    with explained(entry), _locked(entry, _MAKING, fcntl.LOCK_EX):
        if not _is_whole(entry):
            _make(entry, name_of(path), stored)
        if entry not in _in_use:
            _in_use[entry] = _open_lock(entry, _USING)
            fcntl.flock(_in_use[entry], fcntl.LOCK_SH)
        os.utime(_in_use[entry])
    return copy


def _make(entry: Path, name: str, stored: dict[str, objects.Stored]) -> None:
    _make_room(entry, sum(one.size for one in stored.values()))
    shutil.rmtree(entry, ignore_errors=True)
    with temporary_folder(entry) as unfinished:
        target = unfinished / _CONTENT / name
        jobs = [(one, target / relative_path if relative_path else target) for relative_path, one in stored.items()]
        for folder in {file.parent for _, file in jobs} | ({target} if "" not in stored else set()):
            folder.mkdir(parents=True, exist_ok=True)
        in_parallel(lambda job: objects.download(*job), jobs)
        sizes = {relative_path: one.size for relative_path, one in stored.items()}
        (unfinished / _LIST).write_text(json.dumps({"name": name, "sizes": sizes}), encoding="utf-8")
        unfinished.rename(entry)


def _is_whole(entry: Path) -> bool:
    """Whether a copy is there with all its bytes: a crash of the machine may lose what was not flushed."""
    try:
        listed = json.loads((entry / _LIST).read_bytes())
        copy = entry / _CONTENT / listed["name"]
        return all((copy / name if name else copy).stat().st_size == size for name, size in listed["sizes"].items())
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return False


def _make_room(entry: Path, size: int) -> None:
    """Removes copies that no process uses, those unused for longest first, until `size` more bytes fit."""
    remove_leftovers(entry.parent)
    limit = _cache_bytes()
    copies = sorted((one for one in entry.parent.iterdir() if (one / _LIST).is_file()), key=_last_use)
    sizes = {copy: _size_of(copy) for copy in copies}
    for copy in copies:
        if sum(sizes.values()) + size <= limit and shutil.disk_usage(entry.parent).free > size + _SPARE_BYTES:
            return
        if copy != entry and _remove_unused(copy):
            sizes[copy] = 0
    if shutil.disk_usage(entry.parent).free < size:
        raise DataError(
            f"{entry.parent}: {size >> 20} MiB of remote data do not fit on this disk. "
            f"Free space there, or set {CACHE_VARIABLE} to a folder on a larger disk."
        )


def _remove_unused(copy: Path) -> bool:
    """Removes a copy that no process uses or makes; returns whether it did."""
    with contextlib.suppress(OSError):
        now = fcntl.LOCK_EX | fcntl.LOCK_NB
        with _locked(copy, _MAKING, now), _locked(copy, _USING, now):
            shutil.rmtree(copy, ignore_errors=True)
            return True
    return False


@contextlib.contextmanager
def _locked(entry: Path, suffix: str, operation: int) -> Iterator[None]:
    descriptor = _open_lock(entry, suffix)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


def _open_lock(entry: Path, suffix: str) -> int:
    return os.open(entry.with_suffix(suffix), os.O_RDWR | os.O_CREAT, 0o600)


def _cache_bytes() -> float:
    text = os.environ.get(CACHE_SIZE_VARIABLE, str(_DEFAULT_GB))
    try:
        return float(text) * 1e9
    except ValueError:
        raise ConfigError(f"{CACHE_SIZE_VARIABLE} {text}: not a number. Set it to gigabytes, such as 50.") from None


def _last_use(copy: Path) -> float:
    """When a process last asked for a copy, seconds since 1970."""
    with contextlib.suppress(OSError):
        return copy.with_suffix(_USING).stat().st_mtime
    return 0.0


def _size_of(folder: Path) -> int:
    with contextlib.suppress(OSError):
        return sum(Path(current, name).lstat().st_size for current, _, names in os.walk(folder) for name in names)
    return 0
