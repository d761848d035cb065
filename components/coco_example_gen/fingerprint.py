"""Whether a data set has changed since it was last read."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from detection.datasets.annotations import scan_file_names
from detection.datasets.layouts import SplitFiles
from detection.storage.tfrecord import find_shards
from schemas.artifacts import DATASET_JSON

# Raised when equal data gives other records, so that results of before are not reused.
RECORD_VERSION = 2


def fingerprint(splits: Iterable[SplitFiles], *others: str | None) -> str:
    """Digest of the size and modification time of every annotation, image and record file.

    Covers exactly the images that the annotation files name, in whatever sub-folder.

    Args:
        splits: the files of a data set.
        others: more files that its records depend on.
    """
    digest = hashlib.sha256(f"{RECORD_VERSION}\n".encode())
    for path in chain(filter(None, others), *map(_files, splits)):
        digest.update(_state(path).encode(errors="backslashreplace"))  # a JSON text may hold half a character
    return digest.hexdigest()


def _files(split: SplitFiles) -> Iterator[str | Path]:
    if split.images is None:
        for shard in find_shards(split.annotations):
            yield from (shard, *description_beside(shard))
        return
    yield from filter(None, (split.annotations, split.keypoints))
    for name in scan_file_names(split.annotations):
        yield Path(split.images, name)


def description_beside(shard: str) -> list[Path]:
    """The description of the Examples artifact that a shard belongs to, if it belongs to one."""
    return [path for path in (folder / DATASET_JSON for folder in Path(shard).parents[:2]) if path.is_file()]


def _state(path: str | Path) -> str:
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # a NUL or half a character in a name; the checks of the data tell of it
        return f"{path} absent\n"
    return f"{path} {found.st_size} {found.st_mtime_ns}\n"
