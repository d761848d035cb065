"""Numbered versions of a folder on Cloud Storage.

A version is uploaded to `.push.ID.tmp/`, which servers ignore. An object `N/.unfinished`, which must not
exist before, claims the number N; then the service copies the objects to `N/`, the marker last. A
version is removed under the same object, the marker first.

On failure the writer cleans up; after a kill, or if that fails, the next one does: `.unfinished` names the folder
and its process, and no folder without it is touched.
"""

import contextlib
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from detection.storage.file_system import PUSH_STEM, TEMPORARY_SUFFIX, UNFINISHED_MARKER, FileState
from detection.storage.gcs import objects
from detection.storage.gcs.client import AbsentError, in_parallel
from detection.storage.gcs.folders import hold_claim, probe, remove_all
from detection.storage.paths import join, name_of, parent
from detection.storage.processes import decode_record, encode_record, has_ended
from detection.storage.temporary import SILENT_SECONDS

_STAGED = rf"\.{PUSH_STEM}\.[0-9a-f]{{8}}{re.escape(TEMPORARY_SUFFIX)}"
_CLAIM = re.compile(rf"({_STAGED}|[0-9]+)/{re.escape(UNFINISHED_MARKER)}")
_CONTENT = "content"
_ENDED: set[str] = set()  # ids of the claims that this process no longer needs; a removal may have failed


class RemoteVersions:
    """A remote folder of versions; see `versions.LocalVersions`.

    Every method raises a `DataError` if the service cannot be asked or refuses.

    Args:
        directory: the folder.
        next_version: returns the number of the folder's next version.
    """

    def __init__(self, directory: str, next_version: Callable[[str], int]) -> None:
        self.directory = directory.rstrip("/")
        self._next_version = next_version

    def sweep(self, marker: str) -> None:
        """Removes leftovers of killed processes: staged folders, and incomplete versions."""
        now = probe(self.directory)
        stored = objects.list_tree(self.directory)
        # Staged folders come first: without the staged marker, a writer that was taken for dead completes no version.
        for name, claim in stored.items():
            if _CLAIM.fullmatch(name):
                folder = parent(claim.path)
                written = max(state.modified for state in stored.values() if state.path.startswith(f"{folder}/"))
                if _is_of_dead(claim, silent=now - written):
                    _end(claim, folder, marker)

    @contextlib.contextmanager
    def staging(self) -> Iterator[str]:
        """Yields a new folder that servers ignore, and removes it when the block ends."""
        folder = join(self.directory, f".{PUSH_STEM}.{uuid.uuid4().hex[:8]}{TEMPORARY_SUFFIX}")
        with _record(folder) as record:
            claim = objects.write(join(folder, UNFINISHED_MARKER), record, generation=0)
            try:
                yield join(folder, _CONTENT)
            finally:
                with contextlib.suppress(Exception):  # the next publication removes it
                    objects.delete_all(objects.list_tree(join(folder, _CONTENT)).values())
                    objects.delete(claim.path)

    def copy(self, source: str | Path, staged: str, names: list[str], marker: str) -> None:
        """Copies files, remote ones within the service."""
        in_parallel(lambda name: objects.copy_file(join(source, name), join(staged, name)), names)

    def publish(self, staged: str, marker: str) -> str:
        """Copies a staged folder to the next version; returns its path."""
        files = objects.list_tree(staged)
        with self._next() as claim, hold_claim(version := parent(claim.path), claim, marker):
            last = files.pop(marker)
            in_parallel(lambda name: objects.copy(files[name], join(version, name), generation=0), files)
            objects.copy(last, join(version, marker), generation=0)
        return version

    def remove(self, version: str, marker: str) -> None:
        """Removes a version, the marker first."""
        with _record(version) as record:
            claim = objects.write(join(version, UNFINISHED_MARKER), record)
            remove_all(version, marker)
            objects.delete(claim.path)

    @contextlib.contextmanager
    def _next(self) -> Iterator[FileState]:
        """Yields the claim of the next version."""
        while True:
            version = join(self.directory, str(self._next_version(self.directory)))
            with _record(version) as record:
                claim = objects.claim(join(version, UNFINISHED_MARKER), record)
                if claim is None:
                    continue
                # Look again: a writer that claimed this number before our listing may have published it since.
                if len(objects.list_tree(version, markers=True)) == 1:
                    yield claim
                    return
                objects.delete(claim.path, generation=claim.version)


def _end(claim: FileState, folder: str, marker: str) -> None:
    """Removes a dead process' claim, and its folder unless that is a complete version."""
    with _record(folder) as record:
        taken = objects.claim(claim.path, record, generation=claim.version)
        if taken is None:
            return
        if objects.find(join(folder, marker)) is None:
            remove_all(folder, marker)
        objects.delete(taken.path, generation=taken.version)


@contextlib.contextmanager
def _record(folder: str) -> Iterator[bytes]:
    """Yields a claim's content, by which other processes, and later this one, know whether it is still held."""
    claim = uuid.uuid4().hex
    try:
        yield encode_record(folder=name_of(folder), id=claim)
    finally:
        _ENDED.add(claim)


def _is_of_dead(claim: FileState, *, silent: float) -> bool:
    """Whether a claim's process has ended, or has been silent for an hour, or is this one, which no longer needs it."""
    record: dict[str, Any] = {}
    with contextlib.suppress(AbsentError):
        record = decode_record(objects.read(claim.path))
    if record.get("folder") != name_of(parent(claim.path)) or "id" not in record:
        return False
    return str(record["id"]) in _ENDED or has_ended(record) or silent > SILENT_SECONDS
