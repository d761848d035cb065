"""What is read equals what an independent reader, that of supervision, reads from the same folders."""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import supervision

from detection.datasets.layouts import find_splits
from detection.web.archives import unpacked
from tests.detection.datasets.readers.data_sets import read_data_set

Objects = dict[str, list[tuple[str, tuple[float, ...]]]]  # category and box [x, y, width, height], by name of the image
Loaded = dict[str, Objects]  # by split
ROBOFLOW = {"train": "train", "eval": "valid"}


def _objects(dataset: Any, stems: Iterable[str] | None = None) -> Objects:
    loaded: Objects = {}
    for path, _, found in dataset:
        if stems is None or Path(path).stem in stems:
            corners = found.xyxy.tolist()
            boxes = [(x, y, right - x, bottom - y) for x, y, right, bottom in corners]
            names = [dataset.classes[number] for number in found.class_id]
            loaded[Path(path).name] = list(zip(names, boxes, strict=True))
    return loaded


def _coco(root: Path) -> Loaded:
    load = supervision.DetectionDataset.from_coco
    folders = {split: root / folder for split, folder in ROBOFLOW.items()}
    return {name: _objects(load(str(of), str(of / "_annotations.coco.json"))) for name, of in folders.items()}


def _yolo(images: str, labels: str, file: str, folders: dict[str, str]) -> Callable[[Path], Loaded]:
    def load(root: Path) -> Loaded:
        return {
            split: _objects(
                supervision.DetectionDataset.from_yolo(
                    str(root / images.format(folder)), str(root / labels.format(folder)), str(root / file)
                )
            )
            for split, folder in folders.items()
        }

    return load


def _voc(images: str, annotations: str, folders: dict[str, str] | None) -> Callable[[Path], Loaded]:
    """Loads folders of splits, or one folder with VOC's lists of the splits' images."""

    def load(root: Path) -> Loaded:
        load_folder = supervision.DetectionDataset.from_pascal_voc
        if folders:
            places = {split: str(root / folder) for split, folder in folders.items()}
            return {split: _objects(load_folder(place, place)) for split, place in places.items()}
        lists = {split: root / f"ImageSets/Main/{name}.txt" for split, name in (("train", "train"), ("eval", "val"))}
        whole = load_folder(str(root / images), str(root / annotations))
        return {split: _objects(whole, file.read_text().split()) for split, file in lists.items()}

    return load


BESIDE = ("{}/images", "{}/labels", "data.yaml", ROBOFLOW)
FOLDERS: dict[str, Callable[[Path], Loaded]] = {
    "09-a-second-file": _coco,
    "01-root-category": _coco,
    "20-yolo-of-roboflow": _yolo(*BESIDE),
    "21-yolo-of-ultralytics": _yolo("images/{}", "labels/{}", "parts.yaml", {"train": "train", "eval": "val"}),
    "22-yolo-polygons": _yolo(*BESIDE),
    "26-yolo-of-another-machine": _yolo("data/{}/images", "data/{}/labels", "data.yaml", ROBOFLOW),
    "30-voc": _voc("JPEGImages", "Annotations", None),
    "31-voc-of-roboflow": _voc("", "", ROBOFLOW),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_of_people(shared_data: Path, name: str) -> None:
    root = shared_data / "folders" / name / "data"
    ours, expected = read_data_set(root)[0], FOLDERS[name](root)
    assert {split: len(images) for split, images in ours.items()} == {
        split: len(images) for split, images in expected.items()
    }
    for split, images in expected.items():
        for image, objects in images.items():
            there = ours[split][image]
            assert [kind for kind, _ in there] == [kind for kind, _ in objects]
            for (_, box), (_, wanted) in zip(there, objects, strict=True):
                # supervision takes VOC's corners for pixels counted from 1, and for edges.
                assert box == pytest.approx(wanted, abs=1.01 if "voc" in name else 1e-3)


def test_a_public_archive(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path))
    root = Path(unpacked(str(shared_data / "bccd_archive.zip")))
    folder = next(root.glob("*/BCCD"))
    ours = read_data_set(root)[0]
    expected = _voc("JPEGImages", "Annotations", None)(folder)
    assert {split: files.part for split, files in find_splits(root).items()} == {
        "train": "train",
        "eval": "eval",
        "test": "test",
    }
    for split, images in expected.items():
        assert ours[split].keys() == images.keys()
        kinds = [Counter(kind for objects in of.values() for kind, _ in objects) for of in (ours[split], images)]
        assert kinds[0] == kinds[1]
