"""Finds ids by name, for detections with other ids than the ground truth: other tools and data sets number otherwise.

Images: `predict` without ground truth numbers them from 1 and writes their list beside the detections; other tools
write the `file_name` of each detection.  Categories: names are those of that list, or `category_name` of each
detection, as SAHI writes it.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from detection.coco.validation.checks import valid_entries
from detection.coco.validation.entry_types import NamedImage
from detection.datasets.annotations.entries import Rows, comparable_name
from detection.datasets.annotations.entry_rules import ROW_COLUMNS, column
from detection.storage.files import resolve
from detection.storage.json_files import read_json
from schemas.errors import DataError
from schemas.quoting import first_of, one_line

_LOGGER = logging.getLogger("cocoflow.evaluate")
_LISTED = 3  # max named categories


def with_ground_truth_ids(
    detections: Any, path: str | Path, images: Sequence[Any], *, list_path: str, where: str
) -> list[Any] | Rows | Any:
    """Replaces image ids numbered by `predict` by those of the ground truth.

    Args:
        detections: content of the results file: COCO results, or rows.
        path: the results file.
        images: `images` entries of the ground truth, with `file_name`.
        list_path: the list of images beside the results file.
        where: source of the ground truth, for messages.

    Returns:
        Detections of the images in the ground truth.  Unchanged if images of the detections are missing in the list
        of images, which then belongs to another file.

    Raises:
        DataError: no image is in the ground truth, or file names are ambiguous.
    """
    listed = {image["id"]: image["file_name"] for image in named_images(list_path)}
    own = _ids_in(detections, "image_id")
    if not listed.keys() >= set(own):
        return detections
    ids = ids_by_file_name(list(listed.values()), images, where=where)
    _LOGGER.warning(
        "%s: matching image ids by the file names in %s: %d of %d images are in %s, which has %d",
        path,
        list_path,
        len(ids),
        len(listed),
        where,
        len(images),
    )
    return _with_ids(detections, "image_id", [ids.get(listed[image_id]) for image_id in own])


def with_named_ids(detections: Sequence[Any], path: str | Path, images: Sequence[Any], *, where: str) -> Sequence[Any]:
    """Replaces image ids that contradict the `file_name` of the same detection: tools number images in many ways.

    Args:
        detections: content of the results file, COCO results.
        path: the results file.
        images: `images` entries of the ground truth.
        where: source of the ground truth, for messages.

    Returns:
        The detections; those of files that the ground truth does not have are left out if any id is replaced.
        Unchanged if no file name is in the ground truth.

    Raises:
        DataError: ids contradict the names, and some detections have no name.
    """
    names = [one.get("file_name") if isinstance(one, Mapping) else None for one in detections]
    listed = sorted({name for name in names if isinstance(name, str)})
    try:
        ids: Mapping[Any, int] = ids_by_file_name(listed, images, where=where)
    except DataError:  # other names, or none
        return detections
    known = [(one, ids.get(name)) for one, name in zip(detections, names, strict=True)]
    others = sum(image_id not in (None, one.get("image_id")) for one, image_id in known)
    if not others:
        return detections
    if None in names:
        raise DataError(
            f"{path}: {others} detections have a file_name of another image than their image_id in {where}, and others "
            "have no file_name. Write it for all, or correct the ids."
        )
    _LOGGER.warning(
        "%s: %d of %d detections have an image_id that is not that of their file_name in %s: the file names count; %d "
        "are of files that it does not have",
        path,
        others,
        len(detections),
        where,
        sum(image_id is None for _, image_id in known),
    )
    return [{**one, "image_id": image_id} for one, image_id in known if image_id is not None]


def named_images(path: str | Path) -> list[Any]:
    """Reads the `images` of a COCO file.

    Raises:
        DataError: the file cannot be read, has no list `images`, or an image has no id or file_name.
    """
    tree = read_json(path)
    images = tree.get("images") if isinstance(tree, dict) else None
    if not isinstance(images, list):
        raise DataError(f"{path}: no list `images`. Pass a COCO annotation file as the ground truth.")
    return _valid(images, where=str(path))


def _valid(images: Sequence[Any], *, where: str) -> list[Any]:
    return valid_entries(images, NamedImage, (), "image", where=where)


def ids_by_file_name(files: Sequence[str], images: Sequence[Any], *, where: str) -> dict[str, int]:
    """Finds the image of each file, by the longest `file_name` that the file's path ends with.

    Args:
        files: paths of image files.
        images: COCO `images` entries.
        where: source of the images, for messages.

    Returns:
        Ids of the files that were found.

    Raises:
        DataError: no file was found, a file matches several images, or two files match the same image.
    """
    names: dict[str, list[int]] = {}
    for image in _valid(images, where=where):
        names.setdefault(image["file_name"], []).append(image["id"])
    found = {file: _listed_id(file, names, where) for file in files}
    ids = {file: image_id for file, image_id in found.items() if image_id is not None}
    by_image: dict[int, str] = {}
    for file, image_id in ids.items():
        other = by_image.setdefault(image_id, file)
        if other != file:
            raise DataError(f"{other} and {file} are both image {image_id} of {where}. Pass only one of them.")
    if files and not ids:
        raise DataError(f"{where}: has none of the {len(files)} images, such as {files[0]}. Check file_name.")
    return ids


def _listed_id(path: str, listed: Mapping[str, Sequence[int]], where: str) -> int | None:
    parts = resolve(path).split("/")
    endings = ("/".join(parts[start:]) for start in range(1, len(parts)))
    name = next((ending for ending in endings if ending in listed), None)
    if name is None:
        return None
    first, *others = listed[name]
    if others:
        raise DataError(
            f"{where}: images {first} and {others[0]} have the same file_name {name!r}, so {path} may be "
            "either. Use one file per image."
        )
    return first


def names_in(detections: Sequence[Any], path: str | Path) -> dict[int, str]:
    """Returns the names that detections have beside their category ids; {}: none.

    Args:
        detections: content of the results file, COCO results.
        path: the results file.

    Raises:
        DataError: one id has two names.
    """
    names: dict[int, str] = {}
    for one in detections:
        if not isinstance(one, Mapping):
            continue
        number, name = one.get("category_id"), one.get("category_name")
        if isinstance(number, int) and isinstance(name, str) and names.setdefault(number, name) != name:
            raise DataError(
                f"{path}: category_id {number} has the names {one_line(names[number])} and {one_line(name)}. Correct "
                "category_name or category_id."
            )
    return names


def listed_names(list_path: str) -> dict[int, str]:
    """Returns the names of the categories in the list that `predict` writes; {}: it has none."""
    tree = read_json(list_path)
    entries = tree.get("categories") if isinstance(tree, dict) else None
    return _names(entries) if isinstance(entries, list) else {}


def other_ids(names: Mapping[int, str], categories: Sequence[Any]) -> dict[int, int | None]:
    """Finds the ids whose names have another id in the ground truth, or none while the id is another category's.

    Args:
        names: category id -> name in the results, or of a model.
        categories: `categories` entries of the ground truth.

    Returns:
        Id -> id in the ground truth; {} if the ground truth has none of the names, which then are no names of it.
    """
    own = {number: comparable_name(name) for number, name in _names(categories).items()}
    ids = {name: number for number, name in reversed(own.items())}
    found = {number: ids.get(comparable_name(name)) for number, name in names.items()}
    if not any(new is not None for new in found.values()):
        return {}
    return {
        number: new
        for number, new in found.items()
        if own.get(number) != comparable_name(names[number]) and (new is not None or number in own)
    }


def in_words(others: Mapping[int, int | None], names: Mapping[int, str]) -> str:
    """Returns the result of `other_ids` as words for a message."""
    listed = [f"{one_line(names[number])} has {number} and {new or 'no id'}" for number, new in others.items()]
    return first_of(listed, _LISTED)


def with_category_ids(
    detections: Sequence[Any] | Rows,
    path: str | Path,
    categories: Sequence[Any],
    *,
    names: Mapping[int, str],
    where: str,
) -> Any:
    """Replaces category ids that contradict their names by those of the ground truth.

    Args:
        detections: content of the results file: COCO results, or rows.
        path: the results file.
        categories: `categories` entries of the ground truth.
        names: category id -> name in the results.
        where: source of the ground truth, for messages.

    Returns:
        The detections, without those whose id is another category's and whose name the ground truth does not have.
    """
    others = other_ids(names, categories)
    if not others:
        return detections
    numbers = _ids_in(detections, "category_id")
    new = [others.get(number, number) for number in numbers]
    left_out = sum(one is None for one in new) - numbers.count(None)
    _LOGGER.warning(
        "%s: category ids are not those of the same names in %s: the names count (%s); %d of %d detections are of "
        "categories that it does not have",
        path,
        where,
        in_words(others, names),
        left_out,
        len(new),
    )
    return _with_ids(detections, "category_id", new)


def _names(categories: Sequence[Any]) -> dict[int, str]:
    return {
        one["id"]: one["name"]
        for one in categories
        if isinstance(one, Mapping) and isinstance(one.get("id"), int) and isinstance(one.get("name"), str)
    }


def _ids_in(detections: Sequence[Any] | Rows, key: str) -> list[Any]:
    """Returns the ids under `key`; None for an invalid entry."""
    if isinstance(detections, np.ndarray):
        return column(detections, key).astype(int).tolist()
    values = [one.get(key) if isinstance(one, Mapping) else None for one in detections]
    return [value if isinstance(value, int) else None for value in values]


def _with_ids(detections: Sequence[Any] | Rows, key: str, ids: Sequence[int | None]) -> Any:
    """Replaces the ids under `key`; leaves out detections whose new id is None, except invalid ones."""
    if isinstance(detections, np.ndarray):
        rows = detections[[new is not None for new in ids]]
        rows[:, ROW_COLUMNS[key]] = [new for new in ids if new is not None]
        return rows
    return [
        {**one, key: new} if new != old else one
        for one, old, new in zip(detections, _ids_in(detections, key), ids, strict=True)
        if new is not None or old is None
    ]
