"""Fingerprints of a data set's files, which show changes of the data without reading images."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from detection.datasets.annotations.annotation_file import scan_file_names
from detection.datasets.importers.label_map import dataset_files_beside
from detection.datasets.readers.converted import as_coco
from detection.datasets.readers.folder import Folder
from detection.datasets.splits import SplitFiles
from detection.images.files import image_path
from detection.storage import files, paths
from detection.storage.checksums import sha256
from detection.storage.file_system import explain_errors

# Raised when equal data gives other records, so that results of before are not reused.
RECORD_VERSION = 2

_States = Iterator[tuple[str, files.FileState | None]]


class DataState(NamedTuple):
    """The state of a data set's files.

    fingerprint: see `fingerprint`.
    size: bytes of the annotation and image files of complete splits, which their records hold.
    changed: time of the last change of a file, in seconds since 1970; 0: no files.
    """

    fingerprint: str
    size: int
    changed: float


def fingerprint(splits: Iterable[SplitFiles], *others: str | None) -> str:
    """Returns a digest of every annotation, image and record file.

    COCO's annotation files, which are read for the names of the images, count by their content, other local files by
    size and modification time, and remote files by size and generation.  Covers exactly the images that the annotation
    files name, in whatever sub-folder.

    Args:
        splits: the files of a data set.
        others: more files that its records depend on.
    """
    return data_state(splits, *others).fingerprint


def data_state(splits: Iterable[SplitFiles], *others: str | None) -> DataState:
    """Returns the state of the files of a data set; arguments as in `fingerprint`."""
    digest = hashlib.sha256(f"{RECORD_VERSION}\n".encode())
    sizes: dict[str, int] = {}  # two splits may have the same image
    changed = 0.0

    def add(states: _States, *, is_copied: bool) -> None:
        nonlocal changed
        for path, state in states:
            line = f"{path} absent\n" if state is None else f"{path} {state.size} {state.version}\n"
            digest.update(line.encode(errors="backslashreplace"))  # a JSON text may hold half a character
            if state is not None:
                changed = max(changed, state.modified)
                if is_copied:
                    sizes[path] = state.size

    add(_states(filter(None, others)), is_copied=False)
    for split in splits:
        is_complete = split.images is not None and split.hash_range is None and split.every == 1
        add(_states_of_split(split), is_copied=is_complete)
    return DataState(digest.hexdigest(), sum(sizes.values()), changed)


def _states_of_split(split: SplitFiles) -> _States:
    if split.images is None:
        return _states(_record_files(split.annotations))
    if split.reader:
        whole = Folder(split.root).states
        return ((paths.join(split.root, path), state) for path, state in whole.items())
    annotations = _contents(filter(None, (split.annotations, split.keypoints)))
    below = files.walk_states(split.images) if paths.is_remote(split.images) else None
    found = as_coco(split, below).files
    images, names = found.images or "", scan_file_names(found.annotations)
    if below is not None:
        return chain(annotations, _states_of_remote_images(images, names, below if images == split.images else None))
    return chain(annotations, _states(str(Path(images, name)) for name in names))


def _record_files(pattern: str) -> Iterator[str]:
    from detection.storage.tfrecord import find_shards  # imports TensorFlow

    beside: dict[str, list[str]] = {}  # so that a remote folder of many shards is listed once
    for shard in find_shards(pattern):
        folder = paths.parent(shard)
        if folder not in beside:
            beside[folder] = dataset_files_beside(shard)
        yield from (shard, *beside[folder])


def _contents(named: Iterable[str]) -> _States:
    """Yields states whose version is a digest of a local file: a correction may keep the size, and a copy the time."""
    for path, state in _states(named):
        if state is None or paths.is_remote(path):
            yield path, state
            continue
        with explain_errors(path, "read"):
            yield path, replace(state, version=int(sha256(path), 16))


def _states(named: Iterable[str]) -> _States:
    return ((path, files.find_file(path)) for path in named)


def _states_of_remote_images(folder: str, names: Iterable[str], below: Mapping[str, files.FileState] | None) -> _States:
    """Lists the folder: a request for each image would take minutes."""
    below = files.walk_states(folder) if below is None else below
    for name in names:
        try:
            path = image_path(folder, name)
        except ValueError:  # the checks of the data report it
            path = None
        known = None if path is None or path == folder else below.get(paths.relative(path, folder))
        yield paths.join(folder, name), known
