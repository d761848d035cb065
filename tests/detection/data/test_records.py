import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from detection.coco.annotations import read_annotations
from detection.coco.packing import unpack_entries
from detection.data.image_files import ImageFile, read_image
from detection.data.record_decoder import decode_record
from detection.data.records import box_fault, encode_example, make_record

NAMES = {5: "cät", 9: "dog"}
FILE = ImageFile(b"bytes", "png", 40, 80, False)


def _annotation(number: int, bbox: list[float], **more: Any) -> dict[str, Any]:
    return {"id": number, "image_id": 7, "category_id": 9, "bbox": bbox, **more}


def _lists(example: tf.train.Example) -> dict[str, list[Any]]:
    return {
        key: list(getattr(feature, feature.WhichOneof("kind")).value)
        for key, feature in example.features.feature.items()
    }


def test_every_key_by_its_name_and_by_hand() -> None:
    image = {"id": 900100204805, "file_name": "a/ö.png"}
    annotations = [
        _annotation(1, [8, 10, 16, 20], category_id=5, area=33.5, iscrowd=1),
        _annotation(2, [0.0, 0.0, 80.0, 40.0]),
    ]
    found = _lists(encode_example(FILE, image, annotations, category_names=NAMES))
    assert unpack_entries(found.pop("coco/annotations")[0]) == (image, annotations)
    exact = {
        "image/encoded": [b"bytes"],
        "image/format": [b"png"],
        "image/filename": ["a/ö.png".encode()],
        "image/source_id": [b"900100204805"],
        "image/key/sha256": [hashlib.sha256(b"bytes").hexdigest().encode()],
        "image/height": [40],
        "image/width": [80],
        "image/object/class/label": [5, 9],
        "image/object/class/text": ["cät".encode(), b"dog"],
        "image/object/is_crowd": [1, 0],
        "image/object/area": [33.5, 3200.0],
    }
    assert {key: found.pop(key) for key in exact} == exact
    assert found == {
        "image/object/bbox/xmin": pytest.approx([0.1, 0.0]),
        "image/object/bbox/xmax": pytest.approx([0.3, 1.0]),
        "image/object/bbox/ymin": pytest.approx([0.25, 0.0]),
        "image/object/bbox/ymax": pytest.approx([0.75, 1.0]),
    }


def test_equal_input_gives_equal_bytes_and_no_objects_are_empty_lists() -> None:
    image = {"id": 1, "file_name": "a.png"}
    first, second = (encode_example(FILE, image, [], category_names=NAMES) for _ in range(2))
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)
    found = _lists(first)
    assert len(found) == 16
    assert [key for key, value in found.items() if not value] == [key for key in found if "object" in key]


def test_boxes_a_little_outside_are_clipped_in_the_features_only() -> None:
    annotation = _annotation(1, [-0.5, -1.0, 81.5, 42.0])
    found = _lists(encode_example(FILE, {"id": 1, "file_name": "a"}, [annotation], category_names=NAMES))
    corners = [found[f"image/object/bbox/{side}"] for side in ("xmin", "ymin", "xmax", "ymax")]
    assert corners == [[0.0], [0.0], [1.0], [1.0]]
    assert unpack_entries(found["coco/annotations"][0])[1] == [annotation]


@pytest.mark.parametrize(
    ("bbox", "kind"),
    [
        ([0, 0, 80, 40], None),
        ([-1, -1, 82, 42], None),
        ([79.5, 39.5, 1.5, 1.5], None),
        ([-1.01, 0, 5, 5], "box-outside"),
        ([0, -1.01, 5, 5], "box-outside"),
        ([70, 0, 11.01, 5], "box-outside"),
        ([0, 30, 5, 11.01], "box-outside"),
        ([30, 60, 5, 5], "box-outside"),  # inside, were height and width swapped
        ([-0.9, 0, 0.9, 5], "box-outside"),
        ([80.0, 0, 0.5, 5], "box-outside"),
        ([0, -0.5, 5, 0.5], "box-outside"),
        ([0, 40.0, 5, 0.5], "box-outside"),
        ([0, 0, 0, 5], "box-size"),
        ([0, 0, 5, 0.0], "box-size"),
        ([5, 5, -2, 5], "box-size"),
        ([math.nan, 0, 5, 5], "box-size"),
        ([0, 0, math.inf, 5], "box-size"),
    ],
)
def test_boxes(bbox: list[float], kind: str | None) -> None:
    found = box_fault(bbox, height=40, width=80)
    assert (found[0] if found else None) == kind


def _make(folder: Path, image: dict[str, Any], annotations: list[dict[str, Any]]) -> Any:
    return make_record(image, annotations, images=folder, split="train", category_names=NAMES)


def test_faulty_annotations_are_left_out_and_told(tmp_path: Path) -> None:
    Image.new("RGB", (80, 40)).save(tmp_path / "a.png")
    image = {"id": 7, "file_name": "a.png", "width": 80, "height": 40}
    annotations = [_annotation(1, [0, 0, 0, 5]), _annotation(2, [1, 2, 3, 4]), _annotation(3, [50, 0, 50, 5])]
    example, faults = _make(tmp_path, image, annotations)
    assert unpack_entries(_lists(example)["coco/annotations"][0]) == (image, annotations[1:2])
    assert _lists(example)["image/object/class/label"] == [9]
    assert [fault.as_dict() for fault in faults] == [
        {
            "kind": "box-size",
            "split": "train",
            "file_name": "a.png",
            "image_id": 7,
            "annotation_id": 1,
            "message": "bbox [0, 0, 0, 5] has no area. Correct the box or remove the annotation.",
        },
        {
            "kind": "box-outside",
            "split": "train",
            "file_name": "a.png",
            "image_id": 7,
            "annotation_id": 3,
            "message": "bbox [50, 0, 50, 5] (x, y, width, height) lies outside the 80x40 image. "
            "Correct the box, or remove the annotation.",
        },
    ]
    assert str(faults[0]).startswith("train: a.png (image 7, annotation 1): bbox [0, 0, 0, 5] has no area.")


def test_a_faulty_image_gives_no_record(tmp_path: Path) -> None:
    example, faults = _make(tmp_path, {"id": 7, "file_name": "absent.png"}, [_annotation(1, [0, 0, 0, 5])])
    assert example is None
    assert [(fault.kind, fault.annotation_id) for fault in faults] == [("missing", None)]
    assert str(faults[0]).startswith("train: absent.png (image 7): cannot read the image file: No such file")


def test_a_declared_size_must_be_the_files(tmp_path: Path) -> None:
    Image.new("RGB", (80, 40)).save(tmp_path / "a.png")
    _, [fault] = _make(tmp_path, {"id": 7, "file_name": "a.png", "width": 40, "height": 80}, [])
    assert (fault.kind, fault.message) == (
        "size",
        "declared as 40x80 pixels, the file has 80x40. Correct the entry, or put the right file there.",
    )
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (80, 40)).save(tmp_path / "b.jpg", exif=exif)
    _, [fault] = _make(tmp_path, {"id": 7, "file_name": "b.jpg", "width": 40, "height": 80}, [])
    assert "An EXIF tag turns the picture" in fault.message
    assert _make(tmp_path, {"id": 7, "file_name": "b.jpg"}, [])[1] == []


@pytest.mark.parametrize("area", [None, "12", math.nan])
def test_an_unusable_area_is_that_of_the_box(area: Any) -> None:
    example = encode_example(
        FILE, {"id": 1, "file_name": "a"}, [_annotation(1, [0, 0, 2, 3], area=area)], category_names=NAMES
    )
    assert _lists(example)["image/object/area"] == [6.0]


def test_real_records_decode_to_the_entries(shared_data: Path) -> None:
    folder = shared_data / "coco2017_ccby"
    read = read_annotations(folder / "instances_train.json")
    names = {category["id"]: category["name"] for category in read.categories}
    for image in read.images[:4]:
        entries = read.annotations[image["id"]]
        example, faults = make_record(image, entries, images=folder / "images", split="train", category_names=names)
        assert example is not None
        assert faults == []
        sample = decode_record(example.SerializeToString(), category_ids=sorted(names))
        height, width = image["height"], image["width"]
        assert sample.image.shape == (height, width, 3)
        expected = [
            [box[1] / height, box[0] / width, (box[1] + box[3]) / height, (box[0] + box[2]) / width]
            for box in (entry["bbox"] for entry in entries if not entry["iscrowd"])
        ]
        np.testing.assert_allclose(sample.boxes_yxyx, np.reshape(expected, (-1, 4)), atol=1e-6)
        assert (
            example.features.feature["image/encoded"].bytes_list.value[0]
            == read_image(folder / "images" / image["file_name"]).data
        )
