"""A small data set whose parts tests may break."""

import json
from pathlib import Path
from typing import Any

import tensorflow as tf
from PIL import Image

from detection.datasets.annotations.packed_entries import unpack_entries
from schemas import features


def write_data_set(root: Path, *, images: int = 5, broken: bool = False) -> None:
    """Writes train (ids 1..images) and val (one image), pictures in sub-folders.

    Every image has two boxes; where `broken`, one of image 1 lies outside and the
    file of image 2 is absent.
    """
    (root / "annotations").mkdir(parents=True)
    for split, ids in (("train", range(1, images + 1)), ("val", range(100, 101))):
        entries = [_image(split, number) for number in ids]
        for entry in entries:
            path = root / "images" / entry["file_name"]
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (entry["width"], entry["height"]), (entry["id"], 9, 99)).save(path)
        annotations = [_box(number, place) for number in ids for place in (0, 1)]
        if broken and split == "train":
            annotations[0]["bbox"] = [70, 0, 50, 5]
            (root / "images" / entries[1]["file_name"]).unlink()
        categories = [{"id": 4, "name": "cat"}, {"id": 2, "name": "dog"}, {"id": 9, "name": "none of these"}]
        tree = {"images": entries, "annotations": annotations, "categories": categories}
        if split == "train":
            tree |= {"info": {"year": 2020}, "licenses": [{"id": 1}]}  # type: ignore[dict-item]
        (root / f"annotations/instances_{split}.json").write_text(json.dumps(tree))


def written_entries(out: Path, split: str = "*") -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The image and the annotations that are packed into each record of Examples."""
    records = tf.data.TFRecordDataset(sorted(map(str, out.glob(f"Split-{split}/*")))).as_numpy_iterator()
    packed = (tf.train.Example.FromString(record).features.feature[features.COCO] for record in records)
    return [unpack_entries(one.bytes_list.value[0]) for one in packed]


def _image(split: str, number: int) -> dict[str, Any]:
    return {"id": number, "file_name": f"{split}/{number % 2}/{number}.png", "width": 80, "height": 40}


def _box(image: int, place: int) -> dict[str, Any]:
    bbox = [10.5 * place, 3, 20, 10 + image % 7]
    return {"id": 2 * image + place, "image_id": image, "category_id": (4, 2)[place], "bbox": bbox}
