"""Data sets that are archives, here, on Cloud Storage or at an address of the web: unpacked once, in a cache.

The cache is `$COCOFLOW_CACHE`, or `~/.cache/cocoflow`.  A folder of it has the name of the archive, and holds
`archive.json` and a folder per version, named by the archive's SHA-256; `archive.json` names the current one.  Each
appears complete or not at all.  Nothing that is written or said has the query of an address, which may hold a key.
"""

import contextlib
import fcntl
import hashlib
import logging
import os
import re
import shutil
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detection.storage import downloads, files, paths
from detection.storage.atomic import new_directory, write_json
from detection.storage.file_system import explain_errors
from detection.storage.files import local_copy
from detection.storage.json_files import read_json
from detection.storage.temporary import CACHE_VARIABLE
from schemas.errors import ConfigError, DataError
from schemas.progress import log_phase

_STATE = "archive.json"
_RATIO, _LEAST = 100, 1 << 30  # an archive may grow by this factor, and by as many bytes more
_LOGGER = logging.getLogger("cocoflow.data")


def is_address(root: str) -> bool:
    """Returns whether a data set is named by an address of the web."""
    return urllib.parse.urlsplit(root).scheme in ("http", "https")


def is_packed(root: str) -> bool:
    """Returns whether a data set is an archive, or an address of one."""
    return is_address(root) or (downloads.is_archive(root) and not files.is_dir(root))


def unpacked(root: str) -> str:
    """Returns the local folder with the content of an archive; fetches and unpacks it if need be.

    Args:
        root: a ZIP or tar file, local or remote, or the address of one.  `#sha256=HEX` at its end demands this archive,
            `#FOLDER=HEX` that the files of this folder in it have this `content_digest`.

    Raises:
        ConfigError: an address without HTTPS.
        DataError: there is no such archive, it has another SHA-256, or it cannot be fetched or unpacked.
    """
    source, _, demand = root.partition("#")
    of, _, wanted = demand.partition("=")
    name = downloads.shown(source) if is_address(source) else paths.absolute(source)
    _require_safe(source, name)
    label = re.sub(r"[^\w.-]+", "_", urllib.parse.urlsplit(name).path.strip("/"))[-60:]
    place = _cache() / f"{label}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    with _alone(place):
        origin = _origin(place)
        if origin and wanted and demand in origin["kept"]:
            return origin["folder"]
        new = _fetched(source, name, place, origin) if is_address(source) else _found(source, name, origin)
        if new is None:
            assert origin is not None
            _require(name, of, wanted, origin["sha256"] if of == "sha256" else content_digest(origin["folder"], of))
            return origin["folder"]
        archive, state = new
        if of == "sha256":
            _require(name, of, wanted, state["sha256"])
        if origin and origin["sha256"] != state["sha256"]:
            _LOGGER.warning("%s has changed: SHA-256 %s, before %s", name, state["sha256"], origin["sha256"])
        folder = place / state["sha256"][:16]
        if not folder.is_dir():
            log_phase(_LOGGER, f"unpacking {name}")
            largest = min(_RATIO * archive.stat().st_size + _LEAST, shutil.disk_usage(place).free)
            with new_directory(folder) as unfinished:
                downloads.unpack(archive, unfinished / "data", origin=name, largest=largest)
                if of != "sha256":
                    _require(name, of, wanted, content_digest(unfinished / "data", of))
        kept = [f"sha256={state['sha256']}", *([demand] if wanted else [])]
        write_json(place / _STATE, {"address": name, "folder": str(folder / "data"), "kept": kept, **state})
        if is_address(source):
            archive.unlink()
        for other in place.iterdir():
            if other.is_dir() and other != folder and not other.name.startswith("."):
                files.remove_folder(other)
        return str(folder / "data")


def _require_safe(source: str, name: str) -> None:
    parts = urllib.parse.urlsplit(source)
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise ConfigError(f"{name}: http:// is not safe from changes on the way. Write https://.")


def _cache() -> Path:
    return Path(os.environ.get(CACHE_VARIABLE) or Path("~/.cache/cocoflow").expanduser()).absolute() / "data"


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Waits until no other process of this machine uses the folder."""
    with explain_errors(place, "make the folder"):
        place.mkdir(parents=True, exist_ok=True)
        lock = os.open(place / ".lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _origin(place: Path) -> dict[str, Any] | None:
    """Reads which version the cache has; None: none that is complete."""
    with contextlib.suppress(DataError, KeyError, TypeError):
        origin = read_json(place / _STATE)
        if Path(origin["folder"]).is_dir() and origin["sha256"]:
            return dict(origin)
    return None


def content_digest(root: str | Path, folder: str) -> str:
    """Returns the SHA-256 of lines `sha256 path`, as of `sha256sum`, of the files of a folder, wherever it lies.

    Archives that a service packs anew for each request have another SHA-256 each time; their files have not.
    """
    lines = []
    for path in files.walk_files(root):
        _, found, below = f"/{path}".partition(f"/{folder}/")
        if found:
            lines.append(f"{hashlib.sha256(Path(root, path).read_bytes()).hexdigest()} {below}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def _require(name: str, of: str, wanted: str, found: str) -> None:
    if wanted and wanted != found:
        what = "its SHA-256" if of == "sha256" else f"the SHA-256 of {of}/ in it"
        raise DataError(f"{name}: {what} is {found}, not {wanted}. Check the archive, or correct the digest.")


def _fetched(source: str, name: str, place: Path, origin: dict[str, Any] | None) -> tuple[Path, dict[str, Any]] | None:
    """Fetches an archive; None: the cache has what is there, or all that can be had."""
    known = origin["etag"] if origin else ""
    if origin and (not known or downloads.is_offline()):
        return None
    if downloads.is_offline():
        raise DataError(f"{name}: not in the cache {place.parent}, and {downloads.OFFLINE_VARIABLE} forbids downloads.")
    archive = place / "archive"
    try:
        fetched = downloads.fetch_version(source, archive, known=known)
    except downloads.UnreachableError as error:
        if origin is None:
            raise
        _LOGGER.warning("%s The copy in the cache is used.", error)
        return None
    return None if fetched is None else (archive, {"sha256": fetched.sha256, "etag": fetched.etag})


def _found(source: str, name: str, origin: dict[str, Any] | None) -> tuple[Path, dict[str, Any]] | None:
    """Finds an archive here or on Cloud Storage; None: the cache has this version of it."""
    state = files.find_file(source)
    if state is None:
        raise DataError(f"{name}: no such archive. Check --data or data.root.")
    version = f"{state.size} {state.version}"
    if origin and origin["etag"] == version:
        return None
    archive = local_copy(source)
    with archive.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    return archive, {"sha256": digest, "etag": version}
