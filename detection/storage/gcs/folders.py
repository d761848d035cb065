"""Folders of Cloud Storage that readers see whole: written object by object, with a marker last.

While a folder is written it holds `UNFINISHED`, which names the writer; a folder with that
object and without its marker is the leftover of a writer that failed, and is written anew.
The marker is a file of the folder's own without which nobody takes it for whole, such as
`saved_model.pb`, or `COMPLETE`, which lists the folder's files.
"""

import contextlib
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from detection.storage.files import walk_files
from detection.storage.gcs import objects
from detection.storage.gcs.client import ConflictError, in_parallel
from detection.storage.paths import join, relative
from detection.storage.processes import LOCK_FILE, this_process
from schemas.errors import DataError

COMPLETE = ".complete"  # JSON: {"files": {relative path: [size, crc32c]}}
UNFINISHED = ".unfinished"  # JSON: record of the writer
PROBE = ".probe.tmp"  # one name, so that the next probe removes what a kill leaves
OWN_FILES = (COMPLETE, UNFINISHED, PROBE, LOCK_FILE)


def probe(folder: str) -> float:
    """Checks that objects can be written to a folder and removed from it.

    Returns:
        The service's clock, seconds since 1970.

    Raises:
        DataError: they cannot.
    """
    stored = objects.write(join(folder, PROBE), b"")
    objects.delete(stored.path)
    return stored.updated


def require_free(path: str, *, last: Sequence[str] = ()) -> None:
    """Checks that a new folder may be written: nothing is there but the leftover of a failed writer.

    Raises:
        DataError: there is content.
    """
    names = {relative(stored.path, path) for stored in objects.list_tree(path)} - {PROBE, LOCK_FILE}
    if names and (UNFINISHED not in names or marker_of(last) in names):
        raise DataError(f"{path}: cannot write: Directory not empty. Remove what is there, or name another folder.")


def upload(local: Path, path: str, *, last: Sequence[str] = (), replace: bool = False) -> None:
    """Writes a local folder's files to a remote one; empty folders are left out.

    If it fails, what was written is removed; see `claimed`.

    Args:
        local: folder.
        path: remote folder.
        last: relative paths of files to be written last, in this order; the very last one is the
            marker.  Without any, `COMPLETE` is.
        replace: replaces a folder with content; it has no marker meanwhile.

    Raises:
        ConflictError: another process wrote there meanwhile.
        DataError: there is content and no `replace`; or something cannot be written.
    """
    with claimed(path, last=last, replace=replace) as claim:
        names = walk_files(local)
        absent = [name for name in last if name not in names]
        if absent:
            raise DataError(f"{local}: no {absent[0]}, without which {path} would not be taken for whole.")
        written = in_parallel(
            lambda name: objects.write(join(path, name), local / name, generation=0),
            [name for name in names if name not in last],
        )
        _require_alone(path, claim, written)
        for name in last:
            written.append(objects.write(join(path, name), local / name, generation=0))
        if not last:
            objects.write(join(path, COMPLETE), manifest(path, written), generation=0)


@contextlib.contextmanager
def claimed(path: str, *, last: Sequence[str] = (), replace: bool = False) -> Iterator[objects.Stored]:
    """Empties a remote folder, and holds `UNFINISHED` there until the block has written it, the marker last.

    If the block raises, what lies in the folder is removed.  If that fails as well, or the process is
    killed, the marker is not there, and the next one to claim the folder removes the rest.

    Args:
        path: remote folder.
        last: see `upload`.
        replace: see `upload`.

    Yields:
        The object `UNFINISHED`.

    Raises:
        DataError: there is content and no `replace`; or something cannot be written or removed.
    """
    if not replace:
        require_free(path, last=last)
    claim = objects.write(join(path, UNFINISHED), json.dumps(this_process() | {"id": uuid.uuid4().hex}).encode())
    with held(path, claim, marker_of(last)):
        _remove_all(path, claim, marker_of(last))
        yield claim


@contextlib.contextmanager
def held(path: str, claim: objects.Stored, marker: str) -> Iterator[None]:
    """Deletes the object `UNFINISHED` when the block ends; if the block raises, also what lies in the folder.

    Args:
        path: remote folder.
        claim: the object `UNFINISHED` of this process; if another process has taken the folder over, all stays.
        marker: relative path of the object that makes the folder complete.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(DataError):
            current = objects.find(claim.path)
            if current is not None and current.generation == claim.generation:
                _remove_all(path, claim, marker)
                objects.delete(claim.path, generation=claim.generation)
        raise
    with contextlib.suppress(DataError):  # the folder is whole
        objects.delete(claim.path, generation=claim.generation)


def marker_of(last: Sequence[str]) -> str:
    """Returns the relative path of the object that makes a folder whole; see `upload`."""
    return last[-1] if last else COMPLETE


def manifest(path: str, written: Iterable[objects.Stored]) -> bytes:
    """Returns the content of `COMPLETE` for these objects of a folder."""
    files = {relative(stored.path, path): [stored.size, stored.crc32c] for stored in written}
    return json.dumps({"files": files}, indent=1).encode()


def require_complete(path: str, stored: Iterable[objects.Stored], marker: str) -> list[objects.Stored]:
    """Checks that a folder is whole, and returns its files: no markers, no leftovers.

    Args:
        path: folder.
        stored: the objects below it.
        marker: of the folder; see `upload`.

    Raises:
        DataError: the marker is not there, or objects that it lists are not.
    """
    by_name = {relative(one.path, path): one for one in stored}
    if marker not in by_name:
        raise DataError(
            f"{path}: not complete: no {marker}. Its writer failed or is still at work; wait for it, or write it again."
        )
    if marker != COMPLETE:
        return [one for name, one in by_name.items() if name not in OWN_FILES]
    content = objects.read(by_name[marker].path, generation=by_name[marker].generation)
    try:
        files: dict[str, Any] = json.loads(content)["files"]
        listed = [(name, int(size), str(checksum)) for name, (size, checksum) in files.items()]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DataError(f"{path}/{COMPLETE}: not a list of files. Write the folder again.") from None
    for name, size, checksum in listed:
        one = by_name.get(name)
        if one is None or one.size != size or (one.crc32c or checksum) != checksum:
            raise DataError(f"{path}: {name} is missing or is not the one that was written. Write the folder again.")
    return [by_name[name] for name, _, _ in listed]


def _remove_all(path: str, claim: objects.Stored, marker: str) -> None:
    """Deletes what lies below a folder but the claim and a lock, the marker first."""
    kept = {claim.path, join(path, LOCK_FILE)}
    stored = [one for one in objects.list_tree(path) if one.path not in kept]
    objects.delete_all(one for one in stored if one.path == join(path, marker))
    objects.delete_all(one for one in stored if one.path != join(path, marker))


def _require_alone(path: str, claim: objects.Stored, written: list[objects.Stored]) -> None:
    """Checks that a folder holds exactly this writer's objects.

    Raises:
        ConflictError: another process writes there, too.
    """
    expected = {(one.path, one.generation) for one in [claim, *written]}
    lock = join(path, LOCK_FILE)
    if {(one.path, one.generation) for one in objects.list_tree(path) if one.path != lock} != expected:
        raise ConflictError(f"{path}: another process writes this folder, too. See that one does, and repeat it.")
