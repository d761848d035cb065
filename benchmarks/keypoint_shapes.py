"""Generates a data set with keypoints: arrows and anchors, turned and scaled, on noisy canvases.

    python -m benchmarks.keypoint_shapes DIR [--train-images 600] [--eval-images 100] [--seed 0]

Writes a COCO data set that depends on the seed only.  A left keypoint is left of the way from tail to tip.  Some
keypoints are marked as not labelled, as in real data.
"""

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

CANVAS = 128  # pixels, both sides
_SIDES = (22.0, 44.0)  # half of a shape's length, pixels
_MAX_SHAPES = 4
_UNLABELLED = 0.1
_NAMES = ["tip", "left_end", "right_end", "tail"]

Array = npt.NDArray[np.float64]


class _Shape(NamedTuple):
    """Lines between keypoints, whose (x, y) are in units of the half length; y points from tip to tail."""

    points: tuple[tuple[float, float], ...]
    lines: tuple[tuple[int, int], ...]


_SHAPES = {
    "arrow": _Shape(((0, -1), (-0.6, -0.3), (0.6, -0.3), (0, 1)), ((0, 1), (0, 2), (0, 3))),
    "anchor": _Shape(((0, -1), (-0.7, 0.5), (0.7, 0.5), (0, 1)), ((3, 1), (3, 2), (0, 3))),
}


def write_shapes(directory: Path, *, train_images: int, eval_images: int, seed: int) -> None:
    """Writes the images of both splits, and annotations/instances_{train,val}.json."""
    categories = [
        {
            "id": number,
            "name": name,
            "keypoints": _NAMES,
            "skeleton": [[one + 1, other + 1] for one, other in shape.lines],
        }
        for number, (name, shape) in enumerate(_SHAPES.items(), start=1)
    ]
    (directory / "annotations").mkdir(parents=True)
    for split, count in (("train", train_images), ("val", eval_images)):
        random = np.random.default_rng([seed, split == "val"])
        tree: dict[str, Any] = {"images": [], "annotations": [], "categories": categories}
        (directory / split).mkdir()
        for number in range(1, count + 1):
            name = f"{number:05}.jpg"
            tree["images"].append({"id": number, "file_name": name, "height": CANVAS, "width": CANVAS})
            image = Image.fromarray(random.normal(128, 30, (CANVAS, CANVAS, 3)).clip(0, 255).astype(np.uint8))
            taken: list[Array] = []
            for _ in range(random.integers(1, _MAX_SHAPES + 1)):
                category = int(random.integers(len(_SHAPES)))
                points = _place(list(_SHAPES.values())[category], taken, random)
                if points is not None:
                    _draw(image, list(_SHAPES.values())[category], points, random)
                    taken.append(points)
                    annotation = _annotation(points, random)
                    ids = {"id": len(tree["annotations"]) + 1, "image_id": number, "category_id": category + 1}
                    tree["annotations"].append(ids | annotation)
            image.save(directory / split / name, quality=90)
        (directory / "annotations" / f"instances_{split}.json").write_text(json.dumps(tree))


def _place(shape: _Shape, taken: list[Array], random: np.random.Generator) -> Array | None:
    """Returns the points (x, y) of a shape whose box overlaps no other; None: there was no place."""
    for _ in range(20):
        angle, half = random.uniform(-0.9, 0.9), random.uniform(*_SIDES)
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        points = half * np.array(shape.points) @ turn
        points += random.uniform(4 - points.min(axis=0), CANVAS - 4 - points.max(axis=0))
        if all((points.min(0) > other.max(0)).any() or (points.max(0) < other.min(0)).any() for other in taken):
            return points
    return None


def _draw(image: Image.Image, shape: _Shape, points: Array, random: np.random.Generator) -> None:
    color = tuple(int(value) for value in random.choice([random.integers(0, 60, 3), random.integers(190, 256, 3)]))
    for one, other in shape.lines:
        ImageDraw.Draw(image).line([*points[one], *points[other]], fill=color, width=int(random.integers(3, 6)))


def _annotation(points: Array, random: np.random.Generator) -> dict[str, Any]:
    low, high = points.min(axis=0) - 2, points.max(axis=0) + 2
    labelled = random.random(len(points)) >= _UNLABELLED
    rows = np.concatenate([points, np.full((len(points), 1), 2)], axis=1) * labelled[:, np.newaxis]
    size = high - low
    return {
        "bbox": [*np.round(low, 2), *np.round(size, 2)],
        "area": round(float(size.prod()), 2),
        "iscrowd": 0,
        "keypoints": np.round(rows, 2).ravel().tolist(),
        "num_keypoints": int(labelled.sum()),
    }


def main() -> None:
    """Writes the data set."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--train-images", type=int, default=600)
    parser.add_argument("--eval-images", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write_shapes(args.directory, train_images=args.train_images, eval_images=args.eval_images, seed=args.seed)


if __name__ == "__main__":
    main()
