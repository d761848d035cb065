"""Reads the categories of records from a label map, a COCO file, or the dataset.json of an Examples artifact."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from detection.datasets.entries import category_issue, head_issue, too_many_categories
from detection.storage import files, paths
from detection.storage.json_files import read_json
from detection.storage.reading import read_bytes
from schemas.artifacts import DATASET_JSON
from schemas.errors import DataError
from schemas.limits import MAX_LABEL_MAP

_TOKEN = re.compile(
    r"""\#[^\n]* | [\s,;]+ | (?P<text>"[^"\\]*+(?:\\.[^"\\]*+)*+"|'[^'\\]*+(?:\\.[^'\\]*+)*+')"""
    r""" | (?P<word>[^\s{}<>:,;"'\#\[\]]+)"""
    r""" | (?P<mark>[{}<>:\[\]])""",
    re.VERBOSE,
)
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True)
class LabelMap:
    """Categories, and their texts in records.

    source: the file.
    categories: COCO entries, each with an int `id` and a str `name`.
    texts: id -> all texts of the category.
    """

    source: str
    categories: list[dict[str, Any]]
    texts: dict[int, set[str]] = field(default_factory=dict)

    def id_of(self, text: str) -> int | None:
        """Returns the category with the text; None if there is none or more than one."""
        ids = self._ids.get(text, ())
        return ids[0] if len(ids) == 1 else None

    @cached_property
    def _ids(self) -> dict[str, list[int]]:
        ids: dict[str, list[int]] = {}
        for identity, texts in self.texts.items():
            for text in texts:
                ids.setdefault(text, []).append(identity)
        return ids


def read_label_map(path: str | Path) -> LabelMap:
    """Reads a label map.

    Args:
        path: `*.json`: an object with COCO's `categories`.  Otherwise protocol buffer text,
            `item { id: 1 name: "n01" display_name: "cat" }`: the display name, if there is one,
            is the category's name, and records may use either.

    Raises:
            DataError: the file cannot be read, is not a label map, or has a duplicate id.
    """
    source = str(path)
    if source.endswith(".json"):
        tree = read_json(path)  # no size limit: it may be the annotation file itself
        items = tree.get("categories") if isinstance(tree, dict) else None
        if not isinstance(items, list):
            raise DataError(f"{source}: no list `categories`. Pass a COCO file or a label_map.pbtxt as the label map.")
        categories = items
    else:
        items = [_item(block) for block in _blocks(source)]
        categories = [_category(item) for item in items]
    _require_valid(categories, source)
    texts: dict[int, set[str]] = {}
    for place, (item, category) in enumerate(zip(items, categories, strict=True), 1):
        if not category["name"]:
            raise DataError(f"{source}: item {place}: name is empty. Write a text.")
        texts[category["id"]] = {str(item[key]) for key in ("name", "display_name") if item.get(key)}
    return LabelMap(source, categories, texts)


def read_dataset_file(path: str | Path) -> dict[str, Any]:
    """Reads a dataset.json and validates its `categories`; other keys are not checked.

    Raises:
        DataError: the file cannot be read, or its categories are missing or invalid.
    """
    tree = read_json(path)
    categories = tree.get("categories") if isinstance(tree, dict) else None
    if not isinstance(categories, list):
        raise DataError(f"{path}: no list `categories`. Write the examples again.")
    _require_valid(categories, str(path))
    return dict(tree)


def read_dataset_head(path: str | Path) -> dict[str, Any]:
    """Reads `info` and `licenses` of a dataset.json; {} and [] if they are missing.

    Raises:
        DataError: the file cannot be read, is not an object, or one of the two is invalid.
    """
    tree = read_json(path)
    if not isinstance(tree, dict):
        raise DataError(f"{path}: not the description of a data set: expected an object with `categories`.")
    head = {"info": tree.get("info") or {}, "licenses": tree.get("licenses") or []}
    for key, value in head.items():
        issue = head_issue(value, dict if key == "info" else list)
        if issue is not None:
            raise DataError(f"{path}: {key}: {issue}, or remove it.")
    return head


def dataset_files_beside(shard: str | Path) -> list[str]:
    """Finds the dataset.json of the Examples artifact that contains a shard; [] if there is none."""
    folder = paths.parent(shard)
    places = dict.fromkeys((folder, paths.parent(folder)))
    return [path for path in (paths.join(place, DATASET_JSON) for place in places) if files.is_file(path)]


def _require_valid(categories: list[Any], source: str) -> None:
    too_many = too_many_categories(len(categories))
    if too_many is not None:
        raise DataError(f"{source}: {too_many}.")
    ids: set[int] = set()
    for place, category in enumerate(categories, 1):
        issue = category_issue(category)
        if issue is not None:
            raise DataError(f"{source}: item {place}: {issue}.")
        identity = category["id"]
        if identity in ids:
            raise DataError(f"{source}: item {place}: duplicate id {identity}. Give each item a unique id.")
        ids.add(identity)


def _category(item: dict[str, Any]) -> dict[str, Any]:
    category = {"id": item.get("id"), "name": item.get("display_name") or item.get("name")}
    return category | {key: item[key] for key in ("keypoints",) if item.get(key)}


def _item(block: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an item's fields; of repeated fields, the labels of all `keypoints` and the last of others."""
    item: dict[str, Any] = {key: value for key, value in block if isinstance(value, str)}
    if re.fullmatch(r"-?[0-9]{1,19}", str(item.get("id"))):
        item["id"] = int(item["id"])
    points = [dict(value) for key, value in block if key == "keypoints" and isinstance(value, list)]
    return item | {"keypoints": [str(point.get("label", "")) for point in points]}


def _blocks(source: str) -> list[list[tuple[str, Any]]]:
    """Reads the `item` blocks of a file."""
    try:
        text = read_bytes(source, MAX_LABEL_MAP).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: cannot read the label map: {error}. Check --label-map.") from None
    try:
        fields = _fields(_tokens(text), nested=False)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source}: not a label map: {error}. Expected item {{ id: 1 name: 'cat' }}.") from None
    blocks = [value for key, value in fields if key == "item" and isinstance(value, list)]
    if not blocks:
        raise DataError(f"{source}: not a label map: no item. Expected item {{ id: 1 name: 'cat' }}.")
    return blocks


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """Yields the (kind, value) of each token: "text" (without quotes), "word" or "mark"."""
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"line {text.count(chr(10), 0, position) + 1}: a quote is not closed")
        position = match.end()
        if match["text"]:
            yield "text", _ESCAPED.sub(r"\1", match["text"][1:-1])
        elif match.lastgroup:
            yield match.lastgroup, match[match.lastgroup]


def _fields(tokens: Iterator[tuple[str, str]], *, nested: bool) -> list[tuple[str, Any]]:
    """Returns (key, text or fields) up to the end of the block or file."""
    fields: list[tuple[str, Any]] = []
    for kind, key in tokens:
        if kind == "mark" and key in "}>" and nested:
            return fields
        if kind != "word":
            raise ValueError(f"expected a key, found {key!r}")
        form, value = next(tokens, ("mark", ""))
        if (form, value) == ("mark", ":"):
            form, value = next(tokens, ("mark", ""))
        if form != "mark":
            fields.append((key, value))
        elif value in ("{", "<"):
            fields.append((key, _fields(tokens, nested=True)))
        else:
            raise ValueError(f"{key} has no value")
    if nested:
        raise ValueError("a block is not closed")
    return fields
