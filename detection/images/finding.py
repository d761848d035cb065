"""Finds the images that a user means: files, and those in folders, by their suffix or their first bytes."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from detection.storage.files import exists, is_dir, read_range, walk_files
from detection.storage.paths import join, name_of, normalized, suffix
from schemas.errors import DataError
from schemas.quoting import one_line

_SUFFIXES = {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp"}
_OTHER_PICTURES = {".webp", ".tif", ".tiff", ".avif", ".heic", ".heif", ".jp2", ".jxl", ".dng", ".ico", ".psd", ".svg"}
_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM")  # first bytes of images, for files without a suffix
_HIDDEN = re.compile(r"(^|/)(\.|__MACOSX/)")  # also macOS's companions ._NAME on foreign disks


def find_images(sources: Sequence[str | Path], note: Callable[[str], None] = lambda text: None) -> list[str]:
    """Lists image files among `sources` and in folders among them, without hidden files, sorted by path.

    Args:
        sources: files and folders.
        note: called with a remark if the folders have images of other formats.

    Raises:
        DataError: a missing source, or no image.
    """
    paths: set[str] = set()
    others: list[str] = []
    for source in map(normalized, sources):
        if is_dir(source):
            found = [name for name in walk_files(source, follow_links=False) if not _HIDDEN.search(name)]
            others += [name for name in found if suffix(name).lower() in _OTHER_PICTURES]
            paths.update(join(source, name) for name in found if _is_image(source, name))
        elif exists(source):
            paths.add(source)
        else:
            raise DataError(f"{one_line(source)}: no such file or folder. Check --images.")
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in Counter(suffix(one).lower() for one in others).items())
    if not paths:
        there = f"; there are {kinds}" if kinds else ""
        raise DataError(
            f"no image in {', '.join(map(str, sources))}{there}; accepted: {', '.join(sorted(_SUFFIXES))}. Convert "
            "them, or check --images."
        )
    if kinds:
        note(
            f"left out: {kinds}, which TensorFlow does not decode: {one_line(others[0])}. Convert them to JPEG or PNG."
        )
    return sorted(paths)


def _is_image(folder: str, name: str) -> bool:
    if "." in name_of(name):
        return suffix(name).lower() in _SUFFIXES
    return read_range(join(folder, name), 0, 8).startswith(_STARTS)
