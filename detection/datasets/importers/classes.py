"""Resolves the categories of objects in records of other tools."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from detection.datasets.annotations.entries import is_id, too_many_categories
from detection.datasets.importers.label_map import LabelMap
from schemas.errors import DataError
from schemas.quoting import first_of

# An object's label and text, each None if it is missing in the record.
Named: TypeAlias = tuple[int | None, str | None]

ONLY_CATEGORY = "object"  # name of the category if no record has labels or texts


@dataclass(frozen=True)
class Classes:
    """A data set's categories.

    source: origin of the categories, for the report.
    categories: COCO entries, sorted by id if they come from the records.
    ids: category ids by (label, text); None: its objects are left out, as the label map lacks it.
    """

    source: str
    categories: list[dict[str, Any]]
    ids: dict[Named, int | None]

    @property
    def left_out(self) -> list[str]:
        """Names of the classes that are left out."""
        return [str(text or label) for (label, text), identity in self.ids.items() if identity is None]


def resolve_classes(pairs: Mapping[Named, str], label_map: LabelMap | None) -> Classes:
    """Determines the category of each object.

    A text is looked up in the label map before a label, as in the TF Object Detection API, and a class that it lacks is
    left out.  Without a label map, a label is a category id, and a text without a label is looked up among the records
    with both; if no record has labels, texts are numbered from 1 in sorted order.

    Args:
        pairs: every (label, text) of the data set's objects -> a file that contains it.
        label_map: the categories; None: take them from the records.

    Raises:
        DataError: contradictory categories, or an object without a known category; the message
            names the file.
    """
    if label_map is None:
        _refuse_two_texts(pairs)
    _refuse_invalid_labels(pairs)
    too_many = too_many_categories(len({text if label is None else label for label, text in pairs}))
    if too_many is not None:
        raise DataError(f"{next(iter(pairs.values()))}: {too_many}")
    if label_map is not None:
        classes = Classes(
            label_map.source,
            label_map.categories,
            {named: _id_by_map(named, label_map, path) for named, path in pairs.items()},
        )
        if pairs and len(classes.left_out) == len(pairs):
            raise DataError(
                f"{next(iter(pairs.values()))}: none of the classes is in {label_map.source}, such as "
                f"{first_of(classes.left_out, 3)}. Pass the label map of this data."
            )
        return classes
    if all(label is None for label, _ in pairs):
        return _numbered(pairs)
    by_text: dict[str | None, set[int]] = {}
    for label, text in pairs:
        if label is not None and text is not None:
            by_text.setdefault(text, set()).add(label)
    ids = {(label, text): _id_by_records(label, text, by_text, path) for (label, text), path in pairs.items()}
    names = {label: text for label, text in pairs if label is not None and text is not None}
    categories = [
        {"id": identity, "name": names.get(identity, str(identity))} for identity in sorted(set(ids.values()))
    ]
    return Classes("the records' labels" + (" and texts" if names else ", which have no texts"), categories, {**ids})


def _refuse_two_texts(pairs: Mapping[Named, str]) -> None:
    first: dict[int, tuple[str, str]] = {}
    for (label, text), path in pairs.items():
        if label is None or text is None:
            continue
        known, known_path = first.setdefault(label, (text, path))
        if known != text:
            raise DataError(
                f"label {label} is {known!r} in {known_path} but {text!r} in {path}. "
                "Give each label one text in all files of a data set."
            )


def _refuse_invalid_labels(pairs: Mapping[Named, str]) -> None:
    for (label, _), path in pairs.items():
        if label is not None and not is_id(label):
            raise DataError(
                f"{path}: label {label} is not a category id: an integer from 0 to 2^53. Write the records again."
            )


def _id_by_map(named: Named, label_map: LabelMap, path: str) -> int | None:
    label, text = named
    if named == (None, None):
        raise DataError(
            f"{path}: objects without label and text, which {label_map.source} cannot name. Pass no label map."
        )
    identity = None if text is None else label_map.id_of(text)
    if identity is not None or label not in label_map.texts:
        return identity
    if text is not None:
        known = " or ".join(map(repr, sorted(label_map.texts[label])))
        raise DataError(
            f"label {label} is {known} in {label_map.source} but {text!r} in {path}. Pass the label map of this data."
        )
    return label


def _id_by_records(label: int | None, text: str | None, by_text: Mapping[str | None, set[int]], path: str) -> int:
    if label is not None:
        return label
    ids = by_text.get(text, set())
    if len(ids) != 1:
        what = "no label and no text" if text is None else f"no label, and the text {text!r}"
        raise DataError(
            f"{path}: objects with {what}, for which other records have {len(ids)} labels. Pass a label map."
        )
    return next(iter(ids))


def _numbered(pairs: Iterable[Named]) -> Classes:
    texts = sorted({text for _, text in pairs if text is not None})
    ids: dict[Named, int | None] = {(None, text): number for number, text in enumerate(texts, 1)}
    names = dict(enumerate(texts, 1))
    if (None, None) in pairs:
        ids[None, None] = len(texts) + 1
        names[len(texts) + 1] = ONLY_CATEGORY
    source = "the records' texts, numbered in sorted order, as there are no labels" if texts else "none in the records"
    return Classes(source, [{"id": identity, "name": name} for identity, name in names.items()], ids)
