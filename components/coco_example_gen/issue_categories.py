"""The categories that the issues of a data set concern."""

from collections import Counter, defaultdict

from components.coco_example_gen.examination import Examination
from components.coco_example_gen.sources import CocoSource
from detection.datasets.annotations import open_entries
from detection.datasets.issues import Issue

MOST_IMAGES = 5000  # whose entries are read, for each split


def concerned_annotations(found: Examination) -> Counter[int]:
    """Category id -> number of annotations that have an issue, or whose image has one.

    Counts the first MOST_IMAGES images with issues of each split.  Issues of entries that
    the annotation file's index leaves out, and of TFRecords, are not counted.

    Args:
        found: see `examine`.
    """
    concerned: Counter[int] = Counter()
    for name, source in found.sources.items():
        if not isinstance(source, CocoSource):
            continue
        by_image: dict[int, list[Issue]] = defaultdict(list)
        for issue in found.results[name].issues:
            if issue.image_id in source.annotations.images:
                by_image[issue.image_id].append(issue)
        with open_entries(source.files.annotations, source.files.keypoints) as read:
            for image_id in list(by_image)[:MOST_IMAGES]:
                _, annotations = read(source.annotations.places(image_id))
                ids = {issue.annotation_id for issue in by_image[image_id]}
                theirs = [one["category_id"] for one in annotations if None in ids or one["id"] in ids]
                concerned.update(theirs)
    return concerned
