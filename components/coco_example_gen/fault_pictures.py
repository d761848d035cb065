"""Pictures of faults, taken from the images that have them."""

from collections import Counter
from collections.abc import Iterator, Mapping

from components.coco_example_gen.examination import Examination
from components.coco_example_gen.sources import CocoSource
from detection.datasets.annotations import open_entries
from detection.datasets.issues import Fault
from detection.datasets.layouts import SplitFiles
from detection.images.files import ImageFileError, read_file
from detection.reports.dataset.page import PICTURES_OF_A_KIND
from detection.reports.dataset.pictures import FaultPicture, picture_of


def pictures_of(found: Examination, splits: Mapping[str, SplitFiles], *, max_pixels: int) -> list[FaultPicture]:
    """A few pictures of each kind of fault that images or annotations of COCO files have.

    Args:
        found: see `examine`.
        splits: the files of each split.
        max_pixels: images of more are not shown.
    """
    taken: Counter[str] = Counter()
    pictures = []
    for name, files in splits.items():
        for picture in _of_split(found, name, files, taken, max_pixels):
            taken[picture.fault.kind] += 1
            pictures.append(picture)
    return pictures


def _of_split(
    found: Examination, name: str, files: SplitFiles, taken: Counter[str], max_pixels: int
) -> Iterator[FaultPicture]:
    source = found.sources[name]
    if not isinstance(source, CocoSource):
        return
    tried: Counter[str] = Counter()
    root = files.images or ""
    with open_entries(files.annotations, files.keypoints) as read:
        for fault in found.results[name].faults:
            # Images that nothing can be seen of are tried a few times and no more.
            if fault.image_id is None or max(taken[fault.kind], tried[fault.kind]) >= PICTURES_OF_A_KIND:
                continue
            tried[fault.kind] += 1
            entry, annotations = read(source.annotations.places(fault.image_id))
            boxes = [annotation["bbox"] for annotation in annotations if annotation["id"] == fault.annotation_id]
            picture = _picture(root, entry["file_name"], fault, boxes, max_pixels)
            if picture is not None:
                yield picture


def _picture(root: str, file_name: str, fault: Fault, boxes: list[list[float]], max_pixels: int) -> FaultPicture | None:
    try:
        encoded = read_file(root, file_name, max_pixels=max_pixels)
    except ImageFileError:
        return None
    return picture_of(encoded, fault, boxes[0] if boxes else None, max_pixels=max_pixels)
