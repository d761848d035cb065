"""Downloads files, and unpacks archives, with integrity and safety checks."""

import base64
import contextlib
import functools
import hashlib
import http.client
import logging
import lzma
import os
import shutil
import stat
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from schemas.errors import DataError
from schemas.progress import log_phase

OFFLINE_VARIABLE = "COCOFLOW_OFFLINE"

_TIMEOUT = 15.0  # seconds to connect, and between two packets
_BLOCK = 1 << 20
_LOG_SECONDS = 1.0
_ATTEMPTS = 5  # to go on after a lost connection, if some bytes arrived
MAX_UNPACKED = 8 << 30  # bytes; far more than any published detector
MAX_MEMBERS = 1_000_000
# Makes Cloud Storage send the stored bytes, which its checksum refers to, without decompressing them.
_HEADERS = {"Accept-Encoding": "gzip"}

_LOGGER = logging.getLogger("cocoflow.web")


def is_offline() -> bool:
    """Returns whether the environment forbids downloads."""
    return os.environ.get(OFFLINE_VARIABLE, "") not in ("", "0")


class UnreachableError(DataError):
    """No connection to a server; further downloads would fail, too."""


class Fetched(NamedTuple):
    """A downloaded file.

    sha256: of its content, as hexadecimal digits.
    etag: the server's name of this version; "": it gave none.
    """

    sha256: str
    etag: str


def shown(url: str) -> str:
    """Returns an address for messages: without a query, which may hold a key, a user and a fragment."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def fetch(url: str, file: Path) -> str:
    """Downloads a file; returns its SHA-256. See `fetch_version`."""
    fetched = fetch_version(url, file)
    assert fetched is not None
    return fetched.sha256


def fetch_version(url: str, file: Path, *, known: str = "") -> Fetched | None:
    """Downloads a file; logs the progress.

    What arrived before a lost connection stays beside `file`, and is taken up again if the server still has the same
    version.

    Args:
        url: HTTP or HTTPS URL; messages have it as `shown`.
        file: local file to write.
        known: `etag` of a version that need not be sent again; "": none.

    Returns:
        None: the server still has the version `known`.

    Raises:
        UnreachableError: no connection, or it was lost.
        DataError: the server refuses, redirects to another scheme, or the content does not match its length or MD5.
    """
    partial, version = file.with_name(f"{file.name}.part"), file.with_name(f"{file.name}.etag")
    for attempt in range(1, _ATTEMPTS + 1):
        before = partial.stat().st_size if version.exists() and partial.exists() else 0
        etag = version.read_text() if before else ""
        response = _open(url, _headers(known, etag, before))
        if response is None:
            return None
        with response:
            etag = response.headers.get("ETag") or ""
            version.write_text(etag) if etag else version.unlink(missing_ok=True)
            start = before if response.status == http.client.PARTIAL_CONTENT else 0
            try:
                digest = _receive(response, partial, url, start)
                break
            except UnreachableError:
                if attempt == _ATTEMPTS or not etag or partial.stat().st_size <= start:
                    raise
    partial.replace(file)
    version.unlink(missing_ok=True)
    return Fetched(digest, etag)


def _headers(known: str, etag: str, arrived: int) -> dict[str, str]:
    headers = dict(_HEADERS)
    if known:
        headers["If-None-Match"] = known
    if etag:
        headers |= {"Range": f"bytes={arrived}-", "If-Range": etag}
    return headers


def _receive(response: http.client.HTTPResponse, partial: Path, url: str, start: int) -> str:
    """Writes what arrives after `start` bytes; returns the SHA-256 of the whole."""
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    length = start + int(response.headers.get("Content-Length") or 0)
    known = "Content-Length" in response.headers
    size, logged = 0, 0.0
    with partial.open("r+b" if start else "wb") as output:
        while size < start and (block := output.read(min(_BLOCK, start - size))):
            sha256.update(block)
            md5.update(block)
            size += len(block)
        for block in _blocks(response, url):
            output.write(block)
            sha256.update(block)
            md5.update(block)
            size += len(block)
            if time.monotonic() - logged > _LOG_SECONDS:
                logged = time.monotonic()
                of = f" of {length / 1e6:.0f}" if known else ""
                log_phase(_LOGGER, f"fetching {shown(url)}: {size / 1e6:.0f}{of} MB")
    if known and size != length:
        raise UnreachableError(f"{shown(url)}: the connection ended after {size} of {length} bytes. Rerun the command.")
    expected = _md5(response)
    if expected is not None and not start and md5.digest() != expected:
        raise DataError(f"{shown(url)}: damaged in transfer: its MD5 differs from the server's. Rerun the command.")
    return sha256.hexdigest()


class _NoOtherScheme(urllib.request.HTTPRedirectHandler):
    """Follows redirects to HTTPS, or within one scheme: never to a file, nor from HTTPS to HTTP."""

    def redirect_request(self, req: urllib.request.Request, *rest: Any) -> urllib.request.Request | None:
        target = urllib.parse.urlsplit(rest[-1]).scheme
        if target not in ("https", req.type):
            raise DataError(f"{shown(req.full_url)}: redirects to {target}://, which is refused. Check the address.")
        return super().redirect_request(req, *rest)


def _open(url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse | None:
    """Returns the response; None: the server has no other version."""
    request = urllib.request.Request(url, headers=dict(headers))
    try:
        response = urllib.request.build_opener(_NoOtherScheme).open(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.client.NOT_MODIFIED:
            return None
        reason = http.client.responses.get(error.code, "")  # its own may have the address of a redirect, with a key
        raise DataError(f"{shown(url)}: the server responded {error.code} {reason}.") from None
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(f"{shown(url)}: no connection: {getattr(error, 'reason', error)}.") from None
    assert isinstance(response, http.client.HTTPResponse)
    return response


def _blocks(response: http.client.HTTPResponse, url: str) -> Iterator[bytes]:
    try:
        while block := response.read(_BLOCK):
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(f"{shown(url)}: the connection was lost: {error}. Rerun the command.") from None


def _md5(response: http.client.HTTPResponse) -> bytes | None:
    """Returns the MD5 in Cloud Storage's headers; None: there is none."""
    hashes = ",".join(response.headers.get_all("x-goog-hash") or []).split(",")
    encoded = next((one.strip().removeprefix("md5=") for one in hashes if one.strip().startswith("md5=")), None)
    return None if encoded is None else base64.b64decode(encoded)


class _Member(NamedTuple):
    """A member of an archive: `size` in bytes as declared; `open` is None for a folder, `kind` "" for a file or one."""

    name: str
    size: int
    kind: str
    open: Callable[[], IO[bytes]] | None


def is_archive(name: str) -> bool:
    """Returns whether a path or address has the suffix of an archive."""
    return urllib.parse.urlsplit(name).path.lower().endswith((".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"))


def unpack(archive: Path, folder: Path, *, origin: str, largest: int = MAX_UNPACKED) -> None:
    """Unpacks a ZIP or tar archive of plain files.

    Args:
        archive: local file, compressed or not.
        folder: local folder to create.
        origin: origin of the archive, for messages.
        largest: max bytes of all members.

    Raises:
        DataError: not such an archive, or a member is a link or a device, has a path outside of the
            folder, or they are too large or too many.
    """
    folder.mkdir()
    try:
        with contextlib.closing(_zip(archive) if zipfile.is_zipfile(archive) else _tar(archive)) as members:
            size = 0
            for number, member in enumerate(members, start=1):
                size += member.size
                _require_harmless(member, origin, size=size, largest=largest, number=number)
                # Not `extract`: its argument `filter` is missing before Python 3.11.4, and demanded by later ones.
                path = folder / member.name
                if member.open is None:
                    path.mkdir(parents=True, exist_ok=True)
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                with member.open() as content, path.open("wb") as output:
                    shutil.copyfileobj(content, output)
    except _DAMAGED as error:
        raise DataError(f"{origin}: not a ZIP or tar archive, or damaged: {error}. Download it again.") from None


_DAMAGED = (
    tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, NotImplementedError, RuntimeError,
    FileExistsError, IsADirectoryError, NotADirectoryError,
)  # fmt: skip


def _tar(archive: Path) -> Generator[_Member, None, None]:
    with tarfile.open(archive) as members:
        for member in members:
            kind = "" if member.isreg() or member.isdir() else "is neither a file nor a folder"
            opened = functools.partial(members.extractfile, member) if member.isreg() else None
            yield _Member(member.name, member.size, kind, opened)  # type: ignore[arg-type]


def _zip(archive: Path) -> Generator[_Member, None, None]:
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            mode = stat.S_IFMT(member.external_attr >> 16)
            kind = "" if mode in (0, stat.S_IFREG, stat.S_IFDIR) else "is neither a file nor a folder"
            opened = None if member.is_dir() else functools.partial(members.open, member)
            yield _Member(member.filename, member.file_size, kind, opened)


def _require_harmless(member: _Member, origin: str, *, size: int, largest: int, number: int) -> None:
    path = PurePosixPath(member.name.replace("\\", "/"))
    reason = member.kind
    if path.is_absolute() or ".." in path.parts or "\0" in member.name:
        reason = "is outside of the destination folder"
    elif size > largest:
        reason = f"makes it larger than {largest / (1 << 30):.3g} GiB"
    elif number > MAX_MEMBERS:
        reason = f"is one of more than {MAX_MEMBERS:,}"
    if reason:
        raise DataError(f"{origin}: refused: its member {member.name!r:.200} {reason}. Nothing was unpacked.")
