"""The files of the data set that a configuration names, and its categories as far as they can be told unread."""

from collections.abc import Mapping
from typing import Any

from components.coco_example_gen.spans import SpanSplits, locate_given, locate_root
from detection.datasets.annotations import merge_categories, scan_categories
from detection.datasets.importers.label_map import dataset_files_beside, read_label_map
from detection.datasets.layouts import Division, SplitFiles
from detection.storage.paths import require_supported
from schemas.config.config import DataConfig
from schemas.errors import ConfigError, DataError


def files_of(data: DataConfig, *needed: str) -> dict[str, SplitFiles]:
    """Finds the files of each split, see `locate`."""
    return locate(data, *needed).files


def locate(data: DataConfig, *needed: str) -> SpanSplits:
    """Finds the files of each split of a data set: of its newest span, or of `data.span`.

    Args:
        data: the configuration's section.
        needed: splits that must be among them.

    Raises:
        ConfigError: neither `data.root` nor `data.splits`, or both; keys about spans
            that do not fit the paths.
        DataError: the files are not there, or not recognised, or of other splits only.
    """
    located = _locate(data)
    if data.window > 1 and located.files == located.splits:
        raise ConfigError(
            f"data.window = {data.window}, but the data's paths have no {{SPAN}} and no date. "
            "Write one there, or remove data.window."
        )
    splits = located.files
    for split in needed:
        if split not in splits:
            listed = ", ".join(f"{name} ({files.annotations})" for name, files in splits.items())
            raise DataError(
                f"{data.root or 'data.splits'}: no annotations of the split {split!r}, only {listed}. "
                f"Add its file, or specify it: --set data.splits.{split}.annotations=FILE "
                f"--set data.splits.{split}.images=DIR (then specify the other splits as well)."
            )
    return located


def division_of(data: DataConfig) -> Division:
    """Returns the rules for dividing files into splits."""
    return Division(data.eval_fraction, data.split_ratios, data.sample_1_of_n)


def categories_of(splits: Mapping[str, SplitFiles], data: DataConfig) -> list[dict[str, Any]] | None:
    """The categories of a data set, as far as they can be told without reading its annotations or records.

    Args:
        splits: files of each split.
        data: its label map counts.

    Returns:
        COCO entries; None: only reading the data will tell, or what is wrong with them.

    Raises:
        DataError: a label map that cannot be read, or categories that contradict each other.
    """
    by_file = []
    for files in splits.values():
        categories = scan_categories(files.annotations) if files.images else _categories_of_records(files, data)
        if categories is None:
            return None
        by_file.append((files.annotations, categories))
    return merge_categories(by_file) or None


def _categories_of_records(files: SplitFiles, data: DataConfig) -> list[dict[str, Any]] | None:
    # They import TensorFlow, which says so on the terminal unless a run keeps it from that.
    from detection.storage.tfrecord import find_shards

    named = data.label_map or next(iter(dataset_files_beside(find_shards(files.annotations)[0])), None)
    return None if named is None else read_label_map(named).categories


def _locate(data: DataConfig) -> SpanSplits:
    if data.root is not None and data.splits:
        raise ConfigError("data.root and data.splits both name a data set. Remove one of them.")
    require_supported(data.label_map or "", "data.label_map")
    division = division_of(data)
    if data.root is not None:
        return locate_root(data.root, division=division, span=data.span, version=data.version)
    if data.splits:
        given = {name: split.files for name, split in data.splits.items()}
        return locate_given(given, division=division, span=data.span, version=data.version)
    raise ConfigError("no data set: give --data DIR, or data.root or data.splits in the configuration.")
