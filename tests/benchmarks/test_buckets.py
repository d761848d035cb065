"""Files divided by image."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import buckets
from benchmarks.buckets import write_buckets
from detection.coco.io import evaluation_files
from schemas.errors import DataError
from tests.detection.coco.generated_cases import generate


def files(folder: Path, truth: Any, detections: Any) -> tuple[Path, Path]:
    (folder / "gt.json").write_text(json.dumps(truth))
    (folder / "dt.json").write_text(json.dumps(detections))
    return folder / "gt.json", folder / "dt.json"


@pytest.mark.parametrize("iou_type", ["bbox", "segm", "keypoints"])
@pytest.mark.parametrize("kept", [3, 50_000])
def test_each_entry_is_with_its_image_in_its_order(
    tmp_path: Path, kept: int, iou_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_KEPT", kept)
    monkeypatch.setattr(evaluation_files, "_AT_ONCE", 1 << 12)
    truth, detections = generate(3)
    (tmp_path / "work").mkdir()
    made = write_buckets(*files(tmp_path, truth, detections), tmp_path / "work", iou_type=iou_type)
    assert (made.images, made.categories, made.rows) == (len(truth["images"]), truth["categories"], iou_type == "bbox")
    found = [made.read(number) for number in range(made.count)]
    assert sum(bool(bucket.images) for bucket in found) > 2
    for bucket in found:
        ids = {image["id"] for image in bucket.images}
        assert bucket.images == [image for image in truth["images"] if image["id"] in ids]
        assert bucket.annotations == [entry for entry in truth["annotations"] if entry["image_id"] in ids]
        its = [entry for entry in detections if entry["image_id"] in ids]
        if made.rows:
            rows = [[d["image_id"], *d["bbox"], d["score"], d["category_id"]] for d in its]
            assert np.asarray(bucket.detections).tolist() == rows
        else:
            wanted = ("image_id", "category_id", "bbox", "segmentation", "keypoints", "score")
            assert [{**entry, "bbox": list(entry["bbox"])} for entry in bucket.detections] == [
                {key: entry[key] for key in wanted} for entry in its
            ]


def test_boxes_of_another_type_are_read_as_they_are(tmp_path: Path) -> None:
    """What the quick reader does not take, however late it comes, is left for the checks to name."""
    truth, detections = generate(3)
    detections[-1]["score"] = "0.5"
    (tmp_path / "work").mkdir()
    made = write_buckets(*files(tmp_path, truth, detections), tmp_path / "work")
    assert not made.rows
    found = [entry for number in range(made.count) for entry in made.read(number).detections]
    assert sorted(found, key=detections.index) == detections


def test_neighbouring_ids_are_spread(tmp_path: Path) -> None:
    for step in (1, 8, 512, 2**20):
        truth = {"images": [{"id": step * number} for number in range(4096)], "annotations": [], "categories": []}
        folder = tmp_path / str(step)
        (folder / "work").mkdir(parents=True)
        made = write_buckets(*files(folder, truth, []), folder / "work")
        sizes = [len(made.read(number).images) for number in range(made.count)]
        assert len(sizes) == 8
        assert min(sizes) > 300


@pytest.mark.parametrize(
    ("change", "detections", "message"),
    [
        ({"annotations": {}}, [], r"gt.json: not a COCO annotation file: no list annotations\. Give the file"),
        ({"images": [{"id": 1}, {"id": 2}, {"id": 1}]}, [], r"gt.json: duplicate id: image 1\. Give"),
        ({"annotations": [{"id": 5, "image_id": 1}] * 2}, [], r"gt.json: duplicate id: annotation 5"),
        ({"annotations": [{"id": 5}]}, [], r"gt.json: missing image_id: annotation 5\. Each needs"),
        ({}, {"image_id": 1}, r"dt.json: not COCO results: expected a list of detections"),
        (
            {},
            [{"image_id": 1}] * 3 + [{"image_id": "1"}],
            r"dt.json: invalid image_id: detection 3 \(image '1'\)\. Each",
        ),
        ({}, [{"image_id": 1}, 7], r"dt.json: not an object: detection 1\. Each"),
    ],
)
def test_faults(
    tmp_path: Path, change: dict[str, Any], detections: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_KEPT", 2)
    (tmp_path / "work").mkdir()
    truth = {"images": [{"id": 1}, {"id": 2}], "annotations": [], "categories": []}
    with pytest.raises(DataError, match=message):
        write_buckets(*files(tmp_path, truth | change, detections), tmp_path / "work")


def test_files_that_are_none(tmp_path: Path) -> None:
    truth, detections = files(tmp_path, generate(3)[0], [])
    (tmp_path / "work").mkdir()
    with pytest.raises(DataError, match=r"none.json: cannot read the file"):
        write_buckets(truth, tmp_path / "none.json", tmp_path / "work")
    detections.write_text('[{"image_id": 15}, {"image_id')
    with pytest.raises(DataError, match=r"dt.json: not JSON: \[1\], line 1, column 21"):
        write_buckets(truth, detections, tmp_path / "work")
    detections.write_text("[] []")
    with pytest.raises(DataError, match="there is more after the end of the list"):
        write_buckets(truth, detections, tmp_path / "work")
    truth.write_text('{"images": [], "annotations": [{"id": 1, "image_id": 1}], "images": [], "categories": []}')
    with pytest.raises(DataError, match=r"gt.json: the key images is there twice\. Join"):
        write_buckets(truth, detections, tmp_path / "work")
