"""Files and categories of the data set that a configuration names, without reading annotations or records."""

from collections.abc import Mapping
from typing import Any

from components.coco_example_gen.spans.locate import locate
from detection.datasets.annotations.annotation_file import merge_categories, scan_categories
from detection.datasets.annotations.annotation_scan import keypoint_fields
from detection.datasets.importers.label_map import dataset_files_beside, read_label_map
from detection.datasets.readers.converted import as_coco
from detection.datasets.splits import SplitFiles
from schemas.config.config import DataConfig


def files_of(data: DataConfig, *needed: str) -> dict[str, SplitFiles]:
    """Finds the files of each split of the newest span, or of `data.span`; raises as `locate`."""
    return locate(data, *needed).files


def categories_of(splits: Mapping[str, SplitFiles], data: DataConfig) -> list[dict[str, Any]] | None:
    """Returns the categories of a data set if they are known without reading its annotations or records.

    Args:
        splits: files of each split.
        data: its label map counts.

    Returns:
        COCO entries; None: only reading the data shows them, or the issues with them.

    Raises:
        DataError: a label map that cannot be read, or categories that contradict each other.
    """
    by_file = []
    for files in splits.values():
        categories = _categories_of_files(files) if files.images else _categories_of_records(files, data)
        if categories is None:
            return None
        by_file.append((files.annotations, categories))
    return merge_categories(by_file) or None


def _categories_of_files(files: SplitFiles) -> list[dict[str, Any]] | None:
    files = as_coco(files).files if files.reader else files
    categories = scan_categories(files.annotations)
    if categories is None or files.keypoints is None:
        return categories
    others = scan_categories(files.keypoints)
    if others is None:
        return None
    points = {category["id"]: keypoint_fields(category, "keypoints", "skeleton") for category in others}
    return [category | points.get(category["id"], {}) for category in categories]


def _categories_of_records(files: SplitFiles, data: DataConfig) -> list[dict[str, Any]] | None:
    # They import TensorFlow, which says so on the terminal unless a run keeps it from that.
    from detection.storage.tfrecord import find_shards

    named = data.label_map or next(iter(dataset_files_beside(find_shards(files.annotations)[0])), None)
    return None if named is None else read_label_map(named).categories
