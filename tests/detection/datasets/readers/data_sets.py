"""Writes one data set in four formats, as the tools of each do, and reads it."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from detection.datasets.annotations.annotation_file import index_annotations
from detection.datasets.layouts import find_splits
from detection.datasets.readers.converted import as_coco
from detection.datasets.readers.folder import Fault

NAMES = ("bolt", "nut", "washer")
FOLDERS = {"train": "train", "eval": "valid"}


class Picture(NamedTuple):
    """Size in pixels, and objects: class and edges x_min, y_min, x_max, y_max in whole pixels."""

    width: int
    height: int
    objects: Sequence[tuple[int, tuple[int, int, int, int]]]


DataSet = Mapping[str, Sequence[Picture]]  # by split


def _images(folder: Path, pictures: Sequence[Picture]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, picture in enumerate(pictures):
        Image.new("L", (picture.width, picture.height), number).save(folder / f"{number:03}.png")


def write_coco(root: Path, data: DataSet) -> None:
    for split, pictures in data.items():
        folder = root / FOLDERS[split]
        _images(folder, pictures)
        images = [
            {"id": number, "file_name": f"{number:03}.png", "width": one.width, "height": one.height}
            for number, one in enumerate(pictures)
        ]
        boxes = [(number, *made) for number, one in enumerate(pictures) for made in one.objects]
        annotations = [
            {"id": place, "image_id": number, "category_id": 7 + kind, "bbox": [x, y, right - x, bottom - y]}
            for place, (number, kind, (x, y, right, bottom)) in enumerate(boxes)
        ]
        categories = [{"id": 7 + kind, "name": name} for kind, name in enumerate(NAMES)]
        tree = {"images": images, "annotations": annotations, "categories": categories}
        (folder / "_annotations.coco.json").write_text(json.dumps(tree))


def write_yolo(root: Path, data: DataSet) -> None:
    for split, pictures in data.items():
        folder = root / FOLDERS[split]
        _images(folder / "images", pictures)
        (folder / "labels").mkdir()
        for number, one in enumerate(pictures):
            lines = [
                f"{kind} {(x + right) / 2 / one.width!r} {(y + bottom) / 2 / one.height!r} "
                f"{(right - x) / one.width!r} {(bottom - y) / one.height!r}"
                for kind, (x, y, right, bottom) in one.objects
            ]
            if lines:  # a picture without a file is one without objects
                (folder / "labels" / f"{number:03}.txt").write_text("\n".join(lines) + "\n")
    (root / "data.yaml").write_text(
        f"train: ../train/images\nval: ../valid/images\nnc: {len(NAMES)}\nnames: {list(NAMES)}\n"
    )


def write_voc(root: Path, data: DataSet) -> None:
    (root / "Annotations").mkdir(parents=True)
    (root / "ImageSets/Main").mkdir(parents=True)
    for split, pictures in data.items():
        _images(root / "JPEGImages" / split, pictures)
        stems = []
        for number, one in enumerate(pictures):
            stem = f"{split}-{number:03}"
            (root / "JPEGImages" / split / f"{number:03}.png").rename(root / "JPEGImages" / f"{stem}.png")
            objects = "".join(
                f"<object><name>{NAMES[kind]}</name><bndbox><xmin>{x + 1}</xmin><ymin>{y + 1}</ymin>"
                f"<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
                for kind, (x, y, right, bottom) in one.objects
            )
            size = f"<size><width>{one.width}</width><height>{one.height}</height></size>"
            (root / "Annotations" / f"{stem}.xml").write_text(f"<annotation>{size}{objects}</annotation>")
            stems.append(stem)
        name = {"train": "train", "eval": "val"}[split]
        (root / "ImageSets/Main" / f"{name}.txt").write_text("\n".join(stems))


def write_csv(root: Path, data: DataSet) -> None:
    for split, pictures in data.items():
        _images(root / "images" / FOLDERS[split], pictures)
        with (root / f"{FOLDERS[split]}_labels.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax"])
            for number, one in enumerate(pictures):
                for kind, edges in one.objects:
                    writer.writerow([f"{number:03}.png", one.width, one.height, NAMES[kind], *edges])


WRITERS = {"coco": write_coco, "yolo": write_yolo, "voc": write_voc, "csv": write_csv}

Read = dict[str, dict[str, list[tuple[str, tuple[float, ...]]]]]


def read_data_set(root: str | Path) -> tuple[Read, list[Fault], list[str]]:
    """Returns name and box of each object, by split and the number in the image's name; faults and notes."""
    splits: Read = {}
    faults: list[Fault] = []
    notes: list[str] = []
    for name, files in find_splits(root).items():
        made, found = as_coco(files)
        index = index_annotations(made.annotations)
        assert not index.issues
        names = {category["id"]: category["name"] for category in index.categories}
        splits[name] = {
            image["file_name"].rpartition("-")[2]: [
                (names[one["category_id"]], tuple(one["bbox"])) for one in annotations
            ]
            for image, annotations in index.entries()
        }
        faults += [fault for _, fault in found]
        notes += made.notes
    return splits, faults, notes
