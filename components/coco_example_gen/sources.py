"""Sources of a split's images, a COCO annotation file or TFRecords, and fingerprints that tell whether they changed.

A source divides itself into plans, of plain values, each for one worker; the worker
gets the images of its plan with `planned_images`.  A plan of a COCO file says where the
entries of its images stand in that file, so nothing of it is held in memory or copied.
"""

import hashlib
import math
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from detection.datasets.annotations import AnnotationFile, ImagePlaces, open_entries, scan_file_names
from detection.datasets.entries import Entry
from detection.datasets.importers.images import ImportedImage, read_images
from detection.datasets.importers.label_map import dataset_files_beside
from detection.datasets.issues import Issue
from detection.datasets.json_stream import Place
from detection.datasets.layouts import SplitFiles
from detection.datasets.sampling import id_fraction
from detection.images.files import read_file, remote_path
from detection.storage import files, paths
from detection.storage.reading import read_bytes
from detection.storage.tfrecord import find_shards
from schemas.config.issues import IssuePolicies
from schemas.errors import DataError

Plan = dict[str, Any]
# Raised when equal data gives other records, so that results of before are not reused.
RECORD_VERSION = 2


class Source(Protocol):
    """A source of the images of a split."""

    @property
    def path(self) -> str:
        """Names it to people."""
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

    def plans(self, split: str, images: int) -> list[Plan]:
        """Divides the split into plans, images in random but repeatable order.

        Raises:
            DataError: there are no images.
        """
        files = self.files
        ids = [image_id for image_id in self.annotations.images if files.holds(image_id)][:: files.every]
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


@dataclass(frozen=True)
class RecordSource:
    """TFRecords that hold images with their annotations; each file is a plan, records keep their order.

    files: of the split.
    shards: the TFRecord files.
    survey: pickled `Survey` of the whole data set's TFRecords.
    """

    files: SplitFiles
    shards: list[str]
    survey: str

    @property
    def path(self) -> str:
        """The pattern of the files."""
        return self.files.annotations

    def plans(self, split: str, images: int) -> list[Plan]:
        """A plan for each file."""
        common = {"survey": self.survey, "hash_range": self.files.hash_range, "every": self.files.every}
        return [{"shard": shard, **common} for shard in self.shards]


class PlannedImage(NamedTuple):
    """An image to make a record of.

    entry, annotations: COCO's.
    read: gives the encoded image; may raise `ImageFileError`.
    issues: found so far.
    usable: whether policies let it pass.
    """

    entry: Entry
    annotations: Sequence[Entry]
    read: Callable[[], bytes]
    issues: list[Issue]
    usable: bool


def planned_images(plan: Plan | Mapping[str, Any], policies: IssuePolicies) -> Iterator[PlannedImage]:
    """The images of a plan, in its order."""
    return _from_records(plan, policies) if "shard" in plan else _from_coco(plan)


def _from_coco(plan: Mapping[str, Any]) -> Iterator[PlannedImage]:
    with open_entries(plan["annotations"], plan["keypoints_file"]) as read_entries:
        for image, annotations, keypoints in plan["places"]:
            places = ImagePlaces(
                Place(*image),
                [Place(*place) for place in annotations],
                [None if place is None else Place(*place) for place in keypoints],
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


def fingerprint(splits: Iterable[SplitFiles], *others: str | None) -> str:
    """Digest of the size and modification time of every annotation, image and record file.

    Of remote files the generation counts in place of the time.  Covers exactly the images
    that the annotation files name, in whatever sub-folder.

    Args:
        splits: the files of a data set.
        others: more files that its records depend on.
    """
    digest = hashlib.sha256(f"{RECORD_VERSION}\n".encode())
    for path, state in chain(_states(filter(None, others)), *map(_states_of_split, splits)):
        line = f"{path} absent\n" if state is None else f"{path} {state.size} {state.version}\n"
        digest.update(line.encode(errors="backslashreplace"))  # a JSON text may hold half a character
    return digest.hexdigest()


_States = Iterator[tuple[str, files.FileState | None]]


def _states_of_split(split: SplitFiles) -> _States:
    if split.images is None:
        return _states(_record_files(split.annotations))
    annotations = _states(filter(None, (split.annotations, split.keypoints)))
    names = scan_file_names(split.annotations)
    if paths.is_remote(split.images):
        return chain(annotations, _states_of_remote_images(split.images, names))
    return chain(annotations, _states(str(Path(split.images, name)) for name in names))


def _record_files(pattern: str) -> Iterator[str]:
    beside: dict[str, list[str]] = {}  # of a remote folder's hundreds of shards it is asked for once
    for shard in find_shards(pattern):
        folder = paths.parent(shard)
        if folder not in beside:
            beside[folder] = dataset_files_beside(shard)
        yield from (shard, *beside[folder])


def _states(named: Iterable[str]) -> _States:
    return ((path, files.state(path)) for path in named)


def _states_of_remote_images(folder: str, names: Iterable[str]) -> _States:
    """Lists the folder: a request for each image would take minutes."""
    below = files.walk_states(folder)
    for name in names:
        try:
            path = remote_path(folder, name)
        except ValueError:  # the checks of the data report it
            path = None
        known = None if path is None or path == folder else below.get(paths.relative(path, folder))
        yield paths.join(folder, name), known
