"""From annotation files to TFRecord shards, each written by a worker of its own.

What a worker needs lies in a plan file, what it found goes into a result file beside
it; only paths travel through Beam.  The plans depend on nothing but the data, so equal
data gives equal bytes, however many workers there are.
"""

import json
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from detection.coco.annotations import CocoAnnotations, Entry, merge_categories, read_annotations
from detection.coco.layouts import SplitFiles
from detection.data.records import Fault, make_record
from schemas.artifacts import split_dir
from schemas.errors import DataError

IMAGES_PER_SHARD = 256
_RESULT = ".result"


@dataclass(frozen=True)
class SplitResult:
    """What became of one split.

    images: written.
    annotations: written.
    faults: of what was not written, in the order of the records.
    """

    images: int
    annotations: int
    faults: list[Fault]


def read_splits(splits: Mapping[str, SplitFiles]) -> dict[str, CocoAnnotations]:
    """Reads every split's annotation file, each file once.

    Raises:
        DataError: see `read_annotations`.
    """
    files: dict[tuple[str, str | None], CocoAnnotations] = {}
    for split in splits.values():
        key = (split.annotations, split.keypoints)
        if key not in files:
            files[key] = read_annotations(*key)
    return {name: files[split.annotations, split.keypoints] for name, split in splits.items()}


def describe_dataset(files: Iterable[CocoAnnotations]) -> dict[str, Any]:
    """The contents of dataset.json: the first file's info, all licences, all categories."""
    files = list(files)
    licenses: list[Entry] = []
    for file in files:
        licenses += [entry for entry in file.licenses if entry not in licenses]
    return {"info": files[0].info, "licenses": licenses, "categories": merge_categories(files)}


def write_plans(
    splits: Mapping[str, SplitFiles],
    files: Mapping[str, CocoAnnotations],
    categories: Iterable[Entry],
    *,
    root: Path,
    work: Path,
) -> dict[str, list[str]]:
    """Divides every split into shards, images in random but repeatable order.

    Args:
        splits: the splits.
        files: their annotations.
        categories: of the whole data set.
        root: of the artifact; the shards go to `Split-<name>/` in it.
        work: existing folder for the plans.

    Returns:
        The plan files of every split.

    Raises:
        DataError: a split without images.
    """
    names = [[category["id"], category["name"]] for category in categories]
    return {
        name: _plan_split(name, split, files[name], {"categories": names}, root=root, work=work)
        for name, split in splits.items()
    }


def write_shard(plan_path: str) -> None:
    """Writes the shard that a plan describes, and what was found beside the plan.

    May run several times for one plan, as Beam does after a failure: the shard
    appears whole.
    """
    plan = json.loads(Path(plan_path).read_bytes())
    names = dict(plan["categories"])
    faults: list[Fault] = []
    images = annotations = 0
    with tf.io.TFRecordWriter(f"{plan_path}.tmp") as writer:
        for image, entries in plan["entries"]:
            example, found = make_record(
                image, entries, images=plan["images"], split=plan["split"], category_names=names
            )
            faults += found
            if example is not None:
                writer.write(example.SerializeToString(deterministic=True))
                images += 1
                annotations += len(entries) - len(found)
    Path(f"{plan_path}.tmp").rename(plan["records"])
    result = {"images": images, "annotations": annotations, "faults": [fault.as_dict() for fault in faults]}
    Path(plan_path + _RESULT).write_text(json.dumps(result))


def read_results(plans: Iterable[str]) -> SplitResult:
    """What `write_shard` found in the shards of one split, together."""
    results = [json.loads(Path(plan + _RESULT).read_bytes()) for plan in plans]
    return SplitResult(
        images=sum(result["images"] for result in results),
        annotations=sum(result["annotations"] for result in results),
        faults=[Fault(**fault) for result in results for fault in result["faults"]],
    )


def _plan_split(
    name: str, split: SplitFiles, file: CocoAnnotations, common: Mapping[str, Any], *, root: Path, work: Path
) -> list[str]:
    images = [image for image in file.images if split.holds(image["id"])]
    if not images:
        advice = "Choose another data.eval_fraction" if split.hash_range else "Add images, or remove the split"
        raise DataError(f"{split.annotations}: no image for the split {name}. {advice}.")
    random.Random(name).shuffle(images)
    shards = math.ceil(len(images) / IMAGES_PER_SHARD)
    folder = root / split_dir(name)
    folder.mkdir(parents=True, exist_ok=True)
    plans = []
    for number in range(shards):
        shard = f"data_tfrecord-{number:05d}-of-{shards:05d}"
        entries = [[image, file.annotations[image["id"]]] for image in images[number::shards]]
        plan = {"split": name, "images": split.images, "records": str(folder / shard), "entries": entries}
        path = work / f"{name}-{shard}.json"
        path.write_text(json.dumps({**plan, **common}))
        plans.append(str(path))
    return plans
