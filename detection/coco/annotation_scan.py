"""One pass over a COCO annotation file: what it holds and where, and every fault of its structure."""

import json
import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from detection.coco.faults import Fault
from detection.coco.json_stream import Member, Place, stream_members
from schemas.errors import DataError
from schemas.faults import FaultPolicies

Entry = dict[str, Any]

_INT64 = 2**63
_NEEDED = ("images", "annotations", "categories")
_KNOWN = {*_NEEDED, "info", "licenses"}
_LISTED = 400  # characters of keys in a message


class AnnotationScan:
    """One pass over a file: places of the sound entries, faults of the others."""

    def __init__(self, path: str, policies: FaultPolicies) -> None:
        self.path = path
        self.images: dict[int, Place] = {}
        self.members: Entry = {}
        self.lists: dict[str, list[Any]] = defaultdict(list)
        self.faults: list[Fault] = []
        self._policies = policies
        self._faulty_images: set[int] = set()
        # id, image id, offset, length and category id of each annotation.
        self._rows: tuple[array[int], ...] = tuple(array("q") for _ in range(5))

    def read(self) -> None:
        """Reads the whole file.

        Raises:
            DataError: it cannot be read, or is no COCO instances file.
        """
        readers: Mapping[str, Callable[[Member], None]] = {
            "images": self._image,
            "annotations": self._annotation,
            "categories": self._listed,
            "licenses": self._listed,
            "info": self._listed,
        }
        for member in stream_members(self.path):
            if not member.position and member.key in self.members:
                raise DataError(
                    f"{self.path}: the key {_short(member.key)} is there twice. Join the two, or remove one."
                )
            # Of other members nothing but their names: they may be large.
            value = [] if member.position is not None else member.value if member.key in _KNOWN else None
            self.members.setdefault(member.key, value)
            if member.position is not None and member.key in readers:
                readers[member.key](member)
        self._check_head()
        for key in _NEEDED:
            if self.members.get(key) != []:
                keys = ", ".join(sorted(self.members))[:_LISTED]
                found = f"{key} is no list" if key in self.members else f"has keys {keys}" if keys else "has no keys"
                raise DataError(f"{self.path}: not a COCO instances file: it needs a list `{key}`; this one {found}.")

    def categories(self) -> list[Entry]:
        """The categories; a fault in one is always refused, for every annotation depends on them.

        Raises:
            DataError: a category is faulty.
        """
        seen = set()
        for position, category in enumerate(self.lists["categories"]):
            reason = _lacks(category, {"id": int, "name": str}) or _bad_skeleton(category) or _unwritable(category)
            if reason is None and category["id"] in seen:
                reason = f"id {category['id']} is there twice. Give each category an id of its own"
            if reason is not None:
                raise DataError(f"{self.path}: categories[{position}]{_identity(category)}: {reason}.")
            seen.add(category["id"])
        return self.lists["categories"]

    def annotations(self, category_ids: set[int]) -> list[np.ndarray]:
        """Columns id, image id, offset, length, of sound annotations, sorted by image and place."""
        columns = [np.frombuffer(row, np.int64) if row else np.zeros(0, np.int64) for row in self._rows]
        ids, image_ids, _, _, categories = columns
        images = np.fromiter(self.images, np.int64, len(self.images))
        keep = self._sieve(
            columns,
            np.isin(image_ids, images),
            lambda row: ("entry", self._no_image(int(image_ids[row]))),
        )
        known = np.array(sorted(category_ids), np.int64)
        keep &= self._sieve(
            columns,
            np.isin(categories, known) | ~keep,
            lambda row: (
                "entry",
                f"category_id {categories[row]} does not exist; known ids: {_short(known.tolist())}. "
                "Correct it or add the category to `categories`",
            ),
        )
        first = np.zeros(len(ids), bool)
        first[np.unique(ids, return_index=True)[1]] = True
        keep &= self._sieve(
            columns,
            first | ~keep,
            lambda row: ("duplicate_id", "the id is there twice. Give each annotation an id of its own"),
        )
        rows = np.flatnonzero(keep)
        rows = rows[np.argsort(image_ids[rows], kind="stable")]
        return [column[rows] for column in columns[:4]]

    def keypoints(self, path: str, ids: np.ndarray, categories: Sequence[Entry]) -> list[np.ndarray]:
        """Finds the entries of a keypoints file that belong to annotations.

        Args:
            path: of the keypoints file.
            ids: of the annotations, int64 [N].
            categories: receive the skeletons of the file's own.

        Returns:
            Columns offset and length; length 0 where an annotation has no such entry.

        Raises:
            DataError: the file cannot be read, or a skeleton in it is faulty.
        """
        order = np.argsort(ids)
        columns = [np.zeros_like(ids), np.zeros_like(ids)]
        by_category = {category["id"]: category for category in categories}
        for member in stream_members(path):
            entry = member.value
            if member.position is None or member.key not in ("annotations", "categories"):
                continue
            reason = _lacks(entry, {"id": int})
            if reason is not None:
                self._add_fault("entry", f"{member.key}[{member.position}]: {reason}", path=path)
            elif member.key == "categories":
                reason = _bad_skeleton(entry) or _unwritable(entry)
                if reason is not None:
                    raise DataError(f"{path}: categories[{member.position}]{_identity(entry)}: {reason}.")
                by_category.get(entry["id"], {}).update(keypoint_fields(entry, "keypoints", "skeleton"))
            else:
                at = np.searchsorted(ids, entry["id"], sorter=order)
                if at < len(ids) and ids[order[at]] == entry["id"]:
                    columns[0][order[at]], columns[1][order[at]] = member.place
                else:
                    message = (
                        f"not in {self.path}. Keypoints are merged by annotation id; add it there or remove it here"
                    )
                    self._add_fault("entry", message, annotation_id=entry["id"], path=path)
        return columns

    def _add_fault(
        self, kind: str, message: str, *, image_id: int | None = None, annotation_id: int | None = None, path: str = ""
    ) -> None:
        policy = self._policies.of(kind)
        self.faults.append(Fault(kind, policy, path or self.path, image_id, annotation_id, f"{message}."))

    def _check_head(self) -> None:
        """Leaves out what dataset.json has no place for."""
        for key, kind in (("info", dict), ("licenses", list)):
            value = self.members.pop(key, None) or self.lists.pop(key, None)
            if not value:
                continue
            fault = f"no {_JSON[kind]}. Write one" if type(value) is not kind else _unwritable(value)
            if fault is None:
                self.members[key] = value
            else:
                self._add_fault("entry", f"{key}: {_short(value)}: {fault}, or remove it")

    def _sieve(
        self, columns: Sequence[np.ndarray], sound: np.ndarray, explain: Callable[[int], tuple[str, str]]
    ) -> np.ndarray:
        for row in np.flatnonzero(~sound).tolist():
            kind, message = explain(row)
            self._add_fault(kind, message, image_id=int(columns[1][row]), annotation_id=int(columns[0][row]))
        return sound

    def _image(self, member: Member) -> None:
        entry = member.value
        reason = _lacks(entry, {"id": int, "file_name": str}) or _unwritable(entry["file_name"]) or _bad_size(entry)
        if reason is not None:
            identity = _id_of(entry)
            self._add_fault("entry", f"images[{member.position}]: {reason}", image_id=identity)
            if identity is not None:
                self._faulty_images.add(identity)
        elif entry["id"] in self.images:
            message = f"images[{member.position}]: the id is there twice. Give each image an id of its own"
            self._add_fault("duplicate_id", message, image_id=entry["id"])
        else:
            self.images[entry["id"]] = member.place

    def _annotation(self, member: Member) -> None:
        entry = member.value
        reason = _lacks(entry, {"id": int, "image_id": int, "category_id": int, "bbox": list}) or _bad_box(entry)
        if reason is not None:
            self._add_fault("entry", f"annotations[{member.position}]: {reason}", annotation_id=_id_of(entry))
            return
        values = (entry["id"], entry["image_id"], *member.place, entry["category_id"])
        for row, value in zip(self._rows, values, strict=True):
            row.append(value)

    def _no_image(self, image_id: int) -> str:
        if image_id in self._faulty_images:
            return "the entry of its image is at fault. Correct that one"
        return (
            f"there is no image with id {image_id}. "
            "Correct image_id, add the image to `images`, or remove the annotation"
        )

    def _listed(self, member: Member) -> None:
        self.lists[member.key].append(member.value)


def keypoint_fields(entry: Entry, *keys: str) -> Entry:
    """What an entry of a keypoints file adds to that of the instances file."""
    return {key: entry[key] for key in keys if key in entry}


_JSON = {dict: "object", list: "list"}
_KINDS: Mapping[type, str] = {int: "an integer", str: "a text", list: "a list"}


def _lacks(entry: Any, fields: Mapping[str, type]) -> str | None:
    """Why `entry` is no object with these fields; None where it is."""
    if type(entry) is not dict:
        return f"{_short(entry)} is no object. Write one with {', '.join(fields)}"
    for field, kind in fields.items():
        value: Any = entry.get(field)
        if type(value) is not kind:
            found = f"{field} is {_short(value)}" if field in entry else f"{field} is missing"
            return f"{found}. Write {_KINDS[kind]}"
        if isinstance(value, int) and not -_INT64 <= value < _INT64:
            return f"{field} is {_short(value)}. Write an integer of at most 64 bits"
    return None


def _bad_size(entry: Entry) -> str | None:
    for field in ("width", "height"):
        value = entry.get(field, 1)
        if type(value) not in (int, float) or not 0 < value < _INT64 or math.trunc(value) != value:
            return f"{field} is {_short(value)}. Write the size in whole pixels"
    return None


def _bad_box(entry: Entry) -> str | None:
    box = entry["bbox"]
    if len(box) == 4 and all(type(value) in (int, float) for value in box):
        return None
    return f"bbox is {_short(box)}. Write four numbers: x, y, width, height"


def _bad_skeleton(category: Entry) -> str | None:
    names, bones = category.get("keypoints") or [], category.get("skeleton") or []
    if type(names) is not list or not all(type(name) is str for name in names):
        return f"keypoints is {_short(names)}. Write a list of names"
    if type(bones) is not list or not all(type(bone) is list and set(map(type, bone)) <= {int} for bone in bones):
        return f"skeleton is {_short(bones)}. Write a list of pairs of numbers of keypoints"
    return None


def _unwritable(value: Any) -> str | None:
    """Why `value` cannot be written as JSON in UTF-8, though Python read it; None where it can."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "holds half a character (one surrogate of a pair). Write UTF-8"
    except ValueError:
        return "holds NaN or Infinity, which JSON does not have. Write a number"
    return None


def _id_of(entry: Any) -> int | None:
    identity = entry.get("id") if type(entry) is dict else None
    return identity if type(identity) is int else None


def _identity(entry: Any) -> str:
    identity = _id_of(entry)
    return "" if identity is None else f" (id {identity})"


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
