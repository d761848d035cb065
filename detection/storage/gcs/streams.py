"""Objects of Google Cloud Storage as files for reading."""

import io
from typing import Any, BinaryIO

from detection.storage.gcs.client import absent
from detection.storage.gcs.objects import Stored, find, read

_READ_BLOCK = 8 << 20


def stream(path: str) -> BinaryIO:
    """Opens an object for reading from its start on, or with `seek`, in blocks of 8 MiB.

    Raises:
        AbsentError: there is no such object.
        DataError: see `explained`.
    """
    stored = find(path)
    if stored is None:
        raise absent(path)
    return io.BufferedReader(_Content(stored), _READ_BLOCK)


class _Content(io.RawIOBase):
    """The content of one generation of an object, read by ranges."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._stored.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + len(buffer), self._stored.size)
        content = read(self._stored.path, self._position, end, generation=self._stored.generation)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)
