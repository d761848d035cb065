"""Objects of Google Cloud Storage: find, list, read, write, copy, delete.

Every function takes `gs://bucket/key`, repeats requests that fail for a reason that may pass, and raises a
`DataError` if the service cannot be asked or refuses; see `client.explain_errors`. A write is repeated although
the response to it may have been lost: the object then has the write's own content, which counts as success.
"""

import base64
import contextlib
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import google_crc32c

from detection.storage.file_system import FileState
from detection.storage.gcs.client import (
    AbsentError,
    ConflictError,
    PastTheEndError,
    absent,
    client,
    explain_errors,
    in_parallel,
    options,
)
from detection.storage.local import require_files
from detection.storage.paths import REMOTE_PREFIX, is_remote, split
from schemas.errors import DataError
from schemas.quoting import one_line

_COPY_BLOCK = 1 << 20
_READ_BLOCK = 8 << 20
_KEY_BYTES = 1024
_FIELDS = "name,size,generation,crc32c,updated"


def find(path: str) -> FileState | None:
    """Returns the object; None: no such object, or a bucket."""
    if not split(path)[1]:
        return None
    try:
        blob = _blob(path)
        with explain_errors(path):
            blob.reload(**options())
    except AbsentError:
        return None
    return _state_of(blob)


def require(path: str) -> FileState:
    """Returns the object.

    Raises:
        AbsentError: no such object.
    """
    state = find(path)
    if state is None:
        raise absent(path)
    return state


def list_folder(path: str) -> tuple[list[str], list[str]]:
    """Returns the names of the objects directly in a folder, and of its subfolders, sorted.

    The object that marks an otherwise empty folder is omitted.

    Raises:
        AbsentError: no such bucket.
    """
    start = _start(path)
    with explain_errors(path):
        blobs = _blobs(path, "items(name),prefixes", delimiter="/")
        names = [blob.name.removeprefix(start) for blob in blobs if blob.name != start]
    return names, sorted(prefix.removeprefix(start).rstrip("/") for prefix in blobs.prefixes)


def list_tree(path: str, *, markers: bool = False) -> dict[str, FileState]:
    """Returns all objects below a folder by relative path, sorted.

    Args:
        path: folder.
        markers: with the objects that mark empty folders, whose names end in a slash.

    Raises:
        AbsentError: no such bucket.
    """
    start = _start(path)
    with explain_errors(path):
        blobs = _blobs(path, f"items({_FIELDS})")
        return {
            blob.name.removeprefix(start): _state_of(blob) for blob in blobs if markers or not blob.name.endswith("/")
        }


def has_objects(path: str) -> bool:
    """Returns whether there is an object below a folder, one that marks it included; a bucket is always a folder.

    Raises:
        AbsentError: no such bucket.
    """
    with explain_errors(path):
        return any(True for _ in _blobs(path, "items(name)", max_results=1)) or not split(path)[1]


def _blobs(path: str, fields: str, **more: Any) -> Any:
    """Lists the service's objects below a folder, page by page."""
    fields = f"{fields},nextPageToken"
    return client().list_blobs(split(path)[0], prefix=_start(path), fields=fields, **options(), **more)


def read(path: str, start: int = 0, end: int | None = None, *, generation: int | None = None) -> bytes:
    """Returns an object's content; compares the checksum if all of it is read.

    Args:
        path: path of the object.
        start: first byte.
        end: byte after the last one; None: the object's end.
        generation: required generation; None: any.

    Raises:
        AbsentError: no such object.
        ConflictError: it has another generation.
    """
    if end is not None and end <= start:
        return b""
    try:
        with explain_errors(path):
            content: bytes = _blob(path).download_as_bytes(
                start=start or None,
                end=None if end is None else end - 1,
                if_generation_match=generation,
                checksum="crc32c" if not start and end is None else None,
                **options(),
            )
    except PastTheEndError:
        return b""
    return content


def open_stream(path: str) -> io.BufferedReader:
    """Opens an object for reading, with `seek`, in blocks of 8 MiB.

    Raises:
        AbsentError: no such object.
    """
    return io.BufferedReader(_Content(require(path)), _READ_BLOCK)


class _Content(io.RawIOBase):
    """The content of one generation of an object, read by ranges."""

    def __init__(self, state: FileState) -> None:
        self._state = state
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._state.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + len(buffer), self._state.size)
        content = read(self._state.path, self._position, end, generation=self._state.version)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


def download(state: FileState, destination: Path) -> None:
    """Writes the content of one generation of an object to a local file, and compares its checksum.

    Raises:
        ConflictError: the object has another generation by now.
        AbsentError: it was removed.
        OSError: the file cannot be written.
    """
    with explain_errors(state.path), destination.open("wb") as file:
        _blob(state.path).download_to_file(file, if_generation_match=state.version, checksum="crc32c", **options())
    if destination.stat().st_size != state.size:
        raise DataError(f"{state.path}: {state.size} bytes expected, but other content arrived. Rerun.")


def write(path: str, content: bytes | Path, *, generation: int | None = None) -> FileState:
    """Writes a complete object, and compares its checksum.

    Args:
        path: path of the object.
        content: bytes, or the local file that has them.
        generation: current generation of the object, 0: it must not exist; None: any.

    Raises:
        ConflictError: the object has another generation, and other content.
        OSError: the file cannot be read.
    """
    blob = _blob(path)
    upload = blob.upload_from_string if isinstance(content, bytes) else blob.upload_from_filename
    kind = "application/octet-stream"
    try:
        with explain_errors(path):
            upload(content, content_type=kind, if_generation_match=generation, checksum="crc32c", **options())
    except ConflictError:
        return _require_content(path, crc32c(content))
    return _state_of(blob)


def claim(path: str, content: bytes, *, generation: int = 0) -> FileState | None:
    """Writes an object if nobody else has: if several try at once, one succeeds.

    Args:
        path: path of the object.
        content: bytes that no other process writes.
        generation: current generation of the object; 0: it must not exist.

    Returns:
        The object; None: another process was faster.
    """
    try:
        return write(path, content, generation=generation)
    except ConflictError:
        return None


def copy(source: FileState, path: str, *, generation: int | None = None) -> FileState:
    """Copies an object within the service.

    Args:
        source: object; this very generation is copied.
        path: path of the copy.
        generation: see `write`.

    Raises:
        ConflictError: see `write`; or the source has another generation by now.
    """
    blob = _blob(path)
    try:
        with explain_errors(path):
            token: str | None = ""
            rules = {"if_generation_match": generation, "if_source_generation_match": source.version}
            while token is not None:
                token, _, _ = blob.rewrite(_blob(source.path), token=token or None, **rules, **options())
    except ConflictError:
        return _require_content(path, source.checksum)
    return _state_of(blob)


def copy_file(source: str, path: str) -> None:
    """Copies an object within the service, or uploads a local file.

    Raises:
        AbsentError: no such object.
        OSError: the local file cannot be read.
    """
    if is_remote(source):
        copy(require(source), path)
    else:
        write(path, Path(source))


def delete(path: str, *, generation: int | None = None) -> None:
    """Deletes an object, if there is one.

    Args:
        path: path of the object.
        generation: an object of another generation stays; None: any is deleted.
    """
    with contextlib.suppress(AbsentError, ConflictError), explain_errors(path):
        _blob(path).delete(if_generation_match=generation, **options())


def delete_all(objects: Iterable[FileState]) -> None:
    """Deletes objects of exactly these generations, several at a time; if one fails, the others are deleted."""
    in_parallel(lambda state: delete(state.path, generation=state.version), objects)


def crc32c(content: bytes | Path) -> str:
    """Returns the checksum of bytes or of a local file, as the service writes it.

    Raises:
        DataError: the path is not a file, such as a pipe, which a read would wait for.
    """
    checksum = google_crc32c.Checksum()
    if isinstance(content, bytes):
        checksum.update(content)
    else:
        require_files([str(content)])
        with content.open("rb") as file:
            while block := file.read(_COPY_BLOCK):
                checksum.update(block)
    return base64.b64encode(checksum.digest()).decode()


def _require_content(path: str, checksum: str) -> FileState:
    """Returns the object in the way of a write, if it has the write's own content."""
    state = find(path)
    if state is None or not checksum or state.checksum != checksum:
        raise ConflictError(f"{path}: another process wrote or removed this object meanwhile. Rerun.")
    return state


def _start(path: str) -> str:
    """Returns the common start of the keys of all objects below a folder."""
    _, key = split(path)
    return f"{key}/" if key else ""


def _state_of(blob: Any) -> FileState:
    return FileState(
        path=f"{REMOTE_PREFIX}{blob.bucket.name}/{blob.name}",
        size=int(blob.size or 0),
        version=int(blob.generation),
        modified=blob.updated.timestamp() if blob.updated else 0.0,
        checksum=blob.crc32c or "",
    )


def _blob(path: str) -> Any:
    bucket, _, key = path.removeprefix(REMOTE_PREFIX).partition("/")
    if not key:
        raise DataError(f"{path}: this is a bucket. Name an object in it.")
    try:
        valid = len(key.encode()) <= _KEY_BYTES and not set("\r\n") & set(key)
    except UnicodeEncodeError:  # half a surrogate pair
        valid = False
    if not valid:
        raise AbsentError(f"{one_line(path)}: Cloud Storage has no such names. Use up to 1024 bytes on one line.")
    with explain_errors(path):
        return client().bucket(bucket).blob(key)
