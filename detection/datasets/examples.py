"""Reads the description of a split of an `Examples` artifact, and checks the categories for a model."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from detection.datasets.importers.label_map import read_dataset_file
from detection.storage.files import is_dir, is_file, list_folder
from detection.storage.paths import join, name_of, parent
from schemas.artifacts import DATASET_JSON, split_dir
from schemas.errors import DataError
from schemas.quoting import first_of, quoted

_LISTED = 10  # max categories in a message


class Dataset(NamedTuple):
    """A split of an `Examples` artifact.

    records: folder of its TFRecord files.
    categories: COCO `categories` of the data set.
    images: number of images; None if the artifact does not have it.
    """

    records: str
    categories: list[dict[str, Any]]
    images: int | None


class OpenSplit(Protocol):
    """Opens a split of a folder of Examples, or of another data set, which is converted during the context."""

    def __call__(
        self, folder: str, *, split: str, check: Callable[[list[dict[str, Any]]], object] | None = None
    ) -> AbstractContextManager[Dataset]:
        """Yields the split.

        Args:
            folder: folder of the data set.
            split: name of the split.
            check: called with the categories before a conversion, if they are known by then.

        Raises:
            DataError: the data cannot be used.
        """


def read_dataset(root: str | Path, split: str) -> Dataset:
    """Reads the description of a split.

    Args:
        root: the artifact's folder.
        split: name of the split.

    Raises:
        DataError: the artifact has no readable description, or one without categories;
            the split has no files.
    """
    dataset = read_dataset_file(join(root, DATASET_JSON))
    folder = join(root, split_dir(split))
    if not (is_dir(folder) and list_folder(folder)):
        raise DataError(f"{folder}: no record files. Write the examples again.")
    return Dataset(folder, dataset["categories"], _image_count(dataset, split))


def require_same_ids(
    blessed: Sequence[Mapping[str, Any]], categories: Sequence[Mapping[str, Any]], *, data: str
) -> None:
    """Requires that category ids mean the same to the last blessed model and to a data set.

    Clients of a pushed model read the ids of the next one by the old names.

    Args:
        blessed: COCO `categories` of the model.
        categories: COCO `categories` of the data set.
        data: name of the data set in errors.

    Raises:
        DataError: they do not.
    """
    changed = renumbered(blessed, categories)
    if changed:
        raise DataError(
            f"{data}: category ids mean other things than to the last blessed model: {first_of(changed, _LISTED)}. "
            "Clients would read the new model's ids by the old names. Keep the ids, or accept the new ones with --set "
            "evaluate.accept_renumbered_categories=true: the models are compared by name."
        )


def require_all_images(folder: str, read: int) -> None:
    """Requires as many images as the dataset.json beside the folder of a split promises, if there is one.

    Args:
        folder: folder or pattern of records.
        read: number of images that were read there.

    Raises:
        DataError: the numbers differ.
    """
    split, file = name_of(folder).removeprefix(split_dir("")), join(parent(folder), DATASET_JSON)
    if split == name_of(folder) or not is_file(file):
        return
    written = _image_count(read_dataset_file(file), split)
    if written is not None and read != written:
        raise DataError(
            f"{folder}: {read:,} images, but {DATASET_JSON} has {written:,}: a file of records is missing, empty or of "
            "another data set. Copy or write the examples again."
        )


def require_categories(
    own: Sequence[Mapping[str, Any]], categories: Sequence[Mapping[str, Any]], *, model: str, data: str
) -> None:
    """Requires that a data set has all categories of a model; it may have more.

    Args:
        own: COCO `categories` of the model; an entry without `name` matches any name, an entry with `name` None
            is ignored.
        categories: COCO `categories` of the data set.
        model: name of the model in errors.
        data: name of the data set in errors.

    Raises:
        DataError: categories are missing, or have other names.
    """
    named = {category["id"]: category["name"] for category in categories}
    detected = [entry for entry in own if entry.get("name", "") is not None]
    lacking = [entry for entry in detected if named.get(entry["id"]) != entry.get("name", named.get(entry["id"]))]
    if lacking:
        listed = first_of([f"{entry['id']} {quoted(entry.get('name'))}" for entry in lacking], _LISTED)
        raise DataError(
            f"{data}: categories of the model {model} are missing: {listed}. "
            "Use a data set with the category ids and names that the model was trained on."
        )


def ids_by_name(own: Sequence[Mapping[str, Any]] | None, categories: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Returns category id of a model -> id of the category of the same name in a data set.

    Args:
        own: COCO `categories` of the model; those without a name keep their ids, and so do all if it is None.
        categories: COCO `categories` of the data set.
    """
    known = {category["id"]: category["id"] for category in categories}
    if own is None:
        return known
    named = {category["name"]: category["id"] for category in reversed(categories)}
    new = {entry["id"]: named.get(entry["name"]) if "name" in entry else known.get(entry["id"]) for entry in own}
    return {number: identity for number, identity in new.items() if identity is not None}


def renumbered(own: Sequence[Mapping[str, Any]], categories: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lists what ids mean in a model and other things in a data set, or names with another id, for a message."""
    before = {entry["id"]: entry["name"] for entry in own if entry.get("name")}
    now = {category["id"]: category["name"] for category in categories}
    ids = {name: number for number, name in now.items()}
    renamed = [
        f"{number} was {name!r} and is {now[number]!r}"
        for number, name in before.items()
        if now.get(number, name) != name
    ]
    moved = [
        f"{name!r} was {number} and is {ids[name]}"
        for number, name in before.items()
        if ids.get(name, number) != number and now.get(number) in (None, name)
    ]
    return [*renamed, *moved]


def _image_count(dataset: Mapping[str, Any], split: str) -> int | None:
    """Returns the number of images of a split; None if dataset.json does not have it."""
    try:
        images = dataset["splits"][split]["images"]
    except (KeyError, TypeError):
        return None
    return images if type(images) is int and images >= 0 else None
