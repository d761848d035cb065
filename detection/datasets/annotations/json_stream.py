"""Reads a JSON object of any size entry by entry, in bounded memory.

A COCO file is an object with a few very long lists.  Python's JSON scanner parses each entry of
such a list as soon as it is read; it can be read again later by its position in the file.
"""

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from detection.storage.files import cannot_read, local_copy
from detection.storage.json_files import is_too_deep, parse, require_text
from schemas.errors import DataError
from schemas.limits import MAX_DEPTH, MAX_ENTRY
from schemas.quoting import LENGTH, shortened

_HEAD = 64  # bytes that show that a file is something else
WINDOW = 1 << 20  # bytes read at once

_SPACE = re.compile(r"[ \t\n\r]*")
_ID = re.compile(r'"id"\s*:\s*(-?\d{1,30})')
_CONTINUATION = bytes(range(0x80, 0xC0))  # UTF-8 bytes that do not start a character
_UNDECIDED = 16  # characters: an error this close to the end of the text may be a truncated token
_SCANNER = json.JSONDecoder()


class ByteRange(NamedTuple):
    """Position of an entry in its file: `length` bytes from `offset`."""

    offset: int
    length: int


class Member(NamedTuple):
    """A value of the top-level object, or an entry of a list in it.

    key: key of the value or list.
    position: index in the list; None: not an entry of a list.
    value: parsed value.
    place: position in the file.
    """

    key: str
    position: int | None
    value: Any
    place: ByteRange


def stream_members(path: str | Path) -> Iterator[Member]:
    """Yields the members of the object in a JSON file, lists entry by entry.

    An empty list yields one member with the list as its value.  NaN and Infinity are parsed as in
    Python.

    Raises:
        DataError: the file cannot be read, is not a JSON object, or an entry is larger
            than `MAX_ENTRY` or nested deeper than `MAX_DEPTH`.
    """
    with _open(path) as reader:
        yield from reader.members()


def read_entry(file: BinaryIO, place: ByteRange) -> Any:
    """Parses the entry at `place`, from `stream_members`, in a file opened for reading bytes.

    Raises:
        DataError: the file has changed since `stream_members`.
    """
    file.seek(place.offset)
    try:
        return parse(file.read(place.length))
    except ValueError:
        raise DataError(
            f"{file.name}: changed while it was read: no entry at byte {place.offset}. "
            "Do not change it meanwhile, and rerun."
        ) from None


@contextlib.contextmanager
def _open(path: str | Path) -> Iterator["_Reader"]:
    local = local_copy(path)
    try:
        # Entries are read again later, and opening a pipe would wait for its writer forever.
        if not stat.S_ISREG(os.stat(local).st_mode):
            raise DataError(f"{path}: is a folder, pipe or device. Specify a file.")
        with open(local, "rb") as file:
            require_text(file.read(_HEAD), path)
            file.seek(0)
            yield _Reader(file, str(path))
    except OSError as error:
        raise cannot_read(path, error) from None


class _Reader:
    """A window of the file as text.

    The bytes are decoded as Latin-1, so that characters are bytes and positions are exact: in UTF-8,
    the bytes of JSON's syntax never occur within other characters.  Values that are not ASCII are
    parsed again as UTF-8.
    """

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file = file
        self._path = path
        self._text = ""
        self._start = 0  # offset of the text's first byte
        self._at = 0  # position in the text
        self._where = "the file"

    def members(self) -> Iterator[Member]:
        self._begin()
        if self._peek() != "{":
            raise DataError(f"{self._path}: not a COCO file: expected an object with `images`. Check the file.")
        self._at += 1
        separator = ","
        if self._peek() == "}":
            separator = self._take()
        while separator == ",":
            if self._peek() != '"':
                self._refuse("expected a key in double quotes")
            key, _ = self._value()
            self._where = key
            self._expect(":")
            yield from self._list(key) if self._peek() == "[" else [Member(key, None, *self._value())]
            self._where = "the file"
            separator = self._expect(",", "}")
        self._where = "the file"
        if self._peek():
            self._refuse("more data after the end of the object")

    def _begin(self) -> None:
        self._more()
        if self._text.startswith("\xef\xbb\xbf"):
            self._at = 3
        if self._text.startswith(("\xff\xfe", "\xfe\xff")) or "\0" in self._text[:4]:
            raise DataError(f"{self._path}: not a JSON file in UTF-8. Convert it to UTF-8.")

    def _list(self, key: str) -> Iterator[Member]:
        offset = self._start + self._at
        self._at += 1
        if self._peek() == "]":
            self._at += 1
            yield Member(key, None, [], ByteRange(offset, self._start + self._at - offset))
            return
        index = 0
        separator = ","
        while separator == ",":
            self._where = f"{key}[{index}]"
            self._peek()
            yield Member(key, index, *self._value())
            separator = self._expect(",", "]")
            index += 1

    def _value(self) -> tuple[Any, ByteRange]:
        """Parses the value at the current position."""
        while True:
            try:
                value, end = _SCANNER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                cut = error.pos >= len(self._text) - _UNDECIDED or error.msg.startswith("Unterminated string")
                if not cut or not self._more():
                    self._refuse(error.msg, error.pos)
                continue
            except (RecursionError, ValueError) as error:  # nesting, or an integer with thousands of digits
                self._refuse(str(error))
            if end <= len(self._text) - _UNDECIDED or not self._more():  # else a number may continue
                break
        text = self._text[self._at : end]
        if is_too_deep(text.encode("latin-1")):
            self._refuse(f"nested more than {MAX_DEPTH} deep")
        if not text.isascii():
            try:
                value = json.loads(text.encode("latin-1").decode("utf-8"))
            except UnicodeDecodeError as error:
                self._refuse(f"not UTF-8 ({error.reason})", self._at + error.start)
        place = ByteRange(self._start + self._at, end - self._at)
        self._at = end
        return value, place

    def _expect(self, *characters: str) -> str:
        character = self._peek()
        if character not in characters:
            self._refuse(f"expected {' or '.join(map(repr, characters))}")
        return self._take()

    def _take(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

    def _peek(self) -> str:
        """Returns the next character that is not white space; "" at the end of the file."""
        while True:
            match = _SPACE.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Reads more data, at least as much as is kept; False at the end of the file."""
        kept = self._text[self._at :]
        if len(kept) > MAX_ENTRY:
            self._refuse(f"larger than {MAX_ENTRY >> 20} MB. Simplify its polygons or its mask")
        data = self._file.read(min(max(WINDOW, len(kept)), MAX_ENTRY + 1 - len(kept)))
        if not data:
            return False
        self._start += self._at
        self._at = 0
        self._text = kept + data.decode("latin-1")
        return True

    def _refuse(self, reason: str, position: int | None = None) -> None:
        """Raises the error for the data at `position`, by default the current one."""
        offset = self._start + (self._at if position is None else position)
        identity = _ID.search(self._text, self._at, self._at + WINDOW)
        entry = f" (id {identity[1]})" if identity and "[" in self._where else ""
        line, column = self._line_and_column(offset)
        end = " The file may be truncated or edited by hand; write or copy it again."
        place = f"line {line}, column {column}"
        raise DataError(f"{self._path}: not JSON: {shortened(self._where, LENGTH)}{entry}, {place}: {reason}.{end}")

    def _line_and_column(self, offset: int) -> tuple[int, int]:
        """Returns line and column, both from 1; columns count characters, as in editors."""
        self._file.seek(0)
        line = column = 1
        left = offset
        while left:
            data = self._file.read(min(WINDOW, left))
            line += data.count(b"\n")
            column = 1 if b"\n" in data else column
            column += len(data[data.rfind(b"\n") + 1 :].translate(None, _CONTINUATION))
            left -= len(data)
        return line, column
