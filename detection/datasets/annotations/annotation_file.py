"""Index of a COCO annotation file: the position of each entry.

The file is read once, entry by entry, and every issue of its structure is collected.
Entries are read again when needed: the index takes about 50 bytes per annotation,
independent of the size of the polygons.
"""

import contextlib
import json
import mmap
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from detection.datasets.annotations.annotation_scan import AnnotationScan, keypoint_fields
from detection.datasets.annotations.entry_rules import category_issues
from detection.datasets.annotations.json_stream import ByteRange, read_entry
from detection.datasets.issues import Issue
from detection.storage.files import is_file, local_copy
from schemas.config.issues import IssuePolicies
from schemas.errors import DataError

_CATEGORIES = re.compile(rb'"categories"\s*:\s*\[')
_CATEGORIES_BYTES = 16 << 20
_FILE_NAME = re.compile(rb'"file_name"\s*:\s*("[^"\\]*+(?:\\.[^"\\]*+)*+")')  # possessive: no backtracking


class ImagePlaces(NamedTuple):
    """Positions of the entries of one image.

    image: the entry in `images`.
    annotations: the entries in `annotations`, in the order of the file.
    keypoints: the entry of the same id in the keypoints file for each annotation, or None.
    ids: ids of the annotations, if they are others than in the file.
    """

    image: ByteRange
    annotations: Sequence[ByteRange]
    keypoints: Sequence[ByteRange | None]
    ids: Sequence[int] = ()


@dataclass(frozen=True)
class _Annotations:
    """Columns of the annotations, sorted by image and then by position in the file; int64 [N].

    keypoint_lengths: 0 if the keypoints file has no such annotation.
    ids: empty: those of the file.
    """

    image_ids: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray
    keypoint_offsets: np.ndarray
    keypoint_lengths: np.ndarray
    ids: np.ndarray


@dataclass(frozen=True)
class AnnotationFile:
    """Content of an annotation file, without its invalid entries.

    path: the user's file.
    file: the COCO file that is read; `path`, or made of it.
    keypoints: the merged person_keypoints file, or None.
    images: image id -> position of its entry, in the order of the file.  Each entry has an
        int `id`, a str `file_name` and, if any, a `width` and `height` above zero.
    categories: entries of `categories`; each has a unique int `id` and a str `name`.
    info: `info` of the file, {} if missing.
    licenses: `licenses` of the file, [] if missing.
    issues: issues of the file.
    groups: image id -> hash of the name of its group.
    roots: categories that are only the root of an export's tree.
    """

    path: str
    file: str
    keypoints: str | None
    images: dict[int, ByteRange]
    categories: list[dict[str, Any]]
    info: dict[str, Any]
    licenses: list[dict[str, Any]]
    issues: list[Issue]
    groups: dict[int, int]
    roots: list[dict[str, Any]]
    _annotations: _Annotations

    def __len__(self) -> int:
        """Number of annotations."""
        return len(self._annotations.image_ids)

    def places(self, image_id: int) -> ImagePlaces:
        """Returns the positions of the entries of an image in `images`."""
        columns = self._annotations
        # Two searches for the same value: the next value may not fit into 64 bits.
        first, last = (np.searchsorted(columns.image_ids, np.int64(image_id), side) for side in ("left", "right"))
        rows = slice(int(first), int(last))
        places = _places(columns.offsets[rows], columns.lengths[rows])
        points = _places(columns.keypoint_offsets[rows], columns.keypoint_lengths[rows])
        found = [place if place.length else None for place in points]
        return ImagePlaces(self.images[image_id], places, found, columns.ids[rows].tolist())

    def entries(self) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """Yields each image with its annotations, in the order of the file."""
        with open_entries(self.file, self.keypoints) as read:
            for image_id in self.images:
                yield read(self.places(image_id))


EntriesReader = Callable[[ImagePlaces], tuple[dict[str, Any], list[dict[str, Any]]]]


@contextlib.contextmanager
def open_entries(path: str, keypoints: str | None) -> Iterator[EntriesReader]:
    """Opens the files for reading entries at their positions.

    Args:
        path: the annotation file.
        keypoints: the keypoints file, or None.

    Yields:
        A function that returns an image's entry and its annotations, with merged keypoints.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(local_copy(path), "rb"))
        points = stack.enter_context(open(local_copy(keypoints), "rb")) if keypoints else None

        def read(places: ImagePlaces) -> tuple[dict[str, Any], list[dict[str, Any]]]:
            annotations = [read_entry(file, place) for place in places.annotations]
            for annotation, identity in zip(annotations, places.ids, strict=False):
                annotation["id"] = identity
            for annotation, place in zip(annotations, places.keypoints, strict=True):
                if place is not None and points is not None:
                    annotation.update(keypoint_fields(read_entry(points, place), "keypoints", "num_keypoints"))
            return read_entry(file, places.image), annotations

        yield read


def index_annotations(
    path: str | Path,
    keypoints: str | Path | None = None,
    *,
    policies: IssuePolicies | None = None,
    shown: str = "",
    group: str = "",
) -> AnnotationFile:
    """Reads a COCO instances file.

    Args:
        path: the JSON file.
        keypoints: a person_keypoints file of the same images; its `keypoints` and
            `num_keypoints` are merged into the annotations by id, its `keypoints` and
            `skeleton` into the categories.
        policies: policies for invalid entries, which are listed in `issues` and never in the
            index.
        shown: the user's file that `path` was made of, for messages; "": `path`.
        group: `data.group`.

    Raises:
        DataError: the file is missing or not a COCO file; a category is invalid.
    """
    scan = AnnotationScan(shown or str(path), policies or IssuePolicies({}), file=str(path), group=group)
    scan.read()
    categories = scan.categories()
    columns = scan.annotations({category["id"] for category in categories})
    points = [np.zeros_like(columns[0]), np.zeros_like(columns[0])]
    if keypoints is not None:
        points = scan.keypoints(str(keypoints), columns[0], categories)
    roots = root_categories(categories, scan.used_categories)
    return AnnotationFile(
        path=shown or str(path),
        file=str(path),
        keypoints=None if keypoints is None else str(keypoints),
        images=scan.images,
        categories=[category for category in categories if category not in roots],
        info=scan.members.get("info") or {},
        licenses=scan.members.get("licenses") or [],
        issues=scan.issues,
        groups=scan.groups,
        roots=roots,
        _annotations=_Annotations(*columns[1:], *points, ids=columns[0] if scan.renumbered else columns[0][:0]),
    )


def merge_categories(files: Iterable[tuple[str, Sequence[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Merges the categories of a data set: those of the first file, then additional ones of other files.

    Args:
        files: path and categories of each file.

    Raises:
        DataError: an id has different names in different files, or a name different ids.
    """
    merged: dict[int, tuple[dict[str, Any], str]] = {}
    ids: dict[str, tuple[int, str]] = {}  # name -> its first id and file
    for path, categories in files:
        for category in categories:
            other, other_path = ids.setdefault(category["name"], (category["id"], path))
            if other != category["id"] and other_path != path:
                raise DataError(
                    f"category {category['name']!r} has the id {other} in {other_path} but {category['id']} in {path}. "
                    "Give each category one id in all files of a data set."
                )
            first, first_path = merged.setdefault(category["id"], (category, path))
            if first["name"] != category["name"]:
                raise DataError(
                    f"category {category['id']} is {first['name']!r} in {first_path} but {category['name']!r} in "
                    f"{path}. Give each category one id in all files of a data set."
                )
    return [category for category, _ in merged.values()]


def root_categories(categories: Sequence[Mapping[str, Any]], used: Container[int]) -> list[dict[str, Any]]:
    """Returns the categories that are no classes: the roots of the trees that Roboflow writes.

    Args:
        categories: entries of a file.
        used: ids that annotations have.

    Returns:
        Entries of supercategory "none" without annotation, which all others have for their supercategory.
    """
    below = Counter(str(category.get("supercategory")) for category in categories)

    def is_root(category: Mapping[str, Any]) -> bool:
        is_top = category.get("supercategory") == "none" != category["name"] and category["id"] not in used
        return is_top and 0 < below[category["name"]] == len(categories) - 1

    return [dict(category) for category in categories if is_root(category)]


def differing_categories(some: Iterable[Mapping[str, Any]], others: Iterable[Mapping[str, Any]]) -> str:
    """Lists the categories that are in only one of two lists, by id and name, for a message; "" if there are none.

    >>> differing_categories([{"id": 1, "name": "cat"}], [{"id": 1, "name": "dog"}])
    "1 'cat', 1 'dog'"
    """
    one, other = ({(category["id"], category["name"]) for category in categories} for categories in (some, others))
    return ", ".join(f"{number} {name!r}" for number, name in sorted(one ^ other))


def scan_file_names(path: str | Path) -> Iterator[str]:
    """Yields the `file_name` values of a COCO file without parsing it.

    Takes a fraction of the time of `index_annotations`, and works on files that are invalid
    elsewhere.  A missing, empty or irregular file has no names.
    """
    if not is_file(path):
        return
    local = local_copy(path)
    try:
        with open(local, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for match in _FILE_NAME.finditer(data):
                yield json.loads(match[1])
    except (OSError, ValueError):
        return


def scan_categories(path: str | Path) -> list[dict[str, Any]] | None:
    """Reads the `categories` of a COCO file without parsing the rest; None if there is no single valid list.

    Takes a fraction of the time of `index_annotations`, which reports the issues of the file.
    """
    if not is_file(path):  # opening a pipe would wait for its writer
        return None
    local = local_copy(path)
    try:
        with open(local, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            starts = [match.end() - 1 for match in _CATEGORIES.finditer(data)]
            if len(starts) != 1:
                return None
            entries, _ = json.JSONDecoder().raw_decode(
                data[starts[0] : starts[0] + _CATEGORIES_BYTES].decode(errors="replace")
            )
    except (OSError, ValueError, RecursionError):
        return None
    if category_issues(entries):
        return None
    roots = root_categories(entries, _Used(local))
    return [entry for entry in entries if entry not in roots]


class _Used(Container[Any]):
    """The categories that a file's annotations have; only those that are asked for are looked for."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __contains__(self, category_id: Any) -> bool:
        with open(self._path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return re.search(rb'"category_id"\s*:\s*"?%d(?![\d.])' % category_id, data) is not None


def _places(offsets: np.ndarray, lengths: np.ndarray) -> list[ByteRange]:
    return [ByteRange(offset, length) for offset, length in zip(offsets.tolist(), lengths.tolist(), strict=True)]
