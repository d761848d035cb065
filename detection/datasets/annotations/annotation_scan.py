"""Reads a COCO annotation file once: positions of its entries, and every issue of its structure."""

from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from detection.datasets.annotations import packed_entries as packing
from detection.datasets.annotations.entries import (
    AnnotationEntry,
    IdentifiedEntry,
    KeypointCategoryEntry,
    id_of,
    is_id,
    too_many_categories,
)
from detection.datasets.annotations.entry_rules import (
    UNIQUE_ID,
    Rule,
    are_among,
    are_first,
    category_issues,
    entry_issue,
    head_issue,
    image_issue,
    known_category,
    known_image,
    named_id,
    require_valid_categories,
)
from detection.datasets.annotations.json_stream import ByteRange, Member, read_entry, stream_members
from detection.datasets.groups import group_of
from detection.datasets.issues import Issue, make_issue
from detection.datasets.sampling import key_hash
from detection.storage.files import local_copy
from schemas.config.issues import IssuePolicies
from schemas.errors import DataError
from schemas.quoting import quoted_json

_NEEDED = ("images", "annotations", "categories")
_KNOWN = {*_NEEDED, "info", "licenses"}
_LISTED = 400  # max characters of keys in a message


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
        # Columns of the valid annotations.
        self._rows = {key: array("q") for key in ("id", "image_id", "category_id", "offset", "length")}

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
        require_valid_categories(self.lists["categories"], lambda position: f"{self.path}: categories[{position}]")
        return self.lists["categories"]

    def annotations(self, category_ids: set[int]) -> list[np.ndarray]:
        """Returns the columns id, image id, offset, length of valid annotations, sorted by image and position."""
        columns = {
            key: np.frombuffer(row, np.int64) if row else np.zeros(0, np.int64) for key, row in self._rows.items()
        }
        image_ids = columns["image_id"]
        images = np.fromiter(self.images, np.int64, len(self.images))
        keep = np.ones(len(image_ids), bool)
        self._sieve(self._valid_image(images), columns, keep)
        self._sieve(known_image(images), columns, keep)
        self._sieve(known_category(np.array([*category_ids], np.int64)), columns, keep)
        if self._policies.of("duplicate_id") in ("repair", "fix"):
            columns["id"] = self._renumbered(columns, keep)
        self._sieve(UNIQUE_ID, columns, keep, kind="duplicate_id")
        rows = np.flatnonzero(keep)
        rows = rows[np.argsort(image_ids[rows], kind="stable")]
        rows = rows[self._fit_into_records(image_ids[rows], columns["length"][rows])]
        self.used_categories = set(np.unique(columns["category_id"][rows]).tolist())
        return [columns[key][rows] for key in ("id", "image_id", "offset", "length")]

    def _renumbered(self, columns: Mapping[str, np.ndarray], keep: np.ndarray) -> np.ndarray:
        """Returns the ids, with new ones for annotations of `keep` that differ from the first one of their id."""
        ids, first = columns["id"].copy(), are_first(columns["id"])
        if first.all():
            return ids
        original = {int(ids[row]): row for row in np.flatnonzero(first).tolist()}
        free = int(ids.max()) + 1
        with open(local_copy(self._file), "rb") as file:

            def entry(row: int) -> Any:
                return read_entry(file, ByteRange(int(columns["offset"][row]), int(columns["length"][row])))

            for row in np.flatnonzero(~first & keep).tolist():
                identity = int(ids[row])
                if entry(row) != entry(original[identity]):
                    message = f"duplicate id, so this annotation gets the id {free}. Give each annotation a unique id."
                    self.issues.append(
                        Issue("duplicate_id", "fix", self.path, int(columns["image_id"][row]), identity, message)
                    )
                    ids[row], free = free, free + 1
                    self.renumbered = True
        return ids

    def _fit_into_records(self, image_ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Drops images whose annotations exceed the JSON size of a record; returns a mask of the remaining rows."""
        images, starts = np.unique(image_ids, return_index=True)
        sizes = np.add.reduceat(lengths, starts) if len(starts) else np.zeros(0, np.int64)
        for image_id, size in zip(images.tolist(), sizes.tolist(), strict=True):
            if size > packing.MAX_IMAGE_ENTRIES:
                self._add_issue(packing.too_large(size), image_id=image_id)
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
            issue = entry_issue(entry, IdentifiedEntry)
            if issue is not None:
                self._add_issue(f"{member.key}[{member.position}]: {issue}", path=path)
            elif member.key == "categories":
                invalid = category_issues([entry], KeypointCategoryEntry)
                if invalid:
                    raise DataError(f"{path}: categories[{member.position}]{named_id(entry)}: {invalid[0]}")
                by_category.get(entry["id"], {}).update(keypoint_fields(entry, "keypoints", "skeleton"))
            else:
                at = np.searchsorted(ids, entry["id"], sorter=order)
                if at < len(ids) and ids[order[at]] == entry["id"]:
                    columns[0][order[at]], columns[1][order[at]] = member.place
                else:
                    message = (
                        f"not in {self.path}. Keypoints are merged by annotation id; add it there, or remove it here."
                    )
                    self._add_issue(message, annotation_id=entry["id"], path=path)
        return columns

    def _add_issue(
        self,
        message: str,
        *,
        kind: str = "entry",
        image_id: int | None = None,
        annotation_id: int | None = None,
        path: str = "",
    ) -> None:
        self.issues.append(
            make_issue(
                self._policies,
                kind,
                message,
                path or self.path,
                image_id=image_id,
                annotation_id=annotation_id,
                fixable=False,
                concerns="annotation" if message.startswith("annotations[") else "",
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
                self._add_issue(f"{key}: {issue}")

    def _sieve(self, rule: Rule, columns: Mapping[str, np.ndarray], keep: np.ndarray, *, kind: str = "entry") -> None:
        """Adds an issue for each row of `keep` that breaks the rule, and removes it from `keep`."""
        values = columns[rule.key]
        holds = np.asarray(rule.holds(values), bool)
        for row in np.flatnonzero(keep & ~holds).tolist():
            message, image_id = str(rule.issue(int(values[row]))), int(columns["image_id"][row])
            self._add_issue(message, kind=kind, image_id=image_id, annotation_id=int(columns["id"][row]))
        keep &= holds

    def _valid_image(self, images: np.ndarray) -> Rule:
        """Returns the rule that the image's entry was not invalid; `images`: ids of valid ones."""
        invalid = np.array([*self._invalid_images], np.int64)
        return Rule(
            "its image's entry is invalid",
            "Correct the image's entry.",
            lambda ids: are_among(ids, images) | ~are_among(ids, invalid),
            "image_id",
        )

    def _image(self, member: Member) -> None:
        entry = member.value
        issue = image_issue(entry)
        if issue is not None:
            identity = id_of(entry)
            self._add_issue(f"images[{member.position}]: {issue}", image_id=identity)
            if identity is not None and is_id(identity):
                self._invalid_images.add(identity)
        elif entry["id"] in self.images:
            message = f"images[{member.position}]: {UNIQUE_ID.issue(entry)}"
            self._add_issue(message, kind="duplicate_id", image_id=entry["id"])
        else:
            self.images[entry["id"]] = member.place
            self.groups[entry["id"]] = key_hash(group_of(entry, self._group))

    def _annotation(self, member: Member) -> None:
        entry = member.value
        issue = entry_issue(entry, AnnotationEntry)
        if issue is not None:
            self._add_issue(f"annotations[{member.position}]: {issue}", annotation_id=id_of(entry))
            return
        values = (entry["id"], entry["image_id"], entry["category_id"], *member.place)
        for row, value in zip(self._rows.values(), values, strict=True):
            row.append(value)

    def _listed(self, member: Member) -> None:
        self.lists[member.key].append(member.value)
        if member.key == "categories":
            issue = too_many_categories(len(self.lists["categories"]))
            if issue is not None:
                raise DataError(f"{self.path}: {issue}")


def keypoint_fields(entry: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Returns the given keys of a keypoints file's entry."""
    return {key: entry[key] for key in keys if key in entry}
