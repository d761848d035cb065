"""Downloads and unpacks an archive, with integrity and safety checks."""

import base64
import hashlib
import http.client
import logging
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from schemas.errors import DataError

OFFLINE_VARIABLE = "COCOFLOW_OFFLINE"

_TIMEOUT = 15.0  # seconds to connect, and between two packets
_BLOCK = 1 << 20
_LOG_SECONDS = 5.0
_MAX_UNPACKED = 8 << 30  # bytes; far more than any published detector
# Makes Cloud Storage send the stored bytes, which its checksum refers to, without decompressing them.
_HEADERS = {"Accept-Encoding": "gzip"}

_LOGGER = logging.getLogger("cocoflow.weights")


def is_offline() -> bool:
    """Returns whether the environment forbids downloads."""
    return os.environ.get(OFFLINE_VARIABLE, "") not in ("", "0")


class UnreachableError(DataError):
    """No connection to a server; further downloads would fail, too."""


def fetch(url: str, file: Path) -> str:
    """Downloads a file; logs the progress every few seconds.

    Args:
        url: HTTP or HTTPS URL.
        file: local file to write.

    Returns:
        SHA-256 of the content, as hexadecimal digits.

    Raises:
        UnreachableError: no connection, or it was lost.
        DataError: the server refuses, or the content does not match its length or MD5.
    """
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    size, logged = 0, time.monotonic()
    with _open(url) as response, file.open("wb") as output:
        length = int(response.headers.get("Content-Length") or 0)
        _LOGGER.info("fetching %s%s", url, f", {length / 1e6:.0f} MB" if length else "")
        for block in _blocks(response, url):
            output.write(block)
            sha256.update(block)
            md5.update(block)
            size += len(block)
            if time.monotonic() - logged > _LOG_SECONDS:
                logged = time.monotonic()
                _LOGGER.info("fetched %.0f%s MB", size / 1e6, f" of {length / 1e6:.0f}" if length else "")
        expected = _md5(response)
    if length and size != length:
        raise UnreachableError(f"{url}: the connection ended after {size} of {length} bytes. Rerun the command.")
    if expected is not None and md5.digest() != expected:
        raise DataError(f"{url}: damaged in transfer: its MD5 differs from the server's. Rerun the command.")
    return sha256.hexdigest()


def _open(url: str) -> http.client.HTTPResponse:
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=_HEADERS), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise DataError(f"{url}: the server responded {error.code} {error.reason}.") from None
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(f"{url}: no connection: {getattr(error, 'reason', error)}.") from None
    assert isinstance(response, http.client.HTTPResponse)
    return response


def _blocks(response: http.client.HTTPResponse, url: str) -> Iterator[bytes]:
    try:
        while block := response.read(_BLOCK):
            yield block
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(f"{url}: the connection was lost: {error}. Rerun the command.") from None


def _md5(response: http.client.HTTPResponse) -> bytes | None:
    """Returns the MD5 in Cloud Storage's headers; None: there is none."""
    hashes = ",".join(response.headers.get_all("x-goog-hash") or []).split(",")
    encoded = next((one.strip().removeprefix("md5=") for one in hashes if one.strip().startswith("md5=")), None)
    return None if encoded is None else base64.b64decode(encoded)


def unpack(archive: Path, folder: Path, *, origin: str) -> None:
    """Unpacks a tar archive of plain files.

    Args:
        archive: local file, compressed or not.
        folder: local folder to create.
        origin: origin of the archive, for messages.

    Raises:
        DataError: not such an archive, or a member is a link or a device, has a path outside of the
            folder, or is too large.
    """
    folder.mkdir()
    try:
        with tarfile.open(archive) as members:
            size = 0
            for member in members:
                size += member.size
                _require_harmless(member, size, origin)
                # Not `extract`: its argument `filter` is missing before Python 3.11.4, and demanded by later ones.
                path = folder / member.name
                if content := members.extractfile(member):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    with content, path.open("wb") as output:
                        shutil.copyfileobj(content, output)
                else:
                    path.mkdir(parents=True, exist_ok=True)
    except (tarfile.TarError, EOFError, zlib.error, FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        raise DataError(f"{origin}: not a tar archive, or damaged: {error}. Download it again.") from None


def _require_harmless(member: tarfile.TarInfo, size: int, origin: str) -> None:
    path = PurePosixPath(member.name)
    if not (member.isreg() or member.isdir()):
        reason = "is neither a file nor a folder"
    elif path.is_absolute() or ".." in path.parts:
        reason = "is outside of the destination folder"
    elif size > _MAX_UNPACKED:
        reason = f"makes it larger than {_MAX_UNPACKED >> 30} GiB"
    else:
        return
    raise DataError(f"{origin}: refused: its member {member.name!r:.200} {reason}. Nothing was unpacked.")
