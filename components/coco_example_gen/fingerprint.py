"""Whether a data set has changed since it was last read."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from detection.coco.annotations import scan_file_names
from detection.coco.layouts import SplitFiles

# Raised when equal data gives other records, so that results of before are not reused.
RECORD_VERSION = 1


def fingerprint(splits: Iterable[SplitFiles]) -> str:
    """Digest of the size and modification time of every annotation and image file.

    Covers exactly the images that the annotation files name, in whatever sub-folder.
    """
    digest = hashlib.sha256(f"{RECORD_VERSION}\n".encode())
    for split in splits:
        for path in filter(None, (split.annotations, split.keypoints)):
            digest.update(_state(path).encode())
        for name in scan_file_names(split.annotations):
            digest.update(_state(Path(split.images, name)).encode())
    return digest.hexdigest()


def _state(path: str | Path) -> str:
    try:
        found = os.stat(path)
    except OSError:
        return f"{path} absent\n"
    return f"{path} {found.st_size} {found.st_mtime_ns}\n"
