"""COCO files as exports are: with any name, numbers and ids as texts, images in other folders than the file says."""

import contextlib
import mmap
import posixpath
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from detection.datasets.annotations.entries import LARGEST_ID
from detection.datasets.readers.folder import Folder, finite, parent_of, slashed, some, split_named, stem_of
from detection.storage import files, paths
from detection.storage.files import local_copy
from detection.storage.json_files import read_json
from schemas.artifacts import TRAIN_SPLIT
from schemas.errors import DataError

ROBOFLOW = "_annotations.coco.json"
_LISTS = tuple(re.compile(rb'"%s"\s*:\s*\[' % key) for key in (b"images", b"annotations", b"categories"))
_NUMBERS = {
    *("id", "image_id", "category_id", "width", "height", "area", "iscrowd"),
    *("bbox", "keypoints", "segmentation"),
}
_REFERENCES = {"images": "image_id", "categories": "category_id"}
_INTEGER = re.compile(r"0|[1-9]\d{0,15}")  # written as numbers are: 001 is a name
_TEXTS = re.compile(
    rb'"(?:id|image_id|category_id|width|height|area|iscrowd)"\s*:\s*"'
    # Keypoints of categories are names.
    rb'|"(?:bbox|keypoints|segmentation)"\s*:\s*[\[\s]*+(?:[-+.\deE]++\s*+,\s*+)*+"\s*[-+.\d]'
)


def find_coco(folder: Folder) -> tuple[dict[str, str], list[str]]:
    """Finds COCO files by their content.

    Returns:
        Name of each split -> file below the folder; and notes on other files, a sentence each.

    Raises:
        DataError: several files for one split.
    """
    found: dict[str, list[str]] = {}
    for path in folder.with_suffix(".json"):
        if path.endswith(ROBOFLOW) or (path.count("/") <= 1 and _is_coco(paths.join(folder.root, path))):
            split = split_named(parent_of(path)) or split_named(stem_of(path)) or TRAIN_SPLIT
            found.setdefault(split, []).append(path)
    chosen: dict[str, str] = {}
    notes: list[str] = []
    for split, candidates in found.items():
        [first, *others] = sorted(candidates, key=lambda path: not path.endswith(ROBOFLOW))
        if others and not first.endswith(ROBOFLOW):
            raise DataError(
                f"{folder.root}: {first} and {some(others)} are COCO files of the split {split}. Keep one, or specify "
                f"the files with --set data.splits.{split}.annotations=FILE --set data.splits.{split}.images=DIR."
            )
        if others:
            notes.append(f"{first} is read; {some(others)} beside it is not")
        chosen[split] = first
    return chosen, notes


def _is_coco(path: str) -> bool:
    """Returns whether a JSON file has the three lists of an instances file."""
    return _search(path, *_LISTS)


def has_texts(path: str) -> bool:
    """Returns whether a COCO file has numbers or ids as texts; quotes in its other texts are escaped."""
    return _search(path, _TEXTS)


def _search(path: str, *patterns: re.Pattern[bytes]) -> bool:
    if not files.is_file(path):  # opening a pipe would wait for its writer
        return False
    with (
        contextlib.suppress(OSError, ValueError),
        open(local_copy(path), "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        return all(pattern.search(data) for pattern in patterns)
    return False


def elsewhere(
    names: Sequence[str], images: str, root: str, there: Container[str] | None = None
) -> tuple[dict[str, str], str, list[str]]:
    """Finds images that are not where the file says, by their unique names in the data set's folder.

    Args:
        names: all file names in a COCO file.
        images: folder of the images.
        root: folder of the data set; "": that of the images.
        there: paths of the files below `images`, if known.

    Returns:
        File name -> path below the folder, for all images, or {} if all are in place or none is found; the folder; and
        notes on them, a sentence each.
    """
    missing = _missing(images, names, there)
    if not missing:
        return {}, images, []
    folder = Folder(root or images)
    place = paths.relative(images, folder.root) if images.startswith(f"{folder.root}/") else ""
    moved, ambiguous = {}, []
    for name in missing:
        name_there = unquote(slashed(name)) if "%" in name else slashed(name)
        last = name_there.rpartition("/")[2]
        found = [path for path in folder.by_stem.get(stem_of(last).lower(), []) if path.rpartition("/")[2] == last]
        if len(found) == 1:
            moved[name] = found[0]
        elif found:
            ambiguous.append(f"{name} ({some(found)})")
    notes = [f"{len(moved):,} images were found by their names in other folders"] if moved else []
    if ambiguous:
        notes.append(f"{len(ambiguous):,} missing images have a name that several have: {some(ambiguous)}")
    if not moved:
        return {}, images, notes
    lost = set(missing)
    in_place = (name for name in names if name not in lost and not name.startswith("/"))
    kept = {name: f"{place}/{name}".lstrip("/") for name in in_place}
    return moved | kept, folder.root, notes


def _missing(folder: str, names: Iterable[str], there: Container[str] | None) -> list[str]:
    if there is not None or paths.is_remote(folder):  # a request for each image would take minutes
        below = files.walk_states(folder) if there is None else there
        return [name for name in names if posixpath.normpath(name) not in below]

    def is_there(name: str) -> bool:
        # Names of the machine that wrote the file, which may be this one.
        if posixpath.normpath(name).startswith(("/", "..")):
            return False
        with contextlib.suppress(ValueError, OSError):
            return files.is_file(paths.join(folder, name))
        return False

    return [name for name in names if not is_there(name)]


def rewritten(path: str, shown: str, moved: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Reads a COCO file, and corrects what has one meaning: numbers and ids as texts, names of images.

    Texts that are finite numbers are numbers.  Where an id of a list is another text, such as 001 or 1.jpg, all ids of
    that list are numbered in the order of the file.

    Args:
        path: the file.
        shown: its name in notes.
        moved: file name -> the name to write.

    Returns:
        The content, and notes on the corrections, a sentence each.

    Raises:
        DataError: the file cannot be read.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        return {}, []
    lists = {
        key: [entry for entry in content[key] if isinstance(entry, dict)]
        for key in ("images", "annotations", "categories")
        if isinstance(content.get(key), list)
    }
    notes = [_numbered(key, entries, lists, shown) for key, entries in lists.items()]
    numbers = 0
    for key, entries in lists.items():
        names = {"id"} if key == "categories" else _NUMBERS
        for entry in entries:
            for name in entry.keys() & names:
                entry[name], count = _as_numbers(entry[name])
                numbers += count
    for entry in lists.get("images", []):
        entry["file_name"] = moved.get(str(entry.get("file_name")), entry.get("file_name"))
    if numbers:
        notes.append(f"{shown}: {numbers:,} numbers are texts: read as numbers")
    return content, [note for note in notes if note]


def _numbered(key: str, entries: list[dict[str, Any]], lists: Mapping[str, list[dict[str, Any]]], shown: str) -> str:
    """Numbers the entries of a list if an id is a text other than a number; returns a note on it."""
    ids = [entry.get("id") for entry in entries]
    if not any(isinstance(one, str) and not _INTEGER.fullmatch(one) for one in ids):
        return ""
    numbers = {text: place for place, text in enumerate(dict.fromkeys(map(str, ids)), start=1)}
    references = [(entries, "id")]
    if key in _REFERENCES:
        references.append((lists.get("annotations", []), _REFERENCES[key]))
    for named, name in references:
        for entry in named:
            if name in entry:
                entry[name] = numbers.get(str(entry[name]), entry[name])
    return f"{shown}: ids of {key} are texts: {len(numbers):,} {key} are numbered in the order of the file"


def _as_numbers(value: Any) -> tuple[Any, int]:
    """Returns a value with its texts as numbers, and how many they were; texts that are no number stay."""
    if isinstance(value, list):
        made = [_as_numbers(each) for each in value]
        return [each for each, _ in made], sum(count for _, count in made)
    if isinstance(value, str) and "_" not in value and (number := finite(value)) is not None:
        return int(number) if number.is_integer() and abs(number) <= LARGEST_ID else number, 1
    return value, 0
