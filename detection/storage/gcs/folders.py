"""Folders of Cloud Storage that appear complete: written object by object, the last file last.

While a folder is written it holds `UNFINISHED_MARKER`, which names the writer. A folder with that object and
without its last file is the leftover of a writer that failed, and is written anew.
"""

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from detection.storage.file_system import LOCK_FILE, PROBE, UNFINISHED_MARKER, FileState, not_empty
from detection.storage.gcs import objects
from detection.storage.gcs.client import ConflictError, in_parallel
from detection.storage.local import LocalFiles
from detection.storage.paths import join
from detection.storage.processes import encode_record
from schemas.errors import DataError


def probe(folder: str) -> float:
    """Checks that objects can be written to a folder and removed from it.

    Returns:
        The service's clock, seconds since 1970.

    Raises:
        DataError: they cannot.
    """
    written = objects.write(join(folder, PROBE), b"")
    objects.delete(written.path)
    return written.modified


def require_free(path: str, *, last: Sequence[str] = ()) -> None:
    """Checks that a new folder may be written: it is empty, or the leftover of a failed writer.

    Raises:
        DataError: there is content.
    """
    names = objects.list_tree(path).keys() - {PROBE, LOCK_FILE}
    if names and (UNFINISHED_MARKER not in names or "".join(last[-1:]) in names):
        raise not_empty(path)


def upload(local: Path, path: str, *, last: Sequence[str] = (), replace: bool = False) -> None:
    """Writes a local folder's files to a remote one; empty folders are not uploaded.

    On failure, the written objects are removed; see `claim_folder`.

    Args:
        local: folder.
        path: remote folder.
        last: relative paths of files to be written last, in this order.
        replace: replaces a folder with content; meanwhile it is not complete.

    Raises:
        ConflictError: another process wrote there meanwhile.
        DataError: there is content and no `replace`; or something cannot be written.
    """
    with claim_folder(path, last=last, replace=replace) as claim:
        names = LocalFiles().walk_states(str(local), follow_links=True)
        missing = [name for name in last if name not in names]
        if missing:
            raise DataError(f"{local}: {missing[0]} is missing; {path} would be incomplete without it.")
        written = [claim]

        def write(name: str) -> None:
            written.append(objects.write(join(path, name), local / name, generation=0))

        try:
            in_parallel(write, [name for name in names if name not in last])
            _require_alone(path, written)
            for name in last:
                write(name)
        except ConflictError:  # the folder is that of another writer
            with contextlib.suppress(DataError):
                objects.delete_all(written)
            raise


@contextlib.contextmanager
def claim_folder(path: str, *, last: Sequence[str] = (), replace: bool = False) -> Iterator[FileState]:
    """Empties a remote folder, and holds `UNFINISHED_MARKER` there until the block has written it, the last file last.

    If the block raises, the folder's content is removed. If that fails as well, or the process is
    killed, the last file is missing, and the next one to claim the folder removes the rest.

    Args:
        path: remote folder.
        last: see `upload`.
        replace: see `upload`.

    Yields:
        The object `UNFINISHED_MARKER`.

    Raises:
        DataError: there is content and no `replace`; or something cannot be written or removed.
    """
    if not replace:
        require_free(path, last=last)
    last_file = last[-1] if last else ""
    claim = objects.write(join(path, UNFINISHED_MARKER), encode_record(id=uuid.uuid4().hex))
    with hold_claim(path, claim, last_file):
        remove_all(path, last_file)
        yield claim


@contextlib.contextmanager
def hold_claim(path: str, claim: FileState, last: str) -> Iterator[None]:
    """Deletes the object `UNFINISHED_MARKER` when the block ends; if the block raises, also the folder's content.

    Args:
        path: remote folder.
        claim: the object `UNFINISHED_MARKER` of this process; if another process has taken over the folder, all stays.
        last: relative path of the folder's last file.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(DataError):
            current = objects.find(claim.path)
            if current is not None and current.version == claim.version:
                remove_all(path, last)
                objects.delete(claim.path, generation=claim.version)
        raise
    with contextlib.suppress(DataError):  # the folder is complete
        objects.delete(claim.path, generation=claim.version)


def remove_all(path: str, last: str) -> None:
    """Deletes a folder's content, the last file first; `UNFINISHED_MARKER` and a lock stay."""
    found = objects.list_tree(path, markers=True)
    content = {name: state for name, state in found.items() if name not in (UNFINISHED_MARKER, LOCK_FILE)}
    objects.delete_all(state for name, state in content.items() if name == last)
    objects.delete_all(state for name, state in content.items() if name != last)


def _require_alone(path: str, written: list[FileState]) -> None:
    """Checks that a folder holds exactly this writer's objects.

    Raises:
        ConflictError: another process writes there, too.
    """
    if {state for name, state in objects.list_tree(path).items() if name != LOCK_FILE} != set(written):
        raise ConflictError(f"{path}: another process writes this folder, too. Let one process write it, then rerun.")
