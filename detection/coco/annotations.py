"""Reading a COCO annotation file, with every fault of its structure named."""

import json
import mmap
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detection.coco.json_files import read_json
from schemas.errors import DataError

Entry = dict[str, Any]

_FILE_NAME = re.compile(rb'"file_name"\s*:\s*("(?:[^"\\]|\\.)*")')


@dataclass(frozen=True)
class CocoAnnotations:
    """The contents of one annotation file; entries and their order are the file's own.

    path: the file.
    images: entries of `images`; each has an int `id` and a str `file_name`.
    annotations: image id -> its annotations; every image has a (maybe empty) list.
        Each has ints `id`, `image_id`, `category_id` and a `bbox` of four numbers,
        (x, y, width, height) in pixels, which may still be nonsense.
    categories: entries of `categories`; each has an int `id` and a str `name`.
    info: the file's `info`, {} where it has none.
    licenses: the file's `licenses`, [] where it has none.
    """

    path: str
    images: list[Entry]
    annotations: dict[int, list[Entry]]
    categories: list[Entry]
    info: Entry
    licenses: list[Entry]


def read_annotations(path: str | Path, keypoints: str | Path | None = None) -> CocoAnnotations:
    """Reads a COCO instances file.

    Args:
        path: the JSON file.
        keypoints: a person_keypoints file of the same images; its `keypoints` and
            `num_keypoints` join the annotations of the same id, its `keypoints` and
            `skeleton` the categories.

    Raises:
        DataError: the file is missing or no COCO file; an entry lacks what it must
            have; ids are not unique; an annotation names an unknown image or category.
    """
    path = str(path)
    tree = _read_tree(path)
    images = _identified(tree, "images", path)
    categories = _identified(tree, "categories", path)
    annotations = _identified(tree, "annotations", path)
    _check_fields(images, "image", {"file_name": str}, path)
    _check_fields(categories, "category", {"name": str}, path)
    _check_fields(annotations, "annotation", {"image_id": int, "category_id": int, "bbox": list}, path)
    for annotation in annotations:
        _check_box(annotation, path)
    if keypoints is not None:
        _merge_keypoints(annotations, categories, str(keypoints), path)
    _check_categories(annotations, categories, path)
    return CocoAnnotations(
        path=path,
        images=images,
        annotations=_by_image(annotations, images, path),
        categories=categories,
        info=tree.get("info") or {},
        licenses=tree.get("licenses") or [],
    )


def merge_categories(files: Iterable[CocoAnnotations]) -> list[Entry]:
    """The categories of a whole data set: those of the first file, then what others add.

    Raises:
        DataError: an id that has different names in different files.
    """
    merged: dict[int, tuple[Entry, str]] = {}
    for file in files:
        for category in file.categories:
            first, path = merged.setdefault(category["id"], (category, file.path))
            if first["name"] != category["name"]:
                raise DataError(
                    f"category {category['id']} is {first['name']!r} in {path} but {category['name']!r} in "
                    f"{file.path}. Give each category one id in all files of a data set."
                )
    return [category for category, _ in merged.values()]


def is_crowd(annotation: Mapping[str, Any]) -> bool:
    """Whether an annotation marks a crowd; some tools write `is_crowd` for `iscrowd`."""
    return bool(annotation.get("iscrowd", annotation.get("is_crowd", 0)))


def scan_file_names(path: str | Path) -> Iterator[str]:
    """Yields the `file_name` values of a COCO file without parsing it.

    Takes a fraction of the time and memory of `read_annotations`, and works on files
    that are broken elsewhere.  A missing or empty file has none.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for match in _FILE_NAME.finditer(data):
                yield json.loads(match[1])
    except (OSError, ValueError):
        return


def _read_tree(path: str) -> Entry:
    tree = read_json(path)
    if not isinstance(tree, dict):
        raise DataError(f"{path}: not a COCO file: expected an object with `images`, not a {type(tree).__name__}.")
    return tree


def _identified(tree: Entry, key: str, path: str) -> list[Entry]:
    """The list under `key`, after a check that each entry is an object with an id of its own."""
    entries = tree.get(key)
    if not isinstance(entries, list):
        found = f"has keys {', '.join(sorted(tree)) or 'none'}" if entries is None else f"{key} is no list"
        raise DataError(f"{path}: not a COCO instances file: it needs a list `{key}`; this one {found}.")
    seen: set[int] = set()
    for position, entry in enumerate(entries):
        identity = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(identity, int) or isinstance(identity, bool):
            raise DataError(f"{path}: {key}[{position}] has no integer `id`: {_short(entry)}. Give it one.")
        if identity in seen:
            raise DataError(
                f"{path}: {key}[{position}]: id {identity} is there twice. Give each entry an id of its own."
            )
        seen.add(identity)
    return entries


def _check_fields(entries: list[Entry], what: str, fields: Mapping[str, type], path: str) -> None:
    for entry in entries:
        for field, kind in fields.items():
            if not _is_a(entry.get(field), kind):
                found = f"{field} is {_short(entry[field])}" if field in entry else f"{field} is missing"
                raise DataError(f"{path}: {what} {entry['id']}: {found}. Write {_KINDS[kind]}.")


def _check_box(annotation: Entry, path: str) -> None:
    box = annotation["bbox"]
    if len(box) != 4 or not all(_is_a(value, int) or isinstance(value, float) for value in box):
        raise DataError(
            f"{path}: annotation {annotation['id']}: bbox is {_short(box)}. Write four numbers: x, y, width, height."
        )


def _check_categories(annotations: list[Entry], categories: list[Entry], path: str) -> None:
    known = {category["id"] for category in categories}
    for annotation in annotations:
        if annotation["category_id"] not in known:
            raise DataError(
                f"{path}: annotation {annotation['id']}: category_id {annotation['category_id']} does not exist; "
                f"known ids: {_short(sorted(known))}. Correct it or add the category to `categories`."
            )


def _by_image(annotations: list[Entry], images: list[Entry], path: str) -> dict[int, list[Entry]]:
    groups: dict[int, list[Entry]] = {image["id"]: [] for image in images}
    for annotation in annotations:
        group = groups.get(annotation["image_id"])
        if group is None:
            raise DataError(
                f"{path}: annotation {annotation['id']}: there is no image with id {annotation['image_id']}. "
                "Correct image_id, add the image to `images`, or remove the annotation."
            )
        group.append(annotation)
    return groups


def _merge_keypoints(annotations: list[Entry], categories: list[Entry], keypoints: str, path: str) -> None:
    tree = _read_tree(keypoints)
    by_id = {annotation["id"]: annotation for annotation in annotations}
    for entry in _identified(tree, "annotations", keypoints):
        annotation = by_id.get(entry["id"])
        if annotation is None:
            raise DataError(
                f"{keypoints}: annotation {entry['id']} is not in {path}. "
                "Keypoints are merged by annotation id; add it there or remove it here."
            )
        annotation.update({key: entry[key] for key in ("keypoints", "num_keypoints") if key in entry})
    by_category = {category["id"]: category for category in categories}
    for entry in _identified(tree, "categories", keypoints):
        category = by_category.get(entry["id"], {})
        category.update({key: entry[key] for key in ("keypoints", "skeleton") if key in entry})


_KINDS: Mapping[type, str] = {int: "an integer", str: "a text", list: "a list"}


def _is_a(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
