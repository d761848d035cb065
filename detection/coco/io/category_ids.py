"""Compares the category ids of detections with the ground truth by name: other tools and data sets number otherwise.

Names are those of the list that `predict` writes beside its detections, or `category_name` of each detection, as SAHI
writes it.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from detection.datasets.entries import Rows, comparable_name
from detection.storage.json_files import read_json
from schemas.errors import DataError
from schemas.quoting import first_of, one_line

_LOGGER = logging.getLogger("cocoflow.evaluate")
_LISTED = 3  # max named categories


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
    said = [f"{one_line(names[number])} has {number} and {new or 'no id'}" for number, new in others.items()]
    return first_of(said, _LISTED)


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
    if isinstance(detections, np.ndarray):
        numbers = detections[:, 6].astype(int).tolist()
    else:
        numbers = [_category_id(one) for one in detections]
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
    if isinstance(detections, np.ndarray):
        kept = np.array([one is not None for one in new], bool)
        return np.column_stack([detections[kept, :6], [one for one in new if one is not None]])
    return [
        {**one, "category_id": number} if number != old else one
        for one, old, number in zip(detections, numbers, new, strict=True)
        if number is not None or old is None
    ]


def _names(categories: Sequence[Any]) -> dict[int, str]:
    return {
        one["id"]: one["name"]
        for one in categories
        if isinstance(one, Mapping) and isinstance(one.get("id"), int) and isinstance(one.get("name"), str)
    }


def _category_id(detection: Any) -> Any:
    """Returns the category's id; None: the entry is invalid."""
    number = detection.get("category_id") if isinstance(detection, Mapping) else None
    return number if isinstance(number, int) else None
