"""TFRecord files: finding them, and reading their records one after the other.

A file is a sequence of frames: length (uint64, little endian), masked CRC-32C of the
length (uint32), the record, masked CRC-32C of the record (uint32); the file may be
gzipped. Files are local or on Cloud Storage.
"""

import gzip
import os
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import google_crc32c

from detection.storage import files, paths
from detection.storage.paths import join
from schemas.artifacts import DATASET_JSON, QUARANTINE_JSONL
from schemas.errors import DataError
from schemas.limits import MAX_GZIPPED_RECORD

HEADER = struct.Struct("<QI")
CHECKSUM = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8
_GZIP_MAGIC = b"\x1f\x8b"
_LFS_MAGIC = b"version https://git-lfs.github.com/spec/"
_SIDE_NAMES = {DATASET_JSON, QUARANTINE_JSONL, "LICENSE", "LICENCE", "README"}
_SHARD_NUMBER = re.compile(r"^(.*)-(\d{5})-of-(\d{5})(?:\.\w+)*$")
_SIDE_SUFFIXES = (".csv", ".html", ".json", ".jsonl", ".md", ".pbtxt", ".txt", ".yaml", ".yml")


def find_shards(where: str | Path) -> list[str]:
    """Finds TFRecord files; returns their paths, sorted.

    Args:
        where: file, folder or glob pattern. In folders and patterns, hidden files and
            common companions of shards (labels, reports, licences) are ignored. A part of
            a pattern that is the name of an existing folder is taken literally.

    Raises:
        DataError: no such file, or one whose name is not UTF-8, which TensorFlow needs; in a folder, not all of the
            shards `NAME-00000-of-00010`.
    """
    text = str(where)
    try:
        shards = _shards_at(text)
        for path in shards:
            path.encode()
    except UnicodeError:
        raise DataError(f"{text!a}: a name there is not UTF-8, which TensorFlow needs. Rename it.") from None
    if not shards:
        raise DataError(f"{text}: no TFRecord file there. Name a folder, a file or a pattern such as 'data/*.record*'.")
    if files.is_dir(text):
        require_all_shards(shards)
    return shards


def require_all_shards(shards: Iterable[str]) -> None:
    """Requires all of the shards that names such as `NAME-00000-of-00010` promise.

    Raises:
        DataError: some are missing.
    """
    for stem, (missing, count) in missing_shards(shards).items():
        raise DataError(
            f"{stem}: {len(missing)} of {count} shards are missing, the first is -{missing[0]:05d}-of-{count:05d}. "
            "Copy or write them again; or name the others by a pattern (data.splits.NAME.records) to use these alone."
        )


def missing_shards(shards: Iterable[str]) -> dict[str, tuple[list[int], int]]:
    """Returns stem -> missing numbers, and number of shards, of incomplete sets `STEM-00000-of-00010`."""
    present: dict[tuple[str, int], set[int]] = {}
    for match in filter(None, map(_SHARD_NUMBER.match, shards)):
        present.setdefault((match[1], int(match[3])), set()).add(int(match[2]))
    absent = {stem: (sorted(set(range(count)) - numbers), count) for (stem, count), numbers in present.items()}
    return {stem: (missing, count) for stem, (missing, count) in absent.items() if missing}


def _shards_at(text: str) -> list[str]:
    if files.is_dir(text):
        matches, folders = None, {text}
    elif files.exists(text):
        return [text]
    else:
        matches = set(files.glob(_escape_existing(text)))
        folders = {os.path.dirname(path) for path in matches}
    # A folder's files are listed, not asked for one by one.
    listed = (join(folder, name) for folder in folders for name in files.list_files(folder or "."))
    return sorted(path for path in listed if (matches is None or path in matches) and _is_shard_name(path))


def _escape_existing(pattern: str) -> str:
    """Returns the pattern with its leading folders that exist under this very name escaped."""
    folder = os.path.dirname(pattern)
    while folder and not files.is_dir(folder):
        folder = os.path.dirname(folder) if folder != "gs:" else ""
    return paths.escape(folder) + pattern.removeprefix(folder)


def read_shard(path: str | Path) -> Iterator[bytes]:
    """Yields the records of a TFRecord file, gzipped or not; an empty file yields nothing.

    Holds one record at a time, and checks both checksums of each.

    Raises:
        DataError: the file cannot be read, is no TFRecord file, is truncated or damaged;
            the message says how many complete records came before.
    """
    name = str(path)
    try:
        with files.file_system(name).open(name) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            start = file.read(len(_LFS_MAGIC))
            file.seek(0)
            if start == _LFS_MAGIC:
                raise DataError(
                    f"{name}: no TFRecord file but a Git LFS pointer to one, so 0 records are read. "
                    "Fetch the file itself with `git lfs pull`."
                )
            if is_gzipped(start):
                with gzip.GzipFile(fileobj=file) as stream:
                    yield from _Frames(name, stream, None).records()
            else:
                yield from _Frames(name, file, size).records()
    except OSError as error:
        raise DataError(f"{name}: cannot read: {error.strerror}. Check the path and its permissions.") from None


def is_gzipped(start: bytes) -> bool:
    """Returns whether a file's first bytes are gzip's."""
    return start.startswith(_GZIP_MAGIC)


def _is_shard_name(path: str) -> bool:
    name = os.path.basename(path.rstrip("/"))
    return not (name.startswith((".", "_")) or name in _SIDE_NAMES or name.lower().endswith(_SIDE_SUFFIXES))


class _Frames:
    """The frames of one file.

    Args:
        path: path of the file, for messages.
        stream: its content, uncompressed.
        size: bytes in `stream`; None: not known.
    """

    def __init__(self, path: str, stream: IO[bytes] | gzip.GzipFile, size: int | None) -> None:
        self._path = path
        self._stream = stream
        self._size = size
        self._position = 0
        self._count = 0

    def records(self) -> Iterator[bytes]:
        while header := self._read(HEADER.size, complete=False):
            record = self._read(self._length(header))
            if CHECKSUM.unpack(self._read(CHECKSUM.size))[0] != masked_crc(record):
                raise self._error("damaged", "its checksum does not match")
            yield record
            self._count += 1

    def _length(self, header: bytes) -> int:
        valid = len(header) == HEADER.size and HEADER.unpack(header)[1] == masked_crc(header[:8])
        if not valid and not self._count:
            raise DataError(
                f"{self._path}: no TFRecord file: it does not start with a record, so 0 records are read. "
                "Name TFRecord files only, for example by a pattern."
            )
        if len(header) < HEADER.size:
            raise self._truncated(HEADER.size)
        if not valid:
            raise self._error("damaged", "the checksum of its length does not match")
        length: int = HEADER.unpack(header)[0]
        if self._size is None and length > MAX_GZIPPED_RECORD:
            raise self._error("damaged", f"it claims {length} bytes, more than {MAX_GZIPPED_RECORD}")
        if self._size is not None and length > self._size - self._position:
            raise self._truncated(length)
        return length

    def _read(self, length: int, *, complete: bool = True) -> bytes:
        try:
            data = self._stream.read(length)
        except EOFError:
            raise self._truncated(length) from None
        except (zlib.error, gzip.BadGzipFile) as error:
            raise self._error("damaged", f"gzip: {error}") from None
        if complete and len(data) < length:
            raise self._truncated(length)
        self._position += len(data)
        return data

    def _truncated(self, needed: int) -> DataError:
        return self._error("truncated", f"{needed} bytes more are needed")

    def _error(self, state: str, reason: str) -> DataError:
        return DataError(
            f"{self._path}: {state} after {self._count} complete records: in the next one, at byte {self._position}, "
            f"{reason}. Copy or write the file again."
        )


def framed(record: bytes) -> bytes:
    """Returns a record with its frame, as it stands in a TFRecord file."""
    length = struct.pack("<Q", len(record))
    return length + CHECKSUM.pack(masked_crc(length)) + record + CHECKSUM.pack(masked_crc(record))


def masked_crc(data: bytes) -> int:
    """TFRecord's checksum: CRC-32C, rotated right by 15 bits, plus a constant."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
