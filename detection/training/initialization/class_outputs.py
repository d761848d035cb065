"""Maps the class outputs of a source checkpoint to the model's, by category."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Category = Mapping[str, Any]


def same_categories(ours: Sequence[Category], theirs: Sequence[Category]) -> np.ndarray:
    """Finds the index of the same category in `theirs` for each category in `ours`.

    Categories are the same if id and name are equal, or else the name, if it is unique on both
    sides.  An equal id alone means nothing, because most data sets count from 1.

    Args:
        ours: the model's categories with `id` and `name`.
        theirs: the source's categories with `id` and `name`.

    Returns:
        int64 [len(ours)]; -1: no such category.
    """
    by_both = {(category["id"], category["name"]): index for index, category in enumerate(theirs)}
    by_name = {category["name"]: index for index, category in enumerate(theirs)}
    counts = [Counter(category["name"] for category in side) for side in (ours, theirs)]

    def index_of(category: Category) -> int:
        by_id = by_both.get((category["id"], category["name"]))
        if by_id is not None:
            return by_id
        unique = all(count[category["name"]] == 1 for count in counts)
        return by_name[category["name"]] if unique else -1

    return np.array([index_of(category) for category in ours], np.int64)


def source_outputs(ours: np.ndarray, theirs: np.ndarray, same: np.ndarray) -> np.ndarray:
    """Finds the index of the source output that predicts the same class for each of the model's outputs.

    Outputs of one class, such as those of several anchors, correspond in order.

    Args:
        ours: int [N], class of each of the model's outputs (`Detector.output_classes`), or -1: none.
        theirs: int [M], class of each of the source's outputs, or -1: none.
        same: int [number of the model's classes], corresponding class of the source, or -1: none.

    Returns:
        int64 [N]; -1: no such output.
    """
    indices: dict[tuple[int, int], int] = {}
    seen: Counter[int] = Counter()
    for index, kind in enumerate(theirs.tolist()):
        indices[kind, seen[kind]] = index
        seen[kind] += 1
    seen.clear()
    matched = []
    for kind in ours.tolist():
        source_kind = int(same[kind]) if kind >= 0 else -1
        known = kind < 0 or source_kind >= 0
        matched.append(indices.get((source_kind, seen[kind]), -1) if known else -1)
        seen[kind] += 1
    return np.array(matched, np.int64)
