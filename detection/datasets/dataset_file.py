"""`dataset.json` of an Examples artifact: what stood at the head of the COCO files it was made from."""

from pathlib import Path
from typing import Any

from detection.datasets.entries import head_fault
from detection.storage.json_files import read_json
from schemas.errors import DataError


def read_dataset_head(path: str | Path) -> dict[str, Any]:
    """Reads `info` and `licenses`, {} and [] where the file has none.

    Raises:
        DataError: the file cannot be read, is no object, or one of the two is invalid.
    """
    tree = read_json(path)
    if not isinstance(tree, dict):
        raise DataError(f"{path}: not the description of a data set: expected an object with `categories`.")
    head = {"info": tree.get("info") or {}, "licenses": tree.get("licenses") or []}
    for key, value in head.items():
        issue = head_fault(value, dict if key == "info" else list)
        if issue is not None:
            raise DataError(f"{path}: {key}: {issue}, or remove it.")
    return head
