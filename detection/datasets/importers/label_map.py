"""Reads the categories of records from a label map, a COCO file, or the dataset.json of an Examples artifact."""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from detection.datasets.annotations.entries import too_many_categories
from detection.datasets.annotations.entry_rules import head_issue, require_valid_categories
from detection.storage import files, paths
from detection.storage.files import read_bytes
from detection.storage.json_files import read_json
from schemas.artifacts import DATASET_JSON, ROOT_CATEGORIES
from schemas.errors import DataError
from schemas.limits import MAX_LABEL_MAP
from schemas.quoting import one_line, quoted_json

_REASON = 200  # max characters of a parser's message
# Messages of a label map, as in the Object Detection API's `string_int_label_map.proto`; other fields are ignored.
_MESSAGES = {
    "Keypoint": {"id": "int64", "label": "string"},
    "Item": {"name": "string", "id": "int64", "display_name": "string", "keypoints": "Keypoint"},
    "LabelMap": {"item": "Item"},
}


@dataclass(frozen=True)
class LabelMap:
    """Categories, and their texts in records.

    source: the file.
    categories: COCO entries, each with an int `id` and a str `name`.
    texts: id -> all texts of the category.
    keypoint_ids: id -> ids of the category's keypoints, which the TF Object Detection API counts over all categories;
        only of categories with such ids.
    """

    source: str
    categories: list[dict[str, Any]]
    texts: dict[int, set[str]] = field(default_factory=dict)
    keypoint_ids: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def keypoints(self) -> dict[int, tuple[str, ...]]:
        """Returns the names of the keypoints of categories that have some."""
        return {one["id"]: tuple(map(str, one["keypoints"])) for one in self.categories if one.get("keypoints")}

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
        path: `*.json`: an object with COCO's `categories`, or with `id2label`, as the config.json of a model of
            Hugging Face's, whose ids start from 0.  Otherwise protocol buffer text,
            `item { id: 1 name: "n01" display_name: "cat" }`: the display name, if there is one,
            is the category's name, and records may use either.

    Raises:
            DataError: the file cannot be read, is not a label map, has a duplicate id, or keypoints of one name.
    """
    source = str(path)
    if source.endswith(".json"):
        tree = read_json(path)  # no size limit: it may be the annotation file itself
        tree = tree if isinstance(tree, dict) else {}
        items, labels = tree.get("categories"), tree.get("id2label")
        if items is None and isinstance(labels, dict) and all(re.fullmatch(r"\d{1,9}", key) for key in labels):
            items = [{"id": int(number), "name": name} for number, name in labels.items()]
        if not isinstance(items, list):
            raise DataError(f"{source}: no list `categories`. Pass a COCO file or a label_map.pbtxt as the label map.")
        categories = items
    else:
        items = _items(source)
        categories = [
            {"id": item.get("id"), "name": item.get("display_name") or item.get("name")}
            | ({"keypoints": [label for _, label in item["keypoints"]]} if item["keypoints"] else {})
            for item in items
        ]
    _require_valid(categories, source)
    texts: dict[int, set[str]] = {}
    for place, (item, category) in enumerate(zip(items, categories, strict=True), 1):
        if not category["name"]:
            raise DataError(f"{source}: item {place}: name is empty. Write a text.")
        texts[category["id"]] = {str(item[key]) for key in ("name", "display_name") if item.get(key)}
        _require_one_name_each(category.get("keypoints") or (), f"{source}: item {place}")
    return LabelMap(source, categories, texts, {} if source.endswith(".json") else _keypoint_ids(items, source))


def _require_one_name_each(names: Any, where: str) -> None:
    if not isinstance(names, Sequence):
        raise DataError(f"{where}: keypoints is {quoted_json(names)}. Write a list of names.")
    texts = list(map(str, names))
    for name in texts:
        if not name or texts.count(name) > 1:
            raise DataError(
                f"{where}: keypoint {name!r}{' twice' if name else ''}. Give each keypoint a name of its own."
            )


def _keypoint_ids(items: Sequence[dict[str, Any]], source: str) -> dict[int, tuple[int, ...]]:
    """Returns the ids of keypoints by category; {} if no keypoint has an id.

    Raises:
        DataError: only some have an id, or one id has two names.
    """
    names: dict[int | None, str] = {}
    for item in items:
        for identity, name in item["keypoints"]:
            if names.setdefault(identity, name) != name and identity is not None:
                raise DataError(
                    f"{source}: keypoint id {identity} is {names[identity]!r} and {name!r}. Count the ids of keypoints "
                    "over all items, as the TF Object Detection API does."
                )
    if None in names:
        if len(names) > 1:
            raise DataError(
                f"{source}: keypoint {names[None]!r} has no id, others have. Write the ids of all, or of none."
            )
        return {}
    return {item["id"]: tuple(identity for identity, _ in item["keypoints"]) for item in items if item["keypoints"]}


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
    """Reads `info`, `licenses` and the root categories of a dataset.json; {} and [] if they are missing.

    Raises:
        DataError: the file cannot be read, is not an object, or one of the two is invalid.
    """
    tree = read_json(path)
    if not isinstance(tree, dict):
        raise DataError(f"{path}: not the description of a data set: expected an object with `categories`.")
    head = {"info": tree.get("info") or {}, "licenses": tree.get("licenses") or []}
    head[ROOT_CATEGORIES] = tree.get(ROOT_CATEGORIES) or []
    for key, value in head.items():
        issue = head_issue(value, dict if key == "info" else list)
        if issue is not None:
            raise DataError(f"{path}: {key}: {issue}")
    return head


def dataset_files_beside(shard: str | Path) -> list[str]:
    """Finds the dataset.json of the Examples artifact that contains a shard; [] if there is none."""
    folder = paths.parent(shard)
    places = dict.fromkeys((folder, paths.parent(folder)))
    return [path for path in (paths.join(place, DATASET_JSON) for place in places) if files.is_file(path)]


def _require_valid(categories: list[Any], source: str) -> None:
    too_many = too_many_categories(len(categories))
    if too_many is not None:
        raise DataError(f"{source}: {too_many}")
    require_valid_categories(categories, lambda position: f"{source}: item {position + 1}")


def _items(source: str) -> list[dict[str, Any]]:
    """Reads the items of a label map; fields are missing if they are not set."""
    try:
        text = read_bytes(source, MAX_LABEL_MAP).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: cannot read the label map: {error}. Check --label-map.") from None
    labels = _label_map_class()()
    try:
        text_format.Merge(text, labels, allow_unknown_field=True)
    except (text_format.ParseError, RecursionError, ValueError) as error:  # ValueError: a text that is not UTF-8
        reason = one_line(error)[:_REASON]
        raise DataError(f"{source}: not a label map: {reason}. Expected item {{ id: 1 name: 'cat' }}.") from None
    if not labels.item:
        raise DataError(f"{source}: not a label map: no item. Expected item {{ id: 1 name: 'cat' }}.")
    return [
        {field.name: value for field, value in item.ListFields()} | {"keypoints": _keypoints_of(item)}
        for item in labels.item
    ]


def _keypoints_of(item: Any) -> list[tuple[int | None, str]]:
    """Returns (id, name) of the keypoints of an item, in its order, which is that of a CenterNet's channels, too."""
    return [(one.id if one.HasField("id") else None, one.label) for one in item.keypoints]


@functools.cache
def _label_map_class() -> Any:
    """Returns the class of protocol buffer messages `LabelMap`."""
    file = descriptor_pb2.FileDescriptorProto(name="label_map.proto", package="label_map")
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for number, (name, kind) in enumerate(fields.items(), 1):
            field = described.field.add(name=name, number=number)
            if kind in _MESSAGES:
                field.type_name, field.label = f".label_map.{kind}", field.LABEL_REPEATED
            else:
                field.type, field.label = getattr(field, f"TYPE_{kind.upper()}"), field.LABEL_OPTIONAL
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("label_map.LabelMap"))
