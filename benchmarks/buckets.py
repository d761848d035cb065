"""Ground truth and detections, of any size, divided into files of some images each.

Both are read once, entry by entry, in bounded memory but for the ids of images and
annotations.  What belongs to an image goes into one bucket, which is small enough to be
read whole.
"""

import os
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from detection.coco.evaluation import require_truth
from detection.coco.io.evaluation_files import NOT_TAKEN, detection_portions
from detection.coco.validation.checks import convert_all
from detection.coco.validation.invalid_entries import Naming, by_id, by_image, find_invalid, listed, refuse_or_skip
from detection.datasets.entries import Entry, Id, IdentifiedEntry, Ids, Rows
from detection.datasets.json_stream import stream_list, stream_members
from detection.storage.json_files import cannot_read
from schemas.errors import DataError

_BUCKET_BYTES = 16 << 20  # of JSON, about; ten times as much as Python objects
_FEWEST, _MOST = 8, 512  # buckets
_KEPT = 50_000  # entries held in memory before they are written
_PORTIONS = 32  # of detections, held likewise
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: neighbouring ids land far apart


class Bucket(NamedTuple):
    """Some whole images, each list in the order of its file.

    images, annotations: COCO entries.
    detections: COCO results, or rows [N, 7] (image_id, x, y, width, height, score,
        category_id).
    """

    images: list[Any]
    annotations: list[Any]
    detections: list[Any] | Rows


@dataclass(frozen=True)
class Buckets:
    """What `write_buckets` made of a data set.

    folder: of the buckets' files.
    count: of the buckets.
    categories: COCO `categories`.
    images: how many.
    rows: whether the detections are rows.
    """

    folder: str
    count: int
    categories: list[dict[str, Any]]
    images: int
    rows: bool

    def read(self, number: int) -> Bucket:
        """Reads one of the buckets, 0 <= number < count."""
        images, annotations = (list(_read(_path(self.folder, kind, number))) for kind in ("images", "annotations"))
        path = _path(self.folder, "detections", number)
        return Bucket(images, annotations, _read_rows(path) if self.rows else list(_read(path)))


def write_buckets(
    ground_truth: str | Path, detections: str | Path, folder: str | Path, *, iou_type: str = "bbox"
) -> Buckets:
    """Divides a COCO annotation file and a COCO results file by image.

    Args:
        ground_truth: COCO annotation file.
        detections: COCO results file.
        folder: existing and empty.
        iou_type: `bbox`, `segm` or `keypoints`.

    Raises:
        DataError: a file that cannot be read or is no such file; an entry without the
            ids that it needs; an id of an image or annotation that is there twice.
    """
    count = _count(ground_truth, detections)
    where = str(ground_truth)
    categories: list[Any] = []
    ids: dict[str, list[Ids]] = {"images": [], "annotations": []}
    found = set()
    for key, entries in _lists(ground_truth):
        if key in found:
            raise DataError(f"{where}: the key {key} is there twice. Join the two, or remove one.")
        found.add(key)
        if key == "images":
            ids[key] += _divide(entries, "id", by_id("image"), where, _Goal(folder, key, count))
        elif key == "annotations":
            ids[key] += _divide(entries, "image_id", by_id("annotation"), where, _Goal(folder, key, count))
        elif key == "categories":
            categories += entries
    require_truth({key: [] for key in found}, where=where)
    for key, parts in ids.items():
        _refuse_twice(parts, key.removesuffix("s"), where)
    rows = _divide_results(detections, iou_type, _Goal(folder, "detections", count))
    return Buckets(str(folder), count, categories, sum(map(len, ids["images"])), rows)


def _lists(path: str | Path) -> Iterator[tuple[str, Iterator[Any]]]:
    """The lists in a COCO file, with their entries."""
    for key, members in groupby(stream_members(path), attrgetter("key")):
        first = next(members)
        if first.position is not None or first.value == []:
            yield key, (member.value for member in chain([first], members) if member.position is not None)


class _Goal(NamedTuple):
    """Where the entries of a list go."""

    folder: str | Path
    kind: str
    buckets: int

    def parts(self, image_ids: Ids) -> Iterator[tuple[Path, Ids]]:
        """The file of each bucket that some images go to, and the positions of these."""
        numbers = (image_ids.astype(np.uint64) * _MIX >> np.uint64(32)) % np.uint64(self.buckets)
        order = np.argsort(numbers, kind="stable")
        for number, start, end in _runs(numbers[order]):
            yield _path(self.folder, self.kind, number), order[start:end]

    def clear(self) -> None:
        """Removes what was written."""
        for number in range(self.buckets):
            _path(self.folder, self.kind, number).unlink(missing_ok=True)


def _count(*paths: str | Path) -> int:
    size = 0
    for path in paths:
        try:
            size += os.path.getsize(path)
        except OSError as error:
            raise cannot_read(path, error) from None
    return min(max(size // _BUCKET_BYTES, _FEWEST), _MOST)


def _divide(entries: Iterable[Entry], key: str, name: Naming, where: str, goal: _Goal) -> list[Ids]:
    """Writes entries into the buckets of the image whose id is under `key`; their own ids, where they have any."""
    own_ids = []
    start = 0
    iterator = iter(entries)
    while kept := list(islice(iterator, _KEPT)):
        named: Naming = lambda position, entry, start=start: name(start + position, entry)  # noqa: E731
        image_ids = _identifiers(kept, key, named, where=where)
        if goal.kind != "detections":
            own_ids.append(_identifiers(kept, "id", named, where=where))
        for path, positions in goal.parts(image_ids):
            with path.open("ab") as file:
                pickle.dump([kept[position] for position in positions.tolist()], file)
        start += len(kept)
    return own_ids


class _ImageReference(TypedDict):
    image_id: Id


_KINDS: dict[str, Any] = {"id": IdentifiedEntry, "image_id": _ImageReference}


def _identifiers(entries: list[Any], key: str, name: Naming, *, where: str) -> Ids:
    typed = convert_all(entries, _KINDS[key])
    if typed is None:
        typed, invalid = find_invalid(entries, _KINDS[key], (), name, where=where)
        refuse_or_skip(invalid, None)
    return np.fromiter((entry[key] for entry in typed), np.int64, len(typed))


def _divide_results(path: str | Path, iou_type: str, goal: _Goal) -> bool:
    """Writes detections into the buckets; returns whether as rows."""
    portions = detection_portions(path, iou_type)
    try:
        while kept := list(islice(portions, _PORTIONS)):
            if iou_type == "bbox":
                rows = np.concatenate(kept)
                for file, positions in goal.parts(rows[:, 0]):
                    with file.open("ab") as opened:
                        opened.write(rows[positions].tobytes())
            else:
                _divide(chain.from_iterable(kept), "image_id", by_image("detection"), str(path), goal)
        return iou_type == "bbox"
    except OSError as error:
        raise cannot_read(path, error) from None
    except (*NOT_TAKEN, DataError):
        # Told by its place in the file.
        goal.clear()
    results = (member.value for member in stream_list(path))
    _divide(results, "image_id", by_image("detection"), str(path), goal)
    return False


def _refuse_twice(parts: list[Ids], what: str, where: str) -> None:
    values, counts = np.unique(np.concatenate([np.zeros(0, np.int64), *parts]), return_counts=True)
    if (counts > 1).any():
        named = listed([f"{what} {value}" for value in values[counts > 1]])
        raise DataError(f"{where}: duplicate id: {named}. Give each entry an id of its own.")


def _path(folder: str | Path, kind: str, number: int) -> Path:
    return Path(folder, f"{kind}-{number:03d}")


def _runs(ascending: npt.NDArray[Any]) -> Iterator[tuple[int, int, int]]:
    """Each distinct number, and from where to where it stands."""
    numbers, starts = np.unique(ascending, return_index=True)
    ends = [*starts[1:].tolist(), len(ascending)]
    return zip(numbers.tolist(), starts.tolist(), ends[: len(numbers)], strict=True)


def _read_rows(path: Path) -> Rows:
    return np.frombuffer(path.read_bytes() if path.exists() else b"", np.float64).reshape(-1, 7)


def _read(path: Path) -> Iterator[Any]:
    if path.exists():
        with path.open("rb") as file:
            while file.peek(1):
                yield from pickle.load(file)
