"""Paths with characters of glob patterns, under names that TensorFlow takes literally."""

import atexit
import functools
import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

_PATTERN_CHARACTER = re.compile(r"[\[\]*?\\]")


def has_pattern_characters(path: str | Path) -> bool:
    """Returns whether a path has a character with a meaning in glob patterns."""
    return _PATTERN_CHARACTER.search(str(path)) is not None


def literal_path(path: str | Path) -> str:
    """The same file under a name that TensorFlow finds.

    TensorFlow looks for the files of checkpoints and SavedModels, and for the old
    checkpoints to remove, with patterns made of their paths, so that it does not find
    any in a folder named `runs[1]`, and there is no way to quote the brackets.

    Args:
        path: of a folder, or of what lies in one, such as a checkpoint's prefix.

    Returns:
        `path`, or where it has characters of patterns, a path through a symbolic link
        to the deepest folder with such a name; the link lasts as long as the process.
    """
    if not has_pattern_characters(path):
        return str(path)
    folder, rest = Path(os.path.abspath(path)), []
    while folder.name and not has_pattern_characters(folder.name):
        rest.append(folder.name)
        folder = folder.parent
    return os.path.join(_link_to(str(folder)), *reversed(rest))


def literal_pattern(path: str) -> str:
    """The pattern that `tf.io.gfile.glob` finds this path by, and nothing else."""
    return _PATTERN_CHARACTER.sub(r"\\\g<0>", path)


@functools.cache
def _link_to(folder: str) -> str:
    link = os.path.join(_folder_of_links(), hashlib.sha256(os.fsencode(folder)).hexdigest()[:16])
    os.symlink(folder, link, target_is_directory=True)
    return link


@functools.cache
def _folder_of_links() -> str:
    folder = tempfile.mkdtemp(prefix="cocoflow-links-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
