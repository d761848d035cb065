"""Numbered versions of a folder, such as the models below a push directory: which exist, and which are complete.

A model server serves the version of the highest number.
"""

import time
from collections.abc import Iterable
from pathlib import Path

from detection.storage.files import file_system, is_file
from detection.storage.paths import join
from schemas.errors import DataError

MAX_VERSION = 2**63 - 2  # of a model server
TEMPORARY_STEM = "push"  # of the hidden folders beside the versions
_VERSION_DIGITS = 19  # of MAX_VERSION


def version_number(name: str) -> int | None:
    """Returns the number of a version from the name of its folder; None: a model server takes no such name.

    Servers read the number as int64. The highest one is excluded, as no version could follow it.

    >>> version_number("17"), version_number("v17"), version_number("9223372036854775807")
    (17, None, None)
    """
    if not (name.isascii() and name.isdecimal() and len(name) <= _VERSION_DIGITS):
        return None
    number = int(name)
    return number if number <= MAX_VERSION else None


def numbered_versions(directory: str | Path) -> list[tuple[int, str]]:
    """Returns numbers and paths of the versions, complete or not, oldest first; none if there is no such folder.

    Raises:
        DataError: the folder cannot be read.
    """
    numbers = ((version_number(name), name) for name in file_system(directory).entries(str(directory))[1])
    return sorted((number, join(directory, name)) for number, name in numbers if number is not None)


def newest_version(directory: str | Path, marker: str) -> str | None:
    """Returns the path of the highest complete version; None: no such version.

    Args:
        directory: local or remote folder of versions.
        marker: relative path of the file that a complete version has.

    Raises:
        DataError: the folder cannot be read.
    """
    newest_first = reversed(numbered_versions(directory))
    return next((path for _, path in newest_first if is_file(join(path, marker))), None)


def next_version(directory: str | Path, taken: Iterable[int]) -> int:
    """Returns the number of the next version: the time in seconds since 1970, or one more than the highest.

    Raises:
        DataError: the highest number has no next one.
    """
    number = max([int(time.time()), *(version + 1 for version in taken)])
    if number > MAX_VERSION:
        raise DataError(
            f"{directory}: no number is left after version {MAX_VERSION}, as a model server reads 64 bits. "
            "Move that folder away."
        )
    return number


def foreign_entries(directory: str | Path) -> list[str]:
    """Returns the names with digits only that are no versions: of files, or beyond the numbers of a model server."""
    files, folders = file_system(directory).entries(str(directory))
    invalid = [name for name in folders if version_number(name) is None]
    return sorted(name for name in [*files, *invalid] if name.isdecimal())
