"""Layouts of COCO data sets as people name their files and folders, generated from a seed."""

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

_SPLITS = (
    *("train", "Train", "TRAIN", "training", "Training", "trainval", "trainVal", "val", "valid", "Valid", "validation"),
    *("Validation", "dev", "eval", "Eval", "test", "Test", "testing", "holdout", "minival"),
)
_FILES = ("instances_{}.json", "{}.json", "annotations_{}.json", "instances_{}2017.json", "{}_annotations.json")
_CONTENTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "as it is": lambda tree: None,
    "no annotation": lambda tree: tree["annotations"].clear(),
    "crowds only": lambda tree: [one.update(iscrowd=1) for one in tree["annotations"]],
    "no category": lambda tree: (tree["annotations"].clear(), tree["categories"].clear()),
    "boxes without area": lambda tree: [one["bbox"].__setitem__(2, 0) for one in tree["annotations"]],
    "negative sides": lambda tree: [one["bbox"].__setitem__(2, -5) for one in tree["annotations"]],
    "no image": lambda tree: (tree["images"].clear(), tree["annotations"].clear()),
    "one bad entry": lambda tree: tree["annotations"][:1] and tree["annotations"][0].pop("bbox"),
    "unknown category": lambda tree: [one.update(category_id=77) for one in tree["annotations"]],
    "files that are not there": lambda tree: [one.update(file_name="x" + one["file_name"]) for one in tree["images"]],
}


def tree_of(seed: int) -> dict[str, Any]:
    """A COCO file of four images, whose names depend on the seed."""
    images: list[dict[str, Any]] = [
        {"id": number, "file_name": f"{seed}_{number}.png", "height": 32, "width": 40} for number in range(1, 5)
    ]
    annotations: list[dict[str, Any]] = [
        {"id": number, "image_id": 1 + number % 4, "category_id": 1 + number % 2, "bbox": [4, 5, 10 + number, 12]}
        for number in range(6)
    ]
    for one in annotations:
        one |= {"area": one["bbox"][2] * one["bbox"][3], "iscrowd": 0}
    return {
        "images": images,
        "annotations": annotations,
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
    }


def write_images(folder: Path, tree: dict[str, Any], seed: int) -> None:
    """Writes the images of a file, each with pixels of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(tree["images"]):
        pixels = np.random.default_rng(1000 * seed + number).integers(0, 256, (32, 40, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG", compress_level=1)
        (folder / image["file_name"]).write_bytes(file.getvalue())


def write_layout(root: Path, seed: int) -> str:
    """Writes a data set of one to three splits; returns it in words."""
    rng = random.Random(seed)
    names = rng.sample(_SPLITS, rng.choice((1, 2, 2, 2, 3)))
    if rng.random() < 0.6 and not any(name.lower() == "train" for name in names):
        names[0] = rng.choice(("train", "Train", "training"))
    form, beside = rng.choice(_FILES), rng.random() < 0.4
    words = []
    for number, name in enumerate(names):
        tree = tree_of(10 * seed + number)
        write_images(root / name, tree, 10 * seed + number)
        content = rng.choice([*["as it is"] * 12, *_CONTENTS])
        _CONTENTS[content](tree)
        file = root / name / rng.choice(("_annotations.coco.json", "labels.json")) if beside else None
        file = file or root / "annotations" / form.format(name)
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(tree))
        words.append(f"{file.relative_to(root)}: {content}")
    return "; ".join(words)
