"""Objects of Google Cloud Storage: find, list, read, write, copy, delete.

Every function takes `gs://bucket/key` and retries what the service calls temporary.  A
write is retried although the answer to it may have been lost; writes with a generation
tell then by the object itself whose it is.
"""

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c

from detection.storage.gcs.client import (
    TIMEOUT,
    AbsentError,
    ConflictError,
    PastTheEndError,
    TooLargeError,
    client,
    explained,
    in_parallel,
    retry,
)
from detection.storage.paths import REMOTE_PREFIX, is_remote, split
from schemas.errors import DataError
from schemas.quoting import one_line

_COPY_BLOCK = 1 << 20
_KEY_BYTES = 1024
_FIELDS = "name,size,generation,crc32c,updated"


@dataclass(frozen=True)
class Stored:
    """One object.

    Attributes:
        path: `gs://bucket/key`.
        size: bytes.
        generation: number that every write changes, in ascending order.
        crc32c: checksum of the content in base64; "": the service did not tell.
        updated: time of the last write by the service's clock, seconds since 1970.
    """

    path: str
    size: int
    generation: int
    crc32c: str
    updated: float


def find(path: str) -> Stored | None:
    """Returns the object; None: there is none.

    Raises:
        DataError: the service cannot be asked; see `explained`.
    """
    try:
        blob = _blob(path)
        with explained(path):
            blob.reload(timeout=TIMEOUT, retry=retry())
    except AbsentError:
        return None
    return _stored(blob)


def is_bucket_missing(path: str) -> bool:
    """Returns True if there is no such bucket; False if there is one, or access is refused, or the path is local.

    Raises:
        DataError: the service cannot be asked; see `explained`.
    """
    if not is_remote(path):
        return False
    from google.api_core import exceptions

    with explained(path):
        try:
            client().bucket(split(path)[0]).reload(timeout=TIMEOUT, retry=retry())
        except exceptions.NotFound:
            return True
        except exceptions.Forbidden:
            return False
    return False


def list_folder(path: str) -> tuple[list[Stored], list[str]]:
    """Returns the objects directly in a folder, and the paths of its subfolders, sorted.

    The object that marks an otherwise empty folder is left out.

    Raises:
        DataError: no such bucket, or the service cannot be asked; see `explained`.
    """
    with explained(path):
        blobs = _blobs(path, f"items({_FIELDS}),prefixes", delimiter="/")
        objects = [_stored(blob) for blob in blobs if blob.name != _start(path)]
    folders = [f"{REMOTE_PREFIX}{split(path)[0]}/{prefix.rstrip('/')}" for prefix in sorted(blobs.prefixes)]
    return objects, folders


def list_tree(path: str, *, markers: bool = False) -> list[Stored]:
    """Returns all objects below a folder, sorted by key.

    Args:
        path: folder.
        markers: with the objects that mark empty folders, whose names end in a slash.

    Raises:
        DataError: see `list_folder`.
    """
    with explained(path):
        blobs = _blobs(path, f"items({_FIELDS})")
        return [_stored(blob) for blob in blobs if markers or not blob.name.endswith("/")]


def has_objects(path: str) -> bool:
    """Returns whether there is an object below a folder, one that marks it included; a bucket is always a folder.

    Raises:
        DataError: see `list_folder`.
    """
    with explained(path):
        return any(True for _ in _blobs(path, "items(name)", max_results=1)) or not split(path)[1]


def _blobs(path: str, fields: str, **options: Any) -> Any:
    """The service's objects below a folder, page by page."""
    fields = f"{fields},nextPageToken"
    return client().list_blobs(
        split(path)[0], prefix=_start(path), fields=fields, timeout=TIMEOUT, retry=retry(), **options
    )


def read(path: str, start: int = 0, end: int | None = None, *, generation: int | None = None) -> bytes:
    """Returns an object's content.

    Args:
        path: of the object.
        start: first byte.
        end: byte after the last one; None: the object's end.
        generation: that it must have; None: any.

    Raises:
        AbsentError: there is no such object.
        ConflictError: it has another generation.
        DataError: see `explained`.
    """
    if end is not None and end <= start:
        return b""
    try:
        with explained(path):
            content: bytes = _blob(path).download_as_bytes(
                start=start or None,
                end=None if end is None else end - 1,
                if_generation_match=generation,
                checksum="crc32c" if not start and end is None else None,
                timeout=TIMEOUT,
                retry=retry(),
            )
    except PastTheEndError:
        return b""
    return content


def read_small(path: str, limit: int) -> bytes:
    """Returns a whole object by one request, and compares its checksum; stops beyond `limit` bytes.

    Raises:
        AbsentError: there is no such object.
        TooLargeError: it has more bytes.
        DataError: see `explained`.
    """
    with explained(path), _Bounded(path, limit) as buffer:
        _blob(path).download_to_file(buffer, checksum="crc32c", timeout=TIMEOUT, retry=retry())
        return buffer.getvalue()


def download(stored: Stored, destination: Path) -> None:
    """Writes the content of one generation of an object to a local file, and compares its checksum.

    Raises:
        ConflictError: the object has another generation by now.
        AbsentError: it is gone.
        OSError: the file cannot be written.
        DataError: see `explained`; the content arrived damaged.
    """
    with explained(stored.path), destination.open("wb") as file:
        _blob(stored.path).download_to_file(
            file, if_generation_match=stored.generation, checksum="crc32c", timeout=TIMEOUT, retry=retry()
        )
    if destination.stat().st_size != stored.size:
        raise DataError(f"{stored.path}: {stored.size} bytes, but other content arrived. Repeat the command.")


def write(path: str, content: bytes | Path, *, generation: int | None = None) -> Stored:
    """Writes an object whole, and compares its checksum.

    Args:
        path: of the object.
        content: bytes, or the local file that has them.
        generation: that the object must have now, 0: it must not exist; None: any.

    Raises:
        ConflictError: the object has another generation, and not the one that this very call gave it.
        OSError: the file cannot be read.
        DataError: see `explained`.
    """
    blob = _blob(path)
    rules = {
        "content_type": "application/octet-stream",
        "if_generation_match": generation,
        "checksum": "crc32c",
        "timeout": TIMEOUT,
        "retry": retry(),
    }
    try:
        with explained(path):
            if isinstance(content, bytes):
                blob.upload_from_string(content, **rules)
            else:
                blob.upload_from_filename(str(content), **rules)
    except ConflictError:
        return _written_before(path, crc32c(content))
    return _stored(blob)


def claim(path: str, content: bytes, *, generation: int = 0) -> Stored | None:
    """Writes an object if nobody else has: of all that try at once, one succeeds.

    Args:
        path: of the object.
        content: bytes that no other process writes.
        generation: that the object must have now; 0: it must not exist.

    Returns:
        The object; None: another process was faster.

    Raises:
        DataError: see `explained`.
    """
    try:
        return write(path, content, generation=generation)
    except ConflictError:
        return None


def copy(source: Stored, path: str, *, generation: int | None = None) -> Stored:
    """Copies an object within the service.

    Args:
        source: object of this very generation.
        path: of the copy.
        generation: see `write`.

    Raises:
        ConflictError: see `write`; or the source has another generation by now.
        DataError: see `explained`.
    """
    blob = _blob(path)
    try:
        with explained(path):
            token = None
            while True:
                token, _, _ = blob.rewrite(
                    _blob(source.path),
                    token=token,
                    if_generation_match=generation,
                    if_source_generation_match=source.generation,
                    timeout=TIMEOUT,
                    retry=retry(),
                )
                if token is None:
                    break
    except ConflictError:
        return _written_before(path, source.crc32c)
    return _stored(blob)


def delete(path: str, *, generation: int | None = None) -> bool:
    """Deletes an object.

    Args:
        path: of the object.
        generation: that it must have; None: any.

    Returns:
        Whether there is no such object now; False: it has another generation.

    Raises:
        DataError: see `explained`.
    """
    try:
        with explained(path):
            _blob(path).delete(if_generation_match=generation, timeout=TIMEOUT, retry=retry())
    except AbsentError:
        return True
    except ConflictError:
        return False
    return True


def delete_all(objects: Iterable[Stored]) -> None:
    """Deletes objects of exactly these generations, several at a time; others of their names stay.

    Raises:
        DataError: see `explained`; the others are deleted all the same.
    """
    in_parallel(lambda stored: delete(stored.path, generation=stored.generation), objects)


def crc32c(content: bytes | Path) -> str:
    """Returns the checksum of bytes or of a local file, as the service writes it."""
    checksum = google_crc32c.Checksum()
    if isinstance(content, bytes):
        checksum.update(content)
    else:
        if not content.is_file():
            raise DataError(
                f"{content}: a pipe, socket or device, or removed meanwhile; a file is expected. Move it away."
            )
        with content.open("rb") as file:
            while block := file.read(_COPY_BLOCK):
                checksum.update(block)
    return base64.b64encode(checksum.digest()).decode()


class _Bounded(io.BytesIO):
    """A buffer that takes no more than so many bytes."""

    def __init__(self, path: str, limit: int) -> None:
        super().__init__()
        self._path, self._limit = path, limit

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._limit:
            raise TooLargeError(f"{self._path}: more than {self._limit} bytes. Check that it is the file you mean.")
        return super().write(data)


def _written_before(path: str, checksum: str) -> Stored:
    """The object that a write found in its way if it has the write's own content.

    The answer to a write may get lost after the service obeyed; repeated, it is refused.
    """
    stored = find(path)
    if stored is None or not checksum or stored.crc32c != checksum:
        raise ConflictError(f"{path}: another process wrote or removed this object meanwhile. Repeat the command.")
    return stored


def _start(path: str) -> str:
    """What the keys of all objects below a folder begin with."""
    _, key = split(path)
    return f"{key}/" if key else ""


def _stored(blob: Any) -> Stored:
    return Stored(
        path=f"{REMOTE_PREFIX}{blob.bucket.name}/{blob.name}",
        size=int(blob.size or 0),
        generation=int(blob.generation),
        crc32c=blob.crc32c or "",
        updated=blob.updated.timestamp() if blob.updated else 0.0,
    )


def _can_name(key: str) -> bool:
    """Returns whether the service takes a key."""
    try:
        return len(key.encode()) <= _KEY_BYTES and not set("\r\n") & set(key)
    except UnicodeEncodeError:  # half a surrogate pair
        return False


def _blob(path: str) -> Any:
    bucket, _, key = path.removeprefix(REMOTE_PREFIX).partition("/")
    if not key:
        raise DataError(f"{path}: this is a bucket. Name an object in it.")
    if not _can_name(key):
        raise AbsentError(f"{one_line(path)}: Cloud Storage has no such names. Use up to 1024 bytes on one line.")
    with explained(path):
        return client().bucket(bucket).blob(key)
