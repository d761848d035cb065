"""Sources of a split's images: a COCO annotation file, or TFRecords.

A source divides itself into plans, each for one worker, which gets the images of its plan from `images`.
A plan of a COCO file says where the entries of its images stand in that file, so nothing of it is held in
memory or copied.
"""

import math
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from detection.datasets.annotations.annotation_file import AnnotationFile, ImagePlaces, open_entries
from detection.datasets.annotations.entries import Entry
from detection.datasets.encode_record import Rules
from detection.datasets.importers.images import ImportedImage, read_images
from detection.datasets.issues import Issue
from detection.datasets.sampling import hash_fraction, key_hash
from detection.datasets.splits import BOX_FORMS, SplitFiles
from detection.images.files import read_file
from detection.storage import files, paths
from detection.storage.files import read_bytes
from schemas.errors import DataError


class PlannedImage(NamedTuple):
    """An image to make a record of.

    entry, annotations: COCO's.
    read: returns the encoded image; may raise `ImageFileError`.
    issues: found so far.
    accepted: whether policies let it pass.
    """

    entry: Entry
    annotations: Sequence[Entry]
    read: Callable[[], bytes]
    issues: list[Issue]
    accepted: bool


@dataclass(frozen=True)
class CocoPlan:
    """Images of a COCO file.

    files: of the split.
    places: of the images' entries in the annotation file.
    """

    files: SplitFiles
    places: list[ImagePlaces]

    def images(self, rules: Rules) -> Iterator[PlannedImage]:
        """Yields the images of the plan, in its order."""
        with open_entries(self.files.annotations, self.files.keypoints) as read_entries:
            for places in self.places:
                entry, annotations = read_entries(places)
                annotations = _with_boxes(annotations, self.files)
                read = partial(read_file, self.files.images or "", entry["file_name"], max_pixels=rules.max_pixels)
                yield PlannedImage(entry, annotations, read, [], True)


@dataclass(frozen=True)
class RecordPlan:
    """The records of a TFRecord file that belong to a split.

    files: of the split.
    shard: path of the TFRecord file.
    survey: path of the pickled `Survey` of the data set's TFRecords.
    """

    files: SplitFiles
    shard: str
    survey: str

    def images(self, rules: Rules) -> Iterator[PlannedImage]:
        """Yields the images of the plan, in its order."""
        survey = pickle.loads(read_bytes(self.survey))
        images = read_images(self.shard, survey, rules.policies)
        of_split = (image for image in images if self.files.holds(image.entry))
        return map(_plan_image, islice(of_split, 0, None, self.files.every))


@dataclass(frozen=True)
class CocoSource:
    """A COCO annotation file and its images.

    files: of the split, as workers see them.
    annotations: the indexed file.
    """

    files: SplitFiles
    annotations: AnnotationFile

    @property
    def path(self) -> str:
        """The user's annotation file."""
        return self.annotations.path

    @property
    def total(self) -> int:
        """Number of images."""
        return len(self.image_ids())

    def plans(self, split: str, images: int) -> list[CocoPlan]:
        """Divides the split into plans, images in random but repeatable order.

        Raises:
            DataError: there are no images.
        """
        ids = self.image_ids()
        if not ids:
            advice = self._dividing() if self.files.hash_range else "Add images, or remove the split"
            raise DataError(f"{self.path}: no image for the split {split}. {advice}.")
        random.Random(split).shuffle(ids)
        shards = math.ceil(len(ids) / images)
        return [
            CocoPlan(self.files, [self.annotations.places(image_id) for image_id in ids[number::shards]])
            for number in range(shards)
        ]

    def _dividing(self) -> str:
        """Returns an eval fraction that leaves images to both splits, as an advice."""
        places = sorted({hash_fraction(group) for group in self.annotations.groups.values()})
        if len(places) < 2:
            return "Add images: one image, or copies of one, cannot be divided"
        count = max(1, round(0.2 * len(places)))
        fraction = round((places[count - 1] + places[count]) / 2, 2)
        if not places[count - 1] < fraction <= places[count]:
            fraction = (places[count - 1] + places[count]) / 2
        total = len(self.annotations.images)
        return (
            f"Set data.eval_fraction={fraction:g}, which gives eval some of the {total} images, or name a file for it"
        )

    @contextmanager
    def entries(self) -> Iterator[Callable[[int], tuple[dict[str, Any], list[dict[str, Any]]]]]:
        """Yields a function that reads an image's entry and its annotations, by the image's id."""
        with open_entries(self.annotations.file, self.files.keypoints) as read:

            def of_image(image_id: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
                entry, annotations = read(self.annotations.places(image_id))
                return entry, _with_boxes(annotations, self.files)

            yield of_image

    def image_ids(self) -> list[int]:
        """Ids of the split's images, in the order of the file."""
        images = self.annotations
        return [one for one in images.images if self.files.holds_group(images.groups[one])][:: self.files.every]


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

    def plans(self, split: str, images: int) -> list[RecordPlan]:
        """Returns a plan for each file."""
        return [RecordPlan(self.files, shard, self.survey) for shard in self.shards]


def _with_boxes(annotations: list[dict[str, Any]], files: SplitFiles) -> list[dict[str, Any]]:
    """Converts boxes of another form than COCO's."""
    if files.boxes in ("auto", "xywh"):
        return annotations
    return [one | {"bbox": BOX_FORMS[files.boxes](one["bbox"])} for one in annotations]


def copy_for_workers(file: str, work: str | Path) -> str:
    """Copies a COCO file that this process has made to where workers read it; returns the copy."""
    copy = paths.join(work, f"{key_hash(file):016x}.json")
    if not files.is_file(copy):
        files.make_folder(work)
        files.copy_file(file, copy)
    return copy


ImageSource: TypeAlias = CocoSource | RecordSource


def _plan_image(image: ImportedImage) -> PlannedImage:
    """Plans an image of a record, without the objects that policies refuse."""
    # The size is that of the image already, whatever the record says.
    issues = [issue for issue in image.issues if issue.kind != "image_size"]
    refused = {issue.annotation_id for issue in issues if issue.policy in ("fail", "drop")}
    annotations = [annotation for annotation in image.annotations if annotation["id"] not in refused]
    return PlannedImage(image.entry, annotations, lambda: image.encoded, issues, None not in refused)
