"""Records of generated images whose objects lie near what the stub model finds: crowds, ties, empty images."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from detection.datasets.annotations.entries import Rows
from detection.datasets.encode_record import encode_example
from detection.images.inspect import inspect_image
from detection.inference.formats.saved_model import SavedModelDetector
from detection.types import EncodedImage
from schemas.features import ENCODED
from tests.detection.fake_detector import CATEGORY_IDS, save_fake_detector, write_images

NAMES = {id_: f"category {id_}" for id_ in (*CATEGORY_IDS, 31)}  # 31 is never used
CATEGORIES = [{"id": id_, "name": name} for id_, name in NAMES.items()]


def generate_ground_truth(
    folder: Path, models: Sequence[Path], *, seed: int, count: int = 13, found: Sequence[float] = (0.7, 0.3)
) -> dict[str, Any]:
    """A COCO data set of `count` images below `folder`; `found` of what the stubs, SavedModels, detect are objects."""
    entries = write_images(folder, count)
    rng = np.random.default_rng(seed)
    annotations: list[dict[str, Any]] = []
    for model, fraction in zip(models, found, strict=False):
        for rows in detect(model, entries, folder)[1:]:
            for image_id, *box, _, category in rows[rng.random(len(rows)) < fraction].tolist():
                bbox = [max(0.01, value + float(rng.normal(0, 0.5))) for value in box]
                annotation = {"image_id": int(image_id), "category_id": int(category), "bbox": bbox}
                said = {"area": bbox[2] * bbox[3], "iscrowd": int(rng.random() < 0.2)}
                annotations.append({"id": len(annotations) + 1, **annotation, **said})
    licensed = [{**entry, "license": int(rng.integers(1, 4))} for entry in entries]
    return {"images": licensed, "annotations": annotations, "categories": CATEGORIES}


def detect(model: Path, entries: Sequence[dict[str, Any]], folder: Path) -> list[Rows]:
    """What a stub finds on each image."""
    images = [
        EncodedImage(entry["id"], "", (folder / entry["file_name"]).read_bytes(), entry["height"], entry["width"])
        for entry in entries
    ]
    return [results.rows for results in SavedModelDetector(folder=model, batch_size=len(images)).detect(images)]


def annotations_of(ground_truth: dict[str, Any], image_id: int) -> list[dict[str, Any]]:
    return [annotation for annotation in ground_truth["annotations"] if annotation["image_id"] == image_id]


def save_models(root: Path) -> list[Path]:
    """Writes the folders of two `Model` artifacts below `root`."""
    for shift in range(2):
        save_fake_detector(root / str(shift) / "Format-Serving", shift=shift)
    return [root / "0", root / "1"]


def served(models: Sequence[Path]) -> list[Path]:
    return [model / "Format-Serving" for model in models]


def artifact(kind: str, uri: str | Path, identifier: int, **properties: str) -> Any:
    """An artifact of one of TFX's own types."""
    from tfx.types import standard_artifacts

    made = getattr(standard_artifacts, kind)()
    made.uri, made.id = str(uri), identifier
    for name, value in properties.items():
        setattr(made, name, value)
    return made


def write_records(
    root: Path,
    ground_truth: dict[str, Any],
    images: Path,
    *,
    shards: int = 2,
    broken: bool = False,
    counted: bool = True,
) -> Path:
    """An `Examples` artifact with the split `eval`; the images lie over the shards, in no order, the first one gzipped.

    Args:
        root: new folder.
        ground_truth: COCO data set.
        images: folder of its images.
        shards: number of files.
        broken: whether no image can be decoded.
        counted: whether the artifact tells the number of images; otherwise counting them takes a pipeline.
    """
    (root / "Split-eval").mkdir(parents=True)
    records = []
    for entry in ground_truth["images"]:
        file = inspect_image((images / entry["file_name"]).read_bytes(), max_pixels=10_000)
        record = encode_example(file, entry, annotations_of(ground_truth, entry["id"]), category_names=NAMES)
        if broken:
            record.features.feature[ENCODED].bytes_list.value[:] = [b"no image"]
        records.append(record.SerializeToString())
    random.Random(0).shuffle(records)
    write_shards(root, records, shards)
    splits = {"splits": {"eval": {"images": len(records)}}} if counted else {}
    dataset = {"info": {}, "licenses": [], "categories": ground_truth["categories"], **splits}
    (root / "dataset.json").write_text(json.dumps(dataset))
    return root


def write_shards(root: Path, records: Sequence[bytes], shards: int) -> None:
    """Writes the records of an `Examples` artifact."""
    for shard in range(shards):
        name, compression = ("part", "") if shard else ("part.gz", "GZIP")
        with tf.io.TFRecordWriter(str(root / "Split-eval" / f"{shard}-{name}"), compression) as writer:
            for record in records[shard::shards]:
                writer.write(record)
