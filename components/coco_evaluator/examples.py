"""What an `Examples` artifact tells about one of its splits."""

from pathlib import Path
from typing import Any, NamedTuple

from detection.storage.json_files import read_json
from schemas.artifacts import DATASET_JSON, split_dir
from schemas.errors import DataError


class Dataset(NamedTuple):
    """A split that can be evaluated.

    records: folder of its files.
    categories: COCO `categories` of the data set.
    images: of the split; None where the artifact does not say.
    """

    records: str
    categories: list[dict[str, Any]]
    images: int | None


def read_dataset(root: str | Path, split: str) -> Dataset:
    """Reads the description of a split.

    Args:
        root: the artifact's folder.
        split: its name.

    Raises:
        DataError: the artifact has no readable description, or one without categories;
            the split has no file.
    """
    path = Path(root, DATASET_JSON)
    dataset = read_json(path)
    if not isinstance(dataset, dict) or not isinstance(dataset.get("categories"), list):
        raise DataError(f"{path}: no list `categories`. Write the examples with CocoExampleGen.")
    folder = Path(root, split_dir(split))
    if not any(folder.glob("*")):
        raise DataError(f"{folder}: no file of records. Write the examples again.")
    counts = dataset.get("splits", {}).get(split, {})
    return Dataset(str(folder), dataset["categories"], counts.get("images"))
