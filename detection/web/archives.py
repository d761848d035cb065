"""Data sets that are archives, local, on Cloud Storage or at an address of the web: unpacked once, in a cache.

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

from detection.storage import files, paths
from detection.storage.atomic import new_directory, write_json
from detection.storage.checksums import sha256
from detection.storage.file_system import explain_errors
from detection.storage.files import local_copy
from detection.storage.json_files import read_json
from detection.storage.temporary import CACHE_VARIABLE
from detection.web import downloads
from schemas.errors import ConfigError, DataError
from schemas.progress import log_phase

_STATE = "archive.json"
_RATIO, _LEAST = 100, 1 << 30  # an archive may grow by this factor, and by as many bytes more
_LOGGER = logging.getLogger("cocoflow.web")


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
    cache = Path(os.environ.get(CACHE_VARIABLE) or Path("~/.cache/cocoflow").expanduser()).absolute() / "data"
    entry = cache / f"{label}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    with _hold(entry):
        cached = _read_state(entry)
        if cached and wanted and demand in cached["kept"]:
            return cached["folder"]
        new = _fetch(source, name, entry, cached) if is_address(source) else _find(source, name, cached)
        if new is None:
            assert cached is not None
            _require(name, of, wanted, cached["sha256"] if of == "sha256" else content_digest(cached["folder"], of))
            return cached["folder"]
        archive, digest, version = new
        if of == "sha256":
            _require(name, of, wanted, digest)
        if cached and cached["sha256"] != digest:
            _LOGGER.warning("%s has changed: SHA-256 %s, before %s", name, digest, cached["sha256"])
        folder = entry / digest[:16]
        if not folder.is_dir():
            log_phase(_LOGGER, f"unpacking {name}")
            largest = min(_RATIO * archive.stat().st_size + _LEAST, shutil.disk_usage(entry).free)
            with new_directory(folder) as unfinished:
                downloads.unpack(archive, unfinished / "data", origin=name, largest=largest)
                if of != "sha256":
                    _require(name, of, wanted, content_digest(unfinished / "data", of))
        kept = [f"sha256={digest}", *([demand] if wanted else [])]
        state = {"address": name, "folder": str(folder / "data"), "kept": kept, "sha256": digest, "etag": version}
        write_json(entry / _STATE, state)
        if is_address(source):
            archive.unlink()
        for other in entry.iterdir():
            if other.is_dir() and other != folder and not other.name.startswith("."):
                files.remove_folder(other)
        return str(folder / "data")


def _require_safe(source: str, name: str) -> None:
    parts = urllib.parse.urlsplit(source)
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise ConfigError(f"{name}: http:// is not safe from changes on the way. Write https://.")


@contextlib.contextmanager
def _hold(entry: Path) -> Iterator[None]:
    """Waits until no other process of this machine uses the folder."""
    with explain_errors(entry, "make the folder"):
        entry.mkdir(parents=True, exist_ok=True)
        lock = os.open(entry / ".lock", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _read_state(entry: Path) -> dict[str, Any] | None:
    """Reads which version the cache has; None: it has no complete one."""
    with contextlib.suppress(DataError, KeyError, TypeError):
        state = read_json(entry / _STATE)
        if Path(state["folder"]).is_dir() and state["sha256"]:
            return dict(state)
    return None


def content_digest(root: str | Path, folder: str) -> str:
    """Returns the SHA-256 of lines `sha256 path`, as of `sha256sum`, of the files of a folder, wherever it lies.

    Archives that a service packs anew for each request have another SHA-256 each time; their files have not.
    """
    lines = []
    for path in files.walk_files(root):
        _, found, below = f"/{path}".partition(f"/{folder}/")
        if found:
            lines.append(f"{sha256(Path(root, path))} {below}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def _require(name: str, of: str, wanted: str, found: str) -> None:
    if wanted and wanted != found:
        what = "its SHA-256" if of == "sha256" else f"the SHA-256 of {of}/ in it"
        raise DataError(f"{name}: {what} is {found}, not {wanted}. Check the archive, or correct the digest.")


def _fetch(source: str, name: str, entry: Path, cached: dict[str, Any] | None) -> tuple[Path, str, str] | None:
    """Fetches an archive; returns it with its SHA-256 and version.

    None: the cache has the server's version, or the only one that can be had.
    """
    known = cached["etag"] if cached else ""
    if cached and (not known or downloads.is_offline()):
        return None
    if downloads.is_offline():
        raise DataError(f"{name}: not in the cache {entry.parent}, and {downloads.OFFLINE_VARIABLE} forbids downloads.")
    archive = entry / "archive"
    try:
        fetched = downloads.fetch_version(source, archive, known=known)
    except downloads.UnreachableError as error:
        if cached is None:
            raise
        _LOGGER.warning("%s The copy in the cache is used.", error)
        return None
    return None if fetched is None else (archive, *fetched)


def _find(source: str, name: str, cached: dict[str, Any] | None) -> tuple[Path, str, str] | None:
    """Finds a local or remote archive; returns a local copy as `_fetch` does. None: the cache has this version."""
    state = files.find_file(source)
    if state is None:
        raise DataError(f"{name}: no such archive. Check --data or data.root.")
    version = f"{state.size} {state.version}"
    if cached and cached["etag"] == version:
        return None
    archive = local_copy(source)
    return archive, sha256(archive), version
