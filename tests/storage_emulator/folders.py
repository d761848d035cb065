"""Folders of the tests in buckets."""

from pathlib import Path

from detection.storage.files import copy_file, walk_files
from detection.storage.paths import join


def upload(folder: str | Path, destination: str) -> str:
    """Copies a local folder's files to a remote one; returns its path."""
    for name in walk_files(folder):
        copy_file(join(folder, name), join(destination, name))
    return destination
