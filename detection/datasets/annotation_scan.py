"""Reads a COCO annotation file once: positions of its entries, and every issue of its structure."""

from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from detection.datasets import packed_entries as packing
from detection.datasets.entries import (
    annotation_issue,
    category_issue,
    head_issue,
    id_issue,
    id_of,
    image_issue,
    keypoint_category_issue,
    too_many_categories,
)
from detection.datasets.groups import group_of
from detection.datasets.issues import Issue, applied
from detection.datasets.json_stream import ByteRange, Member, read_entry, stream_members
from detection.datasets.sampling import key_hash
from detection.storage.files import local_copy
from schemas.config.issues import IssuePolicies
from schemas.errors import DataError
from schemas.quoting import quoted_json

_NEEDED = ("images", "annotations", "categories")
_KNOWN = {*_NEEDED, "info", "licenses"}
_LISTED = 400  # max characters of keys in a message
_LISTED_IDS = 100  # max ids in a message


class AnnotationScan:
    """One pass over a file: positions of the valid entries, issues of the others."""

    def __init__(self, path: str, policies: IssuePolicies, *, file: str = "", group: str = "") -> None:
        self.path = path
        self._file = file or path
        self._group = group
        self.groups: dict[int, int] = {}
        self.images: dict[int, ByteRange] = {}
        self.members: dict[str, Any] = {}
        self.lists: dict[str, list[Any]] = defaultdict(list)
        self.issues: list[Issue] = []
        self.used_categories: set[int] = set()
        self.renumbered = False
        self._policies = policies
        self._invalid_images: set[int] = set()
        # id, image id, offset, length and category id of each annotation.
        self._rows: tuple[array[int], ...] = tuple(array("q") for _ in range(5))

    def read(self) -> None:
        """Reads the complete file.

        Raises:
            DataError: the file cannot be read, or is not a COCO instances file.
        """
        readers: Mapping[str, Callable[[Member], None]] = {
            "images": self._image,
            "annotations": self._annotation,
            "categories": self._listed,
            "licenses": self._listed,
            "info": self._listed,
        }
        for member in stream_members(self._file):
            if not member.position and member.key in self.members:
                raise DataError(f"{self.path}: duplicate key {quoted_json(member.key)}. Merge or remove one of them.")
            # Keep only the names of unknown members, which may be large.
            value = [] if member.position is not None else member.value if member.key in _KNOWN else None
            self.members.setdefault(member.key, value)
            if member.position is not None and member.key in readers:
                readers[member.key](member)
        self._check_head()
        for key in _NEEDED:
            if self.members.get(key) != []:
                keys = ", ".join(sorted(self.members))[:_LISTED]
                content = f"{key} is not a list" if key in self.members else f"keys are {keys}" if keys else "no keys"
                raise DataError(f"{self.path}: not a COCO instances file: expected a list `{key}`; {content}.")

    def categories(self) -> list[dict[str, Any]]:
        """Returns the categories; any invalid category is an error, because annotations depend on them.

        Raises:
            DataError: a category is invalid.
        """
        seen = set()
        for position, category in enumerate(self.lists["categories"]):
            reason = category_issue(category)
            if reason is None and category["id"] in seen:
                reason = f"duplicate id {category['id']}. Give each category a unique id"
            if reason is not None:
                raise DataError(f"{self.path}: categories[{position}]{_identity(category)}: {reason}.")
            seen.add(category["id"])
        return self.lists["categories"]

    def annotations(self, category_ids: set[int]) -> list[np.ndarray]:
        """Returns the columns id, image id, offset, length of valid annotations, sorted by image and position."""
        columns = [np.frombuffer(row, np.int64) if row else np.zeros(0, np.int64) for row in self._rows]
        ids, image_ids, _, _, categories = columns
        images = np.fromiter(self.images, np.int64, len(self.images))
        keep = self._sieve(
            columns, np.isin(image_ids, images), lambda row: ("entry", self._no_image(int(image_ids[row])))
        )
        known = sorted(category_ids)
        known_ids = quoted_json(known[:_LISTED_IDS])  # once: there may be as many such issues as categories
        keep &= self._sieve(
            columns,
            np.isin(categories, np.array(known, np.int64)) | ~keep,
            lambda row: (
                "entry",
                f"category_id {categories[row]} does not exist; known ids: {known_ids}. "
                "Correct it or add the category to `categories`",
            ),
        )
        first = np.zeros(len(ids), bool)
        first[np.unique(ids, return_index=True)[1]] = True
        if not first.all() and self._policies.duplicate_id in ("repair", "fix"):
            columns[0] = self._renumbered(columns, first, keep)
        keep &= self._sieve(
            columns, first | ~keep, lambda row: ("duplicate_id", "duplicate id. Give each annotation a unique id")
        )
        rows = np.flatnonzero(keep)
        rows = rows[np.argsort(image_ids[rows], kind="stable")]
        rows = rows[self._fit_into_records(image_ids[rows], columns[3][rows])]
        self.used_categories = set(np.unique(categories[rows]).tolist())
        return [column[rows] for column in columns[:4]]

    def _renumbered(self, columns: Sequence[np.ndarray], first: np.ndarray, keep: np.ndarray) -> np.ndarray:
        """Returns ids, new ones for annotations that differ from the first one of their id; adds them to `first`."""
        ids = columns[0].copy()
        original = {int(ids[row]): row for row in np.flatnonzero(first).tolist()}
        free = int(ids.max()) + 1
        with open(local_copy(self._file), "rb") as file:

            def entry(row: int) -> Any:
                return read_entry(file, ByteRange(int(columns[2][row]), int(columns[3][row])))

            for row in np.flatnonzero(~first & keep).tolist():
                identity = int(ids[row])
                if entry(row) != entry(original[identity]):
                    message = f"duplicate id, so this annotation gets the id {free}. Give each annotation a unique id."
                    self.issues.append(Issue("duplicate_id", "fix", self.path, int(columns[1][row]), identity, message))
                    ids[row], first[row], free = free, True, free + 1
                    self.renumbered = True
        return ids

    def _fit_into_records(self, image_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Drops images whose annotations exceed the JSON size of a record; returns a mask of the remaining rows."""
        images, starts = np.unique(image_ids, return_index=True)
        sizes = np.add.reduceat(lengths, starts) if len(starts) else np.zeros(0, np.int64)
        for image_id, size in zip(images.tolist(), sizes.tolist(), strict=True):
            if size > packing.MAX_IMAGE_ENTRIES:
                self._add_issue("entry", packing.too_large(size), image_id=image_id)
                del self.images[image_id]
        return np.isin(image_ids, images[sizes <= packing.MAX_IMAGE_ENTRIES])

    def keypoints(self, path: str, ids: np.ndarray, categories: Sequence[dict[str, Any]]) -> list[np.ndarray]:
        """Finds the entries of a keypoints file for the annotations.

        Args:
            path: path of the keypoints file.
            ids: ids of the annotations, int64 [N].
            categories: receive the keypoint names and skeletons of the keypoints file.

        Returns:
            Columns offset and length; length 0 for annotations without keypoints.

        Raises:
            DataError: the file cannot be read, or a skeleton is invalid.
        """
        order = np.argsort(ids)
        columns = [np.zeros_like(ids), np.zeros_like(ids)]
        by_category = {category["id"]: category for category in categories}
        for member in stream_members(path):
            entry = member.value
            if member.position is None or member.key not in ("annotations", "categories"):
                continue
            reason = id_issue(entry)
            if reason is not None:
                self._add_issue("entry", f"{member.key}[{member.position}]: {reason}", path=path)
            elif member.key == "categories":
                reason = keypoint_category_issue(entry)
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
                    self._add_issue("entry", message, annotation_id=entry["id"], path=path)
        return columns

    def _add_issue(
        self, kind: str, message: str, *, image_id: int | None = None, annotation_id: int | None = None, path: str = ""
    ) -> None:
        policy = self._policies.of(kind)
        concerned: Literal["image", "annotation"] = (
            "annotation" if annotation_id is not None or message.startswith("annotations[") else "image"
        )
        self.issues.append(
            Issue(
                kind,
                applied(policy, kind, fixable=False),
                path or self.path,
                image_id,
                annotation_id,
                f"{message}.",
                concerned if policy == "repair" else "",
            )
        )

    def _check_head(self) -> None:
        """Drops invalid `info` and `licenses`, which dataset.json cannot store."""
        for key, kind in (("info", dict), ("licenses", list)):
            value = self.members.pop(key, None) or self.lists.pop(key, None)
            if not value:
                continue
            issue = head_issue(value, kind)
            if issue is None:
                self.members[key] = value
            else:
                self._add_issue("entry", f"{key}: {quoted_json(value)}: {issue}, or remove it")

    def _sieve(
        self, columns: Sequence[np.ndarray], valid: np.ndarray, explain: Callable[[int], tuple[str, str]]
    ) -> np.ndarray:
        for row in np.flatnonzero(~valid).tolist():
            kind, message = explain(row)
            self._add_issue(kind, message, image_id=int(columns[1][row]), annotation_id=int(columns[0][row]))
        return valid

    def _image(self, member: Member) -> None:
        entry = member.value
        reason = image_issue(entry)
        if reason is not None:
            identity = id_of(entry)
            self._add_issue("entry", f"images[{member.position}]: {reason}", image_id=identity)
            if identity is not None:
                self._invalid_images.add(identity)
        elif entry["id"] in self.images:
            message = f"images[{member.position}]: duplicate id. Give each image a unique id"
            self._add_issue("duplicate_id", message, image_id=entry["id"])
        else:
            self.images[entry["id"]] = member.place
            self.groups[entry["id"]] = key_hash(group_of(entry, self._group))

    def _annotation(self, member: Member) -> None:
        entry = member.value
        reason = annotation_issue(entry)
        if reason is not None:
            self._add_issue("entry", f"annotations[{member.position}]: {reason}", annotation_id=id_of(entry))
            return
        values = (entry["id"], entry["image_id"], *member.place, entry["category_id"])
        for row, value in zip(self._rows, values, strict=True):
            row.append(value)

    def _no_image(self, image_id: int) -> str:
        if image_id in self._invalid_images:
            return "its image's entry is invalid. Correct the image's entry"
        return f"no image with id {image_id}. Correct image_id, add the image to `images`, or remove the annotation"

    def _listed(self, member: Member) -> None:
        self.lists[member.key].append(member.value)
        if member.key == "categories":
            issue = too_many_categories(len(self.lists["categories"]))
            if issue is not None:
                raise DataError(f"{self.path}: {issue}.")


def keypoint_fields(entry: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Returns the given keys of a keypoints file's entry."""
    return {key: entry[key] for key in keys if key in entry}


def _identity(entry: Any) -> str:
    identity = id_of(entry)
    return "" if identity is None else f" (id {identity})"
