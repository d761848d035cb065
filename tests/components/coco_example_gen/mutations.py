"""Mutations of a valid COCO file, as exporters and scripts make them: fields swapped, scaled, shifted, renamed, ..."""

import copy
import io
import itertools
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from pycocotools import mask as rle

SPLIT = "train"
Tree = dict[str, Any]


class Mutation(NamedTuple):
    """What is changed, in words, and the changed file."""

    name: str
    tree: Tree


def base_tree() -> Tree:
    """A file whose fields tell the same more than once: masks, areas, keypoints and their number, image sizes."""
    rng = random.Random(0)
    categories = [
        {
            "id": 1,
            "name": "bird",
            "supercategory": "animal",
            "keypoints": ["beak", "tail", "wing"],
            "skeleton": [[1, 2]],
        },
        {"id": 2, "name": "cup", "supercategory": "thing"},
        {"id": 5, "name": "door", "supercategory": "thing"},
    ]
    images: list[dict[str, Any]] = [
        {"id": 10 + number, "file_name": f"{number}.png", "width": 200 + 13 * number, "height": 150 + 7 * number}
        for number in range(6)
    ]
    annotations: list[dict[str, Any]] = []
    for image in images:
        for place, category in enumerate((1, 2, 5, 1)):
            width, height = rng.randint(24, 40), rng.randint(44, 60)
            x, y = 4 + 46 * place, rng.randint(4, image["height"] - height - 4)
            # A rectangle without two corners: mask and box differ, but have the same border.
            polygon = [
                x,
                y + 8,
                x + 8,
                y,
                x + width,
                y,
                x + width,
                y + height - 8,
                x + width - 8,
                y + height,
                x,
                y + height,
            ]
            annotation = {
                "id": len(annotations) + 1,
                "image_id": image["id"],
                "category_id": category,
                "bbox": [float(x), float(y), float(width), float(height)],
                "area": float(width * height - 64),
                "iscrowd": 0,
                "segmentation": [list(map(float, polygon))],
            }
            if category == 1:
                points = [(x + width - 3, y + 4, 2), (x + 4, y + height - 6, 1), (0, 0, 0)]
                annotation |= {"keypoints": [value for point in points for value in point], "num_keypoints": 2}
            annotations.append(annotation)
        if image["id"] % 2:
            mask = np.zeros((image["height"], image["width"]), np.uint8, order="F")
            mask[100:140, 20:90] = 1
            mask[110:130, 40:50] = 0
            encoded = rle.encode(mask)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image["id"],
                    "category_id": 2,
                    "bbox": [20.0, 100.0, 70.0, 40.0],
                    "area": float(mask.sum()),
                    "iscrowd": 1,
                    "segmentation": {"size": list(mask.shape), "counts": encoded["counts"].decode()},
                }
            )
    return {"images": images, "annotations": annotations, "categories": categories}


def write_images(folder: Path, tree: Tree) -> dict[str, bytes]:
    """Writes the images, different ones; returns their bytes by name."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {}
    for number, image in enumerate(tree["images"]):
        pixels = np.random.default_rng(number).integers(0, 256, (image["height"], image["width"], 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG", compress_level=1)
        contents[image["file_name"]] = file.getvalue()
        (folder / image["file_name"]).write_bytes(file.getvalue())
    return contents


# Numbers and lists of numbers, by the list of the file that holds them.
_NUMBERS = {
    "images": ("id", "width", "height"),
    "annotations": ("id", "image_id", "category_id", "bbox", "area", "num_keypoints", "keypoints", "segmentation"),
    "categories": ("id",),
}
_FIELDS = {
    "images": (*_NUMBERS["images"], "file_name"),
    "annotations": (*_NUMBERS["annotations"], "iscrowd"),
    "categories": (*_NUMBERS["categories"], "name", "supercategory", "keypoints", "skeleton"),
}
_SCALES = (-1.0, 0.0, 0.01, 0.5, 1.3, 2.0, 100.0)
_SHIFTS = (-1000, -20, -1, 1, 20, 1000, 0.5)
_SAME_TEXT: Sequence[Callable[[str], str]] = (
    str.upper,
    str.title,
    lambda name: f"{name}_",
    lambda name: name.replace("_", ""),
)


def _numbers(value: Any, change: Callable[[float], float]) -> Any:
    """Changes each number of a field; coordinates of keypoints only, not their visibility."""
    if isinstance(value, list):
        return [_numbers(one, change) for one in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        changed = change(value)
        return int(changed) if isinstance(value, int) and changed == int(changed) else changed
    return value


def _changed(field: str, value: Any, change: Callable[[float], float]) -> Any:
    if field != "keypoints" or not isinstance(value, list) or (value and isinstance(value[0], str)):
        return _numbers(value, change)
    return [
        entry if place % 3 == 2 or not value[place - place % 3 + 2] else _numbers(entry, change)
        for place, entry in enumerate(value)
    ]


_ORDERS = ("corners", "centers", "rows first", "corners, rows first", "sides first")


def _box(order: str, box: Sequence[float]) -> list[float]:
    x, y, width, height = box
    return {
        "corners": [x, y, x + width, y + height],
        "centers": [x + width / 2, y + height / 2, width, height],
        "rows first": [y, x, height, width],
        "corners, rows first": [y, x, y + height, x + width],
        "sides first": [width, height, x, y],
    }[order]


def mutations() -> Iterator[Mutation]:
    """Yields all mutations: of one entry, of every second one, and of all."""
    base = base_tree()

    def apply(part: str, some: str, change: Callable[[dict[str, Any]], None]) -> Tree | None:
        tree = copy.deepcopy(base)
        step, start = {"one": (10**9, 3), "second": (2, 0), "all": (1, 0)}[some]
        entries = tree[part][min(start, len(tree[part]) - 1) :: step]
        for entry in entries:
            change(entry)
        return tree if tree != base else None

    def of_fields() -> Iterator[tuple[str, str, Callable[[dict[str, Any]], None]]]:
        for part, fields in _FIELDS.items():
            for field in fields:

                def put(value: Callable[[Any], Any], field: str = field) -> Callable[[dict[str, Any]], None]:
                    def change(entry: dict[str, Any]) -> None:
                        if field in entry:
                            entry[field] = value(entry[field])

                    return change

                def rename(to: Callable[[str], str], field: str = field) -> Callable[[dict[str, Any]], None]:
                    def change(entry: dict[str, Any]) -> None:
                        if field in entry:
                            entry[to(field)] = entry.pop(field)

                    return change

                def drop(entry: dict[str, Any], field: str = field) -> None:
                    entry.pop(field, None)

                yield part, f"{field} dropped", drop
                for number, to in enumerate(_SAME_TEXT):
                    yield part, f"{field} renamed {number}", rename(to)
                for name, value in (
                    ("null", lambda value: None),
                    ("as text", str),
                    ("in a list", lambda value: [value]),
                    ("doubled", lambda value: value * 2 if isinstance(value, list | str) else [value, value]),
                    ("an object", lambda value: {"value": value}),
                    ("empty", lambda value: [] if isinstance(value, list) else ""),
                ):
                    yield part, f"{field} {name}", put(value)
                if field not in _NUMBERS[part]:
                    continue
                for factor in _SCALES:
                    yield (
                        part,
                        f"{field} scaled by {factor:g}",
                        put(partial(_changed, field, change=partial(operator.mul, factor))),
                    )
                for step in _SHIFTS:
                    yield (
                        part,
                        f"{field} shifted by {step:g}",
                        put(partial(_changed, field, change=partial(operator.add, step))),
                    )
            for one, other in itertools.combinations(fields, 2):

                def swap(entry: dict[str, Any], one: str = one, other: str = other) -> None:
                    if one in entry and other in entry:
                        entry[one], entry[other] = entry[other], entry[one]

                yield part, f"{one} and {other} swapped", swap
        for order in _ORDERS:

            def reorder(entry: dict[str, Any], order: str = order) -> None:
                entry["bbox"] = _box(order, entry["bbox"])

            yield "annotations", f"bbox as {order}", reorder
        sizes = {image["id"]: (image["width"], image["height"]) for image in base["images"]}

        def fractions(entry: dict[str, Any]) -> None:
            width, height = sizes[entry["image_id"]]
            entry["bbox"] = [value / side for value, side in zip(entry["bbox"], (width, height) * 2, strict=True)]

        def network(entry: dict[str, Any]) -> None:
            width, height = sizes[entry["image_id"]]
            entry["bbox"] = [value / side * 512 for value, side in zip(entry["bbox"], (width, height) * 2, strict=True)]

        yield "annotations", "bbox as fractions", fractions
        yield "annotations", "bbox in pixels of a network", network

    for part, name, change in of_fields():
        for some in ("one", "second", "all"):
            tree = apply(part, some, change)
            if tree is not None:
                yield Mutation(f"{some} of {part}: {name}", tree)
    for part in ("images", "annotations", "categories"):
        yield Mutation(f"{part} dropped", {key: value for key, value in base.items() if key != part})
        yield Mutation(f"{part} renamed", {key.title() if key == part else key: value for key, value in base.items()})
        doubled = base[part] + base[part]
        yield Mutation(f"{part} doubled", base | {part: copy.deepcopy(doubled)})
        yield Mutation(f"{part} as an object", base | {part: {str(one["id"]): one for one in base[part]}})
