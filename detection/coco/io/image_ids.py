"""Finds image ids by file name: for image files, and for detections with other ids than the ground truth.

`predict` without ground truth numbers images from 1 and writes their list beside the detections.  Here,
such detections get the ids of the ground truth, because their ids belong to other images.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from detection.coco.validation.checks import IMAGE, valid_entries
from detection.datasets.entries import Id, Rows
from detection.storage.files import resolve
from detection.storage.json_files import read_json
from schemas.errors import DataError

_LOGGER = logging.getLogger("cocoflow.evaluate")


class _NamedImage(TypedDict):
    """The fields of an `images` entry that identify the image."""

    id: Id
    file_name: str


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
    rows = isinstance(detections, np.ndarray)
    own = detections[:, 0].tolist() if rows else [_image_id(detection) for detection in detections]
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
    new = [ids.get(listed[image_id]) for image_id in own]
    if rows:
        kept = np.array([image_id is not None for image_id in new], bool)
        return np.column_stack([[image_id for image_id in new if image_id is not None], detections[kept, 1:]])
    return [
        {**detection, "image_id": image_id}
        for detection, image_id in zip(detections, new, strict=True)
        if image_id is not None
    ]


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


def _image_id(detection: Any) -> Any:
    """Returns the image's id; None: the entry is invalid."""
    image_id = detection.get("image_id") if isinstance(detection, Mapping) else None
    return image_id if isinstance(image_id, int) else None


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
    return valid_entries(images, _NamedImage, (), IMAGE, where=where)


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
