"""Pictures of issues, taken from the images that have them."""

from collections import Counter
from collections.abc import Iterator, Mapping

from components.coco_example_gen.examination import Examination
from components.coco_example_gen.sources import CocoSource
from detection.datasets.annotations import open_entries
from detection.datasets.issues import Issue
from detection.datasets.layouts import SplitFiles
from detection.images.files import ImageFileError, read_file
from detection.reports.dataset.page import PICTURES_OF_A_KIND
from detection.reports.dataset.pictures import IssuePicture, picture_of


def pictures_of(found: Examination, splits: Mapping[str, SplitFiles], *, max_pixels: int) -> list[IssuePicture]:
    """A few pictures of each kind of issue that images or annotations of COCO files have.

    Args:
        found: see `examine`.
        splits: the files of each split.
        max_pixels: images of more are not shown.
    """
    taken: Counter[str] = Counter()
    pictures = []
    for name, files in splits.items():
        for picture in _of_split(found, name, files, taken, max_pixels):
            taken[picture.issue.kind] += 1
            pictures.append(picture)
    return pictures


def _of_split(
    found: Examination, name: str, files: SplitFiles, taken: Counter[str], max_pixels: int
) -> Iterator[IssuePicture]:
    source = found.sources[name]
    if not isinstance(source, CocoSource):
        return
    tried: Counter[str] = Counter()
    root = files.images or ""
    with open_entries(files.annotations, files.keypoints) as read:
        for issue in found.results[name].issues:
            # Images that nothing can be seen of are tried a few times and no more.
            if issue.image_id is None or max(taken[issue.kind], tried[issue.kind]) >= PICTURES_OF_A_KIND:
                continue
            tried[issue.kind] += 1
            entry, annotations = read(source.annotations.places(issue.image_id))
            boxes = [annotation["bbox"] for annotation in annotations if annotation["id"] == issue.annotation_id]
            picture = _picture(root, entry["file_name"], issue, boxes, max_pixels)
            if picture is not None:
                yield picture


def _picture(root: str, file_name: str, issue: Issue, boxes: list[list[float]], max_pixels: int) -> IssuePicture | None:
    try:
        encoded = read_file(root, file_name, max_pixels=max_pixels)
    except ImageFileError:
        return None
    return picture_of(encoded, issue, boxes[0] if boxes else None, max_pixels=max_pixels)
