"""Sources of a split's images: a COCO annotation file, or TFRecords.

A source divides itself into plans, of plain values, each for one worker; the worker
gets the images of its plan with `planned_images`.  A plan of a COCO file says where the
entries of its images stand in that file, so nothing of it is held in memory or copied.
"""

import math
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from detection.datasets.annotations import AnnotationFile, ImagePlaces, open_entries
from detection.datasets.entries import Entry
from detection.datasets.importers.images import ImportedImage, read_images
from detection.datasets.issues import Issue
from detection.datasets.json_stream import ByteRange
from detection.datasets.layouts import SplitFiles
from detection.datasets.sampling import id_fraction
from detection.images.files import read_file
from detection.storage import paths
from detection.storage.reading import read_bytes
from schemas.config.issues import IssuePolicies
from schemas.errors import DataError

Plan = dict[str, Any]


class ImageSource(Protocol):
    """A source of the images of a split."""

    @property
    def path(self) -> str:
        """Path of the annotations or records, for messages."""
        ...

    @property
    def total(self) -> int | None:
        """Number of images; None: unknown before they are read."""
        ...

    def plans(self, split: str, images: int) -> list[Plan]:
        """Divides the split into plans of up to some number of images."""
        ...


@dataclass(frozen=True)
class CocoSource:
    """A COCO annotation file and its images.

    files: of the split.
    annotations: the indexed file.
    """

    files: SplitFiles
    annotations: AnnotationFile

    @property
    def path(self) -> str:
        """The annotation file."""
        return self.files.annotations

    @property
    def total(self) -> int:
        """Number of images."""
        return len(self._image_ids())

    def plans(self, split: str, images: int) -> list[Plan]:
        """Divides the split into plans, images in random but repeatable order.

        Raises:
            DataError: there are no images.
        """
        files = self.files
        ids = self._image_ids()
        if not ids:
            advice = "Choose other fractions" if files.hash_range else "Add images, or remove the split"
            raise DataError(f"{files.annotations}: no image for the split {split}. {advice}.")
        random.Random(split).shuffle(ids)
        shards = math.ceil(len(ids) / images)
        return [
            {
                "annotations": files.annotations,
                "keypoints_file": files.keypoints,
                "images": paths.absolute(files.images or ""),
                "places": [self.annotations.places(image_id) for image_id in ids[number::shards]],
            }
            for number in range(shards)
        ]

    def _image_ids(self) -> list[int]:
        return [image_id for image_id in self.annotations.images if self.files.holds(image_id)][:: self.files.every]


@dataclass(frozen=True)
class RecordSource:
    """TFRecords that hold images with their annotations; each file is a plan, records keep their order.

    files: of the split.
    shards: the TFRecord files, with the number of records of each.
    survey: path of the pickled `Survey` of the data set's TFRecords.
    """

    files: SplitFiles
    shards: Mapping[str, int]
    survey: str

    @property
    def path(self) -> str:
        """The pattern of the files."""
        return self.files.annotations

    @property
    def total(self) -> int | None:
        """Number of images; None: only some of the records belong to the split."""
        return sum(self.shards.values()) if self.files.hash_range is None and self.files.every == 1 else None

    def plans(self, split: str, images: int) -> list[Plan]:
        """Returns a plan for each file."""
        common = {"survey": self.survey, "hash_range": self.files.hash_range, "every": self.files.every}
        return [{"shard": shard, **common} for shard in self.shards]


class PlannedImage(NamedTuple):
    """An image to make a record of.

    entry, annotations: COCO's.
    read: returns the encoded image; may raise `ImageFileError`.
    issues: found so far.
    usable: whether policies let it pass.
    """

    entry: Entry
    annotations: Sequence[Entry]
    read: Callable[[], bytes]
    issues: list[Issue]
    usable: bool


def planned_images(plan: Plan | Mapping[str, Any], policies: IssuePolicies) -> Iterator[PlannedImage]:
    """Yields the images of a plan, in its order."""
    return _from_records(plan, policies) if "shard" in plan else _from_coco(plan)


def _from_coco(plan: Mapping[str, Any]) -> Iterator[PlannedImage]:
    with open_entries(plan["annotations"], plan["keypoints_file"]) as read_entries:
        for image, annotations, keypoints in plan["places"]:
            places = ImagePlaces(
                ByteRange(*image),
                [ByteRange(*place) for place in annotations],
                [None if place is None else ByteRange(*place) for place in keypoints],
            )
            entry, entries = read_entries(places)
            read = partial(read_file, plan["images"], entry["file_name"], max_pixels=plan["max_pixels"])
            yield PlannedImage(entry, entries, read, [], True)


def _from_records(plan: Mapping[str, Any], policies: IssuePolicies) -> Iterator[PlannedImage]:
    survey = pickle.loads(read_bytes(plan["survey"]))
    low, high = plan["hash_range"] or (0.0, 1.0)
    taken = 0
    for image in read_images(plan["shard"], survey, policies):
        if low <= id_fraction(image.entry["id"]) < high:
            if taken % plan["every"] == 0:
                yield _planned(image)
            taken += 1


def _planned(image: ImportedImage) -> PlannedImage:
    """Plans an image of a record, without the objects that policies refuse."""
    # The size is that of the image already, whatever the record says.
    issues = [issue for issue in image.issues if issue.kind != "image_size"]
    refused = {issue.annotation_id for issue in issues if issue.policy in ("fail", "drop")}
    annotations = [annotation for annotation in image.annotations if annotation["id"] not in refused]
    return PlannedImage(image.entry, annotations, lambda: image.encoded, issues, None not in refused)
