"""A request for an evaluation of models, and what an `Examples` artifact tells about a split."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from detection.datasets.importers.label_map import read_dataset_file
from detection.storage.files import is_dir, list_folder
from detection.storage.paths import join
from schemas.artifacts import DATASET_JSON, split_dir
from schemas.config.evaluate import EvaluateConfig
from schemas.errors import DataError


@dataclass(frozen=True)
class Task:
    """An evaluation of models on the records of a split.

    records: folder or pattern of the TFRecord files, see `find_shards`.
    images: number of images; None: unknown, they are counted first.
    categories: COCO `categories` of the data set.
    models: SavedModel folder of `candidate` and optionally `baseline`, whose detections of
        unknown categories are left out.
    eval_config: checked `tfma.EvalConfig`; None: COCO's params on all images.
    config: options of the evaluation; its `split` and `eval_config` are read already.
    title: title of the report.
    locations: path of each model and, as `data`, of the examples, as shown in TFMA's files and
        the report.
    served_images: number of images whose outputs of the candidate are kept for the pusher.
    """

    records: str
    images: int | None
    categories: Sequence[dict[str, Any]]
    models: Mapping[str, str]
    locations: Mapping[str, str]
    title: str
    config: EvaluateConfig
    eval_config: Any | None = None
    served_images: int = 0


class Dataset(NamedTuple):
    """A split of an `Examples` artifact.

    records: folder of its TFRecord files.
    categories: COCO `categories` of the data set.
    images: number of images; None if the artifact lacks it.
    """

    records: str
    categories: list[dict[str, Any]]
    images: int | None


def read_dataset(root: str | Path, split: str) -> Dataset:
    """Reads the description of a split.

    Args:
        root: the artifact's folder.
        split: its name.

    Raises:
        DataError: the artifact has no readable description, or one without categories;
            the split has no file.
    """
    dataset = read_dataset_file(join(root, DATASET_JSON))
    folder = join(root, split_dir(split))
    if not (is_dir(folder) and list_folder(folder)):
        raise DataError(f"{folder}: no file of records. Write the examples again.")
    return Dataset(folder, dataset["categories"], _image_count(dataset, split))


def _image_count(dataset: dict[str, Any], split: str) -> int | None:
    """Returns the number of images of a split; None if dataset.json does not tell it."""
    try:
        images = dataset["splits"][split]["images"]
    except (KeyError, TypeError):
        return None
    return images if type(images) is int and images >= 0 else None
