"""The folders of commands: new output folders and scratch folders."""

import contextlib
import multiprocessing.util
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from detection.storage.atomic import new_directory, shared_directory
from detection.storage.files import explained, resolve
from detection.storage.lock import in_use
from detection.storage.paths import is_remote
from detection.storage.temporary import temporary_folder, writer_of
from schemas.errors import DataError

_NAME = "cocoflow"
_VARIABLE = "TMPDIR"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yields an empty folder among the system's temporary files, closed to other users.

    The folder is removed at the end of the block, or after a kill by the next command that
    needs one.

    Raises:
        DataError: no folder can be created there.
    """
    destination = Path(tempfile.gettempdir(), _NAME)
    with contextlib.ExitStack() as stack:
        with explained(destination):
            folder = stack.enter_context(temporary_folder(destination, mode=0o700))
        yield folder


@contextlib.contextmanager
def scratch_tempdir() -> Iterator[Path]:
    """Makes a scratch folder the TMPDIR of this process and of those that it starts.

    Beam creates a temporary folder per pipeline and leaves it after a kill; the next command
    removes it with the scratch folder.

    Raises:
        DataError: see `scratch_folder`.
    """
    # The socket of a forkserver is in a folder that multiprocessing removes when the process exits, after this block.
    multiprocessing.util.get_temp_dir()
    tempdir, before = tempfile.tempdir, os.environ.get(_VARIABLE)
    with scratch_folder() as folder:
        try:
            tempfile.tempdir = os.environ[_VARIABLE] = str(folder)
            yield folder
        finally:
            tempfile.tempdir = tempdir
            if before is None:
                os.environ.pop(_VARIABLE, None)
            else:
                os.environ[_VARIABLE] = before


@contextlib.contextmanager
def output_folder(output: str, *, last: str, shared: bool = True) -> Iterator[str | Path]:
    """Yields an empty folder that becomes `output` when the block ends.

    Removes leftovers of killed runs beside it, or in a remote one, see `detection.storage.atomic`.

    Args:
        output: folder, new or empty.
        last: file that makes the folder complete; the block writes it after all others.
        shared: for a remote folder, yields itself, so that other machines write there; otherwise a local one.

    Raises:
        CocoflowError: another process writes the folder.
        DataError: the folder has content, or cannot be written.
    """
    destination = resolve(output)
    if destination == os.getcwd():  # replacing it would leave the shell in a removed folder
        raise DataError(f"{destination}: --output is the current folder. Choose another, or one below it.")
    holder = None if is_remote(destination) else writer_of(destination)
    if holder is not None:  # otherwise it would work to its end, for a folder that is not free any more then
        raise in_use(destination, holder, "name another folder with --output")
    folder = shared_directory(destination, last=last) if shared else new_directory(destination, last=[last])
    with folder as yielded:
        yield yielded
