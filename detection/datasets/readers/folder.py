"""A folder as its owner left it, and what a reader makes of it."""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from detection.images.files import ImageFileError, has_image_suffix, read_header
from detection.storage import files, paths
from detection.storage.file_system import FileState
from detection.storage.files import read_bytes, read_range
from schemas.artifacts import EVAL_SPLIT, TRAIN_SPLIT
from schemas.errors import DataError

SPLIT_NAMES = {
    "train": TRAIN_SPLIT,
    "training": TRAIN_SPLIT,
    "trainval": TRAIN_SPLIT,
    "val": EVAL_SPLIT,
    "valid": EVAL_SPLIT,
    "validation": EVAL_SPLIT,
    "validate": EVAL_SPLIT,
    "eval": EVAL_SPLIT,
    "test": "test",
}
_SPLIT_WORD = re.compile(rf"(?:^|[^a-z])({'|'.join(sorted(SPLIT_NAMES, key=len, reverse=True))})(?=[^a-z]|$)")
_HEADER = 1 << 16  # bytes in which most images declare their size
_MOST_BYTES = 16 << 20  # largest label file that is read
_MASKS = re.compile(r"(^|/)Segmentation(Object|Class)[^/]*/")
_IMAGES = {"jpegimages", "images", "image", "imgs", "img"}
LABELS = (".json", ".yaml", ".yml", ".data", ".xml", ".csv", ".txt", "record", "tfrecord")
# Folders in which tools put labels, in lower case; folders named for splits are usual, too.
_USUAL = {
    "annotations", "annotation", "annots", "anno", "ann", "xml", "xmls", "labels", "label", "labels_yolo", "json",
    "csv", "images", "image", "imgs", "img", "jpegimages", "imagesets", "main", "obj_train_data", "data", "result",
    "results",
}  # fmt: skip
# Folders and files that macOS, Windows, archivers and version control leave.
_NO_DATA = re.compile(
    r"(^|/)(\._[^/]*|__MACOSX|\.git|\.svn|\.ipynb_checkpoints|Thumbs\.db|desktop\.ini|\.DS_Store)(/|$)"
)


class Fault(NamedTuple):
    """Something wrong that a reader leaves out.

    where: file and line.
    message: what is wrong, and what to do.
    kind: a key of `schemas.config.issues.ISSUE_KINDS`.
    """

    where: str
    message: str
    kind: str = "entry"


@dataclass
class ReadImage:
    """An image as a reader found it.

    path: below the data set's folder.
    size: width and height in pixels, after the rotation in an EXIF tag where labels are fractions; None: unknown.
    objects: COCO annotations with a text `category` in place of ids, or with `corners` (x_min, y_min, x_max, y_max)
        in place of `bbox`.
    faults: objects left out.
    source: what the file says of its origin; None: nothing.
    """

    path: str
    size: tuple[int, int] | None
    objects: list[dict[str, Any]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    source: str | None = None


@dataclass(frozen=True)
class Recognised:
    """A data set in one format.

    title: of the format, with the file that shows it.
    file: that file, or the folder.
    splits: name of each split -> paths of its images below the folder.
    read: returns an image of a split with its objects.
    categories: entries without ids, in the order of ids; None: the sorted names of all objects.
    notes: notes on the data set for the user, a sentence each.
    finish: sees all images, and may complete them; returns more notes.
    """

    title: str
    file: str
    splits: Mapping[str, Sequence[str]]
    read: Callable[[str, str], ReadImage] = lambda path, split: ReadImage(path, None)
    categories: Sequence[Mapping[str, Any]] | None = None
    notes: Sequence[str] = ()
    finish: Callable[[Sequence[ReadImage]], Sequence[str]] = lambda images: ()


class Folder:
    """The files below a folder, listed once.

    Args:
        root: local or remote.
        corners: `data.voc_corners`.
        anywhere: files with labels in any folder count; False: in the root, and in folders of usual names.
    """

    def __init__(self, root: str, corners: str = "auto", *, anywhere: bool = False) -> None:
        self.root = paths.normalized(root)
        self.corners = corners
        self.anywhere = anywhere

    def below_folder(self, folder: str) -> "Folder":
        """Returns a folder below, without listing it again."""
        below = Folder(paths.join(self.root, folder), self.corners)
        start = len(folder) + 1
        below.states = {path[start:]: state for path, state in self.states.items() if path.startswith(f"{folder}/")}
        return below

    @cached_property
    def states(self) -> dict[str, FileState]:
        """Path below the folder -> state, of all files that may be data, sorted."""
        states = files.walk_states(self.root)
        return {path: states[path] for path in sorted(states) if not _NO_DATA.search(path)}

    @cached_property
    def images(self) -> list[str]:
        """Paths of the image files, without VOC's masks."""
        return [path for path in self.states if has_image_suffix(path) and not _MASKS.search(path)]

    @cached_property
    def by_lower(self) -> dict[str, str]:
        """Path in lower case -> path of a file."""
        return {path.lower(): path for path in self.states}

    @cached_property
    def by_stem(self) -> dict[str, list[str]]:
        """Lower-case name without suffix -> image files of that name, in any folder."""
        found: dict[str, list[str]] = {}
        for path in self.images:
            found.setdefault(stem_of(path).lower(), []).append(path)
        return found

    def with_suffix(self, *suffixes: str) -> list[str]:
        """Paths of files with one of the suffixes that may be labels, those nearest to the root first."""
        found = (path for path in self.states if path.lower().endswith(suffixes) and self.is_usual(path))
        return sorted(found, key=lambda path: (path.count("/"), path))

    def is_usual(self, path: str) -> bool:
        """Returns whether a file with labels is in a folder of a usual name, and so of this data set and no other."""
        folders = path.lower().split("/")[:-1]
        return self.anywhere or all(name in _USUAL or split_named(name) for name in folders)

    def folders_with_labels(self) -> list[str]:
        """Folders that may be data sets: with files that may be labels, and those above; nearest to the root first."""
        found: set[str] = set()
        for path in self.states:
            if path.lower().endswith(LABELS):
                while path := parent_of(path):
                    found.add(path)
        return sorted(found, key=lambda path: (path.count("/"), path))

    def folder_exists(self, path: str) -> bool:
        """Returns whether there are files below a folder."""
        return path in self._folders

    @cached_property
    def _folders(self) -> set[str]:
        folders: set[str] = {""}
        for path in self.states:
            while (path := parent_of(path)) not in folders:
                folders.add(path)
        return folders

    def below(self, folder: str) -> list[str]:
        """Paths of the image files below a folder; "": all."""
        return [path for path in self.images if path.startswith(f"{folder}/")] if folder else self.images

    def image_named(self, name: str, *, near: str, split: str | None = None) -> str | None:
        """Finds the image that an annotation means.

        Args:
            name: path or name, of another machine perhaps; the suffix may differ.
            near: path of the annotation, for choosing between images of one name.
            split: of the annotation, whose folder is looked into first; None: that of `near`.

        Returns:
            The image of the same path, or the nearest one of the same name; None: no such image, or several equally
            near ones.
        """
        found = self.by_stem.get(stem_of(slashed(name)).lower(), [])
        found = [path for path in found if split and split_named(parent_of(path)) == split] or found
        return nearest(found, slashed(name), near=near)

    def content(self, path: str) -> bytes:
        """Reads a file with labels.

        Raises:
            DataError: it cannot be read, or is too large.
        """
        return read_bytes(paths.join(self.root, path), _MOST_BYTES)

    def text(self, path: str) -> str:
        """Reads a text in UTF-8, or in Latin-1 if it is not UTF-8; without a byte order mark.

        Raises:
            DataError: it cannot be read, or is too large.
        """
        content = self.content(path)
        for encoding in ("utf-8-sig", "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin-1"):
            try:
                return content.decode(encoding)
            except UnicodeDecodeError:
                continue
        raise DataError(f"{self.shown(path)}: no text. Write UTF-8.")

    def size(self, path: str) -> tuple[int, int] | None:
        """Returns width and height of an image as viewers show it, from its header; None: it has no valid one."""
        file = paths.join(self.root, path)
        for length in (_HEADER, None):
            try:
                header = read_header(read_range(file, 0, length))
            except ImageFileError:  # too little of it, perhaps; the image itself is checked later
                continue
            return (header.height, header.width) if header.turned else (header.width, header.height)
        return None

    def shown(self, path: str) -> str:
        """Returns a path for messages."""
        return paths.join(self.root, path)


def nearest(found: Sequence[str], name: str, *, near: str) -> str | None:
    """Returns the path whose end is most like `name`, then the one nearest to `near`; None: none, or several."""

    def rank(path: str) -> tuple[int, int, bool]:
        same_end = _common(path.split("/")[::-1], name.split("/")[::-1])
        is_usual = parent_of(path).rpartition("/")[2].lower() in _IMAGES
        return same_end, _common(path.split("/"), near.split("/")), is_usual

    ranked = sorted(found, key=rank)
    unique = len(ranked) == 1 or (len(ranked) > 1 and rank(ranked[-1]) != rank(ranked[-2]))
    return ranked[-1] if unique else None


def _common(one: Sequence[str], others: Sequence[str]) -> int:
    pairs = zip(one, others, strict=False)
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


def slashed(path: str) -> str:
    """Returns a path of any machine with slashes."""
    return path.strip().replace("\\", "/")


def stem_of(path: str) -> str:
    """Returns the last name of a path without its last suffix."""
    name = path.rpartition("/")[2]
    return name.rpartition(".")[0] or name


def parent_of(path: str) -> str:
    """Returns the folder of a path; "": the root."""
    return path.rpartition("/")[0]


def split_named(path: str) -> str | None:
    """Returns the split that a path names with its last such word; None: it names none."""
    found = _SPLIT_WORD.findall(path.lower())
    return SPLIT_NAMES[found[-1]] if found else None


def finite(text: str | None) -> float | None:
    """Parses a finite number; None if the text is not one."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def some(names: Sequence[str]) -> str:
    """Lists the first names, for a message."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def left_out(names: Iterable[str], why: str) -> list[str]:
    """Returns the note on what is left out, such as "2 images are in no list"; []: nothing is."""
    listed = sorted(names)
    return [f"{len(listed):,} {why}, and are left out: {some(listed)}"] if listed else []


def by_folders(images: Iterable[str]) -> dict[str, list[str]]:
    """Divides images by the splits that their folders name; those of other folders are `train`."""
    splits: dict[str, list[str]] = {}
    for path in images:
        splits.setdefault(split_named(parent_of(path)) or TRAIN_SPLIT, []).append(path)
    return splits
