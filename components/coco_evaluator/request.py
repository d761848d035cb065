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
from schemas.quoting import quoted

_LISTED = 10  # categories in a message


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


def require_categories(
    own: Sequence[Mapping[str, Any]], categories: Sequence[Mapping[str, Any]], *, model: str, data: str
) -> None:
    """Requires that a data set has every category that a model detects; it may have more.

    Args:
        own: COCO `categories` of the model; an entry without `name` may have any name in the data set, one whose
            `name` is None is no category.
        categories: COCO `categories` of the data set.
        model: name of the model in errors.
        data: name of the data set in errors.

    Raises:
        DataError: some are missing, or have other names there.
    """
    named = {category["id"]: category["name"] for category in categories}
    detected = [entry for entry in own if entry.get("name", "") is not None]
    lacking = [entry for entry in detected if named.get(entry["id"]) != entry.get("name", named.get(entry["id"]))]
    if lacking:
        listed = ", ".join(f"{entry['id']} {quoted(entry.get('name'))}" for entry in lacking[:_LISTED])
        more = f" and {len(lacking) - _LISTED} more" if len(lacking) > _LISTED else ""
        raise DataError(
            f"{data}: it lacks categories that the model {model} detects: {listed}{more}. "
            "Name a data set whose categories have the ids and names that the model was trained on."
        )


def _image_count(dataset: dict[str, Any], split: str) -> int | None:
    """Returns the number of images of a split; None if dataset.json does not tell it."""
    try:
        images = dataset["splits"][split]["images"]
    except (KeyError, TypeError):
        return None
    return images if type(images) is int and images >= 0 else None
