"""Telling other processes that a folder is in use."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def folder_lock(folder: str | Path, *, shared: bool = False) -> Iterator[bool]:
    """Locks a folder until the block or the process ends, however it ends; does not wait.

    Args:
        folder: that is there.
        shared: others may hold it too, if they share.

    Yields:
        Whether it was free, so that it is held now; False also where the file system
        cannot tell.
    """
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            held = True
        except OSError:
            held = False
        yield held
