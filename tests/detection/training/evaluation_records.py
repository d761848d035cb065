"""Records that checkpoints are evaluated on: the rectangles of `tests.detection.synthetic` with COCO entries."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from detection.datasets.encode_record import encode_example
from detection.images.inspect import inspect_image
from tests.detection.synthetic import CATEGORY_IDS, COLOURS, write_shards

CATEGORIES: list[dict[str, Any]] = [{"id": number, "name": f"kind {number}"} for number in CATEGORY_IDS]


def coco_records(
    count: int, *, side: int = 64, seed: int = 5, alike: bool = False
) -> tuple[list[bytes], dict[str, Any]]:
    """Serialised records and the COCO tree that they were made of.

    Every fourth image is without objects, and every fifth object is a crowd.  Where they
    are alike, each image has one object of the first kind, at the same place.
    """
    random = np.random.default_rng(seed)
    tree: dict[str, Any] = {"images": [], "annotations": [], "categories": CATEGORIES}
    records = []
    for number in range(count):
        pixels = np.full((side, side, 3), 128, np.uint8)
        entry: dict[str, Any] = {"id": 100 - number, "file_name": f"{number}.png", "width": side, "height": side}
        annotations: list[dict[str, Any]] = []
        for _ in range(1 if alike else 0 if number % 4 == 3 else random.integers(1, 4)):
            height, width = random.integers(side // 6, side // 2, 2).tolist()
            top, left = int(random.integers(0, side - height)), int(random.integers(0, side - width))
            kind = int(random.integers(3))
            if alike:
                top, left, height, width, kind = side // 8, side // 8, 3 * side // 4, 3 * side // 4, 0
            pixels[top : top + height, left : left + width] = COLOURS[kind]
            annotations.append(_annotation(tree, annotations, entry["id"], [left, top, width, height], kind))
        tree["images"].append(entry)
        tree["annotations"] += annotations
        encoded = inspect_image(tf.io.encode_png(pixels).numpy(), max_pixels=10**6)
        names = {category["id"]: str(category["name"]) for category in CATEGORIES}
        records.append(encode_example(encoded, entry, annotations, category_names=names).SerializeToString())
    return records, tree


def write_coco_shards(folder: Path, count: int, *, alike: bool = False) -> tuple[list[str], dict[str, Any]]:
    """Shards of `coco_records`, and their COCO tree."""
    records, tree = coco_records(count, alike=alike)
    folder.mkdir(parents=True, exist_ok=True)
    return write_shards(folder, records), tree


def _annotation(
    tree: dict[str, Any], others: Sequence[Any], image_id: int, bbox: list[int], kind: int
) -> dict[str, Any]:
    number = len(tree["annotations"]) + len(others) + 1
    return {
        "id": number,
        "image_id": image_id,
        "category_id": CATEGORY_IDS[kind],
        "bbox": bbox,
        "area": bbox[2] * bbox[3],
        "iscrowd": int(number % 5 == 0),
    }
