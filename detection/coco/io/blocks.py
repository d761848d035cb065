"""Files of blocks, one per image, which workers write and which are merged in bounded memory.

A block is an image's id, the length of its content, and the content.  Files are local or on Cloud
Storage; copy them to local files to read them completely.
"""

import contextlib
import heapq
import os
import struct
from collections.abc import Generator, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from detection.storage.atomic import new_file
from detection.storage.files import open_stream
from detection.storage.paths import join

_HEAD = struct.Struct("<qq")
_FILES = 256  # max open files


class Block(NamedTuple):
    """An image's id, and its content."""

    image_id: int
    content: bytes


class BlockPlace(NamedTuple):
    """Position of a block's content: `length` bytes from `offset` in the file at `path`."""

    path: str
    offset: int
    length: int


def write_blocks(path: str | Path, blocks: Iterable[Block]) -> None:
    """Writes a file of blocks atomically; `merge_blocks` requires ascending image ids.

    Raises:
        DataError: the file cannot be written.
    """
    with new_file(path, durable=False) as file:
        for block in blocks:
            file.write(_HEAD.pack(block.image_id, len(block.content)) + block.content)


def merge_blocks(paths: Sequence[str], work: str | Path) -> Iterator[Block]:
    """Yields the blocks of several files by ascending image id.

    Args:
        paths: files written by `write_blocks`.
        work: existing folder for intermediate files, if there are too many files to open at
            once.
    """
    while len(paths) > _FILES:
        groups = [paths[start : start + _FILES] for start in range(0, len(paths), _FILES)]
        paths = [_merge_into(work, f"{len(paths)}-{number}", group) for number, group in enumerate(groups)]
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(contextlib.closing(_read_blocks(path))) for path in paths]
        yield from heapq.merge(*files, key=itemgetter(0))


def find_blocks(path: str) -> Iterator[tuple[int, BlockPlace]]:
    """Yields the image id and the position of each block of a file."""
    with open_stream(path) as file:
        while head := file.read(_HEAD.size):
            image_id, length = _HEAD.unpack(head)
            yield image_id, BlockPlace(path, file.tell(), length)
            file.seek(length, os.SEEK_CUR)


def _merge_into(work: str | Path, name: str, paths: Sequence[str]) -> str:
    destination = join(work, name)
    write_blocks(destination, merge_blocks(paths, work))
    return destination


def _read_blocks(path: str) -> Generator[Block, None, None]:
    with open_stream(path) as file:
        while head := file.read(_HEAD.size):
            image_id, length = _HEAD.unpack(head)
            yield Block(image_id, file.read(length))
