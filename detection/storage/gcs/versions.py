"""Numbered versions of a folder on Cloud Storage: a server that looks there sees whole ones only.

A version is uploaded to `.incoming-ID/`, which servers ignore.  An object `.version-N`, which
must not exist before, claims the number; then the service copies the objects to `N/`, the
marker last.  Who fails removes all this; who is killed leaves it to the next one: the
claim names its process and its incoming folder, and nothing without a claim is touched.

A version is removed marker first, under an object `.removing-N`, from which the next process goes on.
"""

import contextlib
import json
import logging
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detection.storage.files import walk_files
from detection.storage.gcs import objects
from detection.storage.gcs.client import AbsentError, absent, in_parallel
from detection.storage.gcs.folders import OWN_FILES, probe
from detection.storage.paths import is_remote, join, name_of, parent, relative
from detection.storage.processes import has_ended, this_process
from detection.storage.versions import newest_version, next_version, version_number
from schemas.errors import DataError

SILENT_SECONDS = 3600.0  # after which a claim or an upload of another machine counts as left behind
_INCOMING = re.compile(r"\.incoming-[0-9a-f]{12}")
_CLAIM = re.compile(r"\.version-([0-9]+)")
_REMOVAL = re.compile(r"\.removing-([0-9]+)")
_OWNER = ".owner"  # in an incoming folder

_LOGGER = logging.getLogger("cocoflow.pusher")


@dataclass(frozen=True)
class _File:
    """A file of the new version."""

    name: str
    size: int
    crc32c: str
    source: Path | bytes | objects.Stored


def publish_version(
    source: str,
    directory: str,
    marker: str,
    *,
    added: Mapping[str, bytes] | None = None,
    check: Callable[[Path], None] | None = None,
    ignored: frozenset[str] = frozenset(),
) -> str:
    """Copies a folder to `directory/<version>`, unless the newest version equals it.

    Args:
        source: local or remote folder with the file `marker`.
        directory: remote folder of versions.
        marker: relative path of the file that a version must have, copied last.
        added: relative path -> content of further files of the version.
        check: takes a local download of exactly the objects that are to be published, and raises
            an error to refuse them.
        ignored: relative paths that are not compared with the newest version.

    Returns:
        The path of the new version, or of the newest one if it equals `source`.

    Raises:
        DataError: the source cannot be read, or the directory cannot be written.
    """
    directory = directory.rstrip("/")
    now = probe(directory)
    sweep(directory, marker, now)
    files = [file for file in _files_of(source) if file.name not in (added or {})]
    files += [_File(name, len(content), objects.crc32c(content), content) for name, content in (added or {}).items()]
    if all(file.name != marker for file in files):
        raise absent(join(source, marker))  # removed meanwhile, so that others may be missing
    newest = newest_version(directory, marker)
    if newest is not None and _same(files, newest, ignored):
        _LOGGER.info("version %s already holds this model", name_of(newest))
        return newest
    with _incoming(directory) as incoming:
        staged = in_parallel(lambda file: _stage(file, incoming), files)
        if check is not None:
            _check(staged, check)
        version = _publish(directory, incoming, staged, marker)
    _LOGGER.info("pushed as version %s", name_of(version))
    return version


def sweep(directory: str, marker: str, now: float) -> None:
    """Removes what killed processes left: incoming folders, versions without a marker, versions half removed.

    Args:
        directory: of versions.
        marker: see `publish_version`.
        now: the service's clock, seconds since 1970.

    Raises:
        DataError: something cannot be removed.
    """
    stored, folders = objects.list_folder(directory)
    for claim in stored:
        number = _CLAIM.fullmatch(name_of(claim.path))
        if number is not None and _is_dead(claim, now):
            _end_claim(claim, join(directory, number[1]), marker)
        removal = _REMOVAL.fullmatch(name_of(claim.path))
        if removal is not None:
            remove_version(join(directory, removal[1]), marker)
    for folder in folders:
        if _INCOMING.fullmatch(name_of(folder)):
            owner = objects.find(join(folder, _OWNER))
            if owner is not None and _is_dead(owner, now, folder):
                _remove(folder)


def remove_version(version: str, marker: str) -> None:
    """Removes a version, the marker first, so that no server loads a part of it.

    A killed removal is ended by the next `sweep`.

    Args:
        version: remote folder of the version.
        marker: see `publish_version`.

    Raises:
        DataError: something cannot be removed.
    """
    record = join(parent(version), f".removing-{name_of(version)}")
    objects.write(record, b"")
    objects.delete(join(version, marker))
    objects.delete_all(objects.list_tree(version, markers=True))
    objects.delete(record)


def _end_claim(claim: objects.Stored, version: str, marker: str) -> None:
    """Removes a dead pusher's claim, and its version unless it is whole."""
    # Its owner, should it live after all, cannot write the marker once the claim is another one's.
    ours = objects.claim(claim.path, _record(""), generation=claim.generation)
    if ours is None:
        return
    if objects.find(join(version, marker)) is None:
        objects.delete_all(objects.list_tree(version, markers=True))
    objects.delete(ours.path, generation=ours.generation)


def _files_of(source: str) -> list[_File]:
    if is_remote(source):
        listed = ((relative(one.path, source), one) for one in objects.list_tree(source))
        return [_File(name, one.size, one.crc32c, one) for name, one in listed if name not in OWN_FILES]
    paths = ((name, Path(source, name)) for name in walk_files(source))
    return [_File(name, path.stat().st_size, objects.crc32c(path), path) for name, path in paths]


def _same(files: list[_File], version: str, ignored: frozenset[str]) -> bool:
    stored = {relative(one.path, version): (one.size, one.crc32c) for one in objects.list_tree(version)}
    given = {file.name: (file.size, file.crc32c) for file in files}
    return {name: facts for name, facts in stored.items() if name not in ignored} == {
        name: facts for name, facts in given.items() if name not in ignored
    }


@contextlib.contextmanager
def _incoming(directory: str) -> Iterator[str]:
    """Yields a new folder for an upload, and removes it when the block ends."""
    folder = join(directory, f".incoming-{uuid.uuid4().hex[:12]}")
    try:
        objects.write(join(folder, _OWNER), _record(folder), generation=0)
        yield folder
    finally:
        with contextlib.suppress(DataError):  # the next push removes it
            _remove(folder)


def _stage(file: _File, incoming: str) -> tuple[str, objects.Stored]:
    path = join(incoming, "files", file.name)
    if isinstance(file.source, objects.Stored):
        return file.name, objects.copy(file.source, path, generation=0)
    return file.name, objects.write(path, file.source, generation=0)


def _check(staged: list[tuple[str, objects.Stored]], check: Callable[[Path], None]) -> None:
    """Calls `check` with a local copy of the staged objects, whose checksums are compared."""
    with tempfile.TemporaryDirectory(prefix="cocoflow-staged-") as folder:
        for name, _ in staged:
            Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
        in_parallel(lambda one: objects.download(one[1], Path(folder, one[0])), staged)
        check(Path(folder))


def _publish(directory: str, incoming: str, staged: list[tuple[str, objects.Stored]], marker: str) -> str:
    """Copies a staged folder to the next version."""
    claim = _claim_next(directory, incoming)
    number = _CLAIM.fullmatch(name_of(claim.path))
    assert number is not None
    version = join(directory, number[1])
    try:
        in_parallel(
            lambda one: objects.copy(one[1], join(version, one[0]), generation=0),
            [one for one in staged if one[0] != marker],
        )
        # Renewed, so that a pusher which took this one for dead is noticed, and none can from now on.
        claim = objects.write(claim.path, _record(incoming), generation=claim.generation)
        last = dict(staged)[marker]
        objects.copy(last, join(version, marker), generation=0)
    except BaseException:
        with contextlib.suppress(DataError):
            current = objects.find(claim.path)
            if current is not None and current.generation == claim.generation:
                objects.delete(join(version, marker))
                objects.delete_all(objects.list_tree(version, markers=True))
                objects.delete(claim.path, generation=claim.generation)
        raise
    with contextlib.suppress(DataError):  # the next push removes it
        objects.delete(claim.path, generation=claim.generation)
    return version


def _claim_next(directory: str, incoming: str) -> objects.Stored:
    """Claims the time in seconds since 1970, or one more than the highest number."""
    while True:
        stored, folders = objects.list_folder(directory)
        claims = (_CLAIM.fullmatch(name_of(one.path)) for one in stored)
        numbers = [one for match in claims if match is not None and (one := version_number(match[1])) is not None]
        numbers += [one for folder in folders if (one := version_number(name_of(folder))) is not None]
        number = next_version(directory, numbers)
        claim = objects.claim(join(directory, f".version-{number}"), _record(incoming))
        if claim is None:
            continue
        # Whoever claimed this number before the list, and has published it since, is found now.
        if not objects.has_objects(join(directory, str(number))):
            return claim
        objects.delete(claim.path, generation=claim.generation)


def _record(incoming: str) -> bytes:
    return json.dumps(this_process() | {"incoming": name_of(incoming), "id": uuid.uuid4().hex}).encode()


def _is_dead(stored: objects.Stored, now: float, folder: str | None = None) -> bool:
    """Whether the process that wrote a claim or an owner's record has ended, or has been silent for an hour."""
    try:
        record: Any = json.loads(objects.read(stored.path))
    except (AbsentError, ValueError, RecursionError):
        return False
    if not isinstance(record, dict) or "incoming" not in record:
        return False
    if folder is not None and record["incoming"] != name_of(folder):
        return False
    written = [stored.updated, *(one.updated for one in objects.list_tree(folder))] if folder else [stored.updated]
    return has_ended(record) or now - max(written) > SILENT_SECONDS


def _remove(folder: str) -> None:
    """Removes an incoming folder, the owner's record last."""
    stored = objects.list_tree(folder, markers=True)
    owner = join(folder, _OWNER)
    objects.delete_all(one for one in stored if one.path != owner)
    objects.delete(owner)
