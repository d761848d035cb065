import hashlib
import math
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from detection.datasets.annotations import packed_entries as packing
from detection.datasets.annotations.annotation_file import index_annotations
from detection.datasets.annotations.packed_entries import unpack_entries
from detection.datasets.encode_record import Record, Rules, encode_example, make_record
from detection.images.decode import decode_rgb
from detection.images.files import read_file
from detection.images.inspect import ImageFile
from detection.input_pipeline.record_decoder import decode_record
from schemas.config.issues import MAX_PIXELS, IssuePolicies

NAMES = {5: "cät", 9: "dog"}
FILE = ImageFile(b"bytes", "png", 40, 80, "RGB", 1, "")


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
        _annotation(1, [8, 10, 16, 20], category_id=5, area=33.5, iscrowd=1) | {"image_id": 900100204805},
        _annotation(2, [0.0, 0.0, 80.0, 40.0]) | {"image_id": 900100204805},
    ]
    lists = _lists(encode_example(FILE, image, annotations, category_names=NAMES))
    assert unpack_entries(lists.pop("coco/annotations")[0]) == (image, annotations)
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
    assert {key: lists.pop(key) for key in exact} == exact
    assert lists == {
        "image/object/bbox/xmin": pytest.approx([0.1, 0.0]),
        "image/object/bbox/xmax": pytest.approx([0.3, 1.0]),
        "image/object/bbox/ymin": pytest.approx([0.25, 0.0]),
        "image/object/bbox/ymax": pytest.approx([0.75, 1.0]),
    }


@pytest.mark.parametrize(
    ("weights", "stored"),
    [([0.5, None], [0.5, 1.0]), ([None, 0], [1.0, 0.0]), ([2, "heavy"], []), ([-1.0, 1.0], []), ([None, True], [])],
)
def test_weights_are_those_of_the_annotations_if_all_are_valid(weights: list[Any], stored: list[float]) -> None:
    annotations = [
        _annotation(number, [0, 0, 8, 8], **({} if weight is None else {"weight": weight}))
        for number, weight in enumerate(weights)
    ]
    example = encode_example(FILE, {"id": 7, "file_name": "a.png"}, annotations, category_names=NAMES)
    assert _lists(example).get("image/object/weight", []) == stored
    assert ("image/object/weight" in example.features.feature) == bool(stored)


def test_equal_input_gives_equal_bytes_and_no_objects_are_empty_lists() -> None:
    image = {"id": 1, "file_name": "a.png"}
    first, second = (encode_example(FILE, image, [], category_names=NAMES) for _ in range(2))
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)
    lists = _lists(first)
    assert len(lists) == 16
    assert [key for key, value in lists.items() if not value] == [key for key in lists if "object" in key]


def test_boxes_a_little_outside_are_clipped_in_the_features_only() -> None:
    annotation = _annotation(1, [-0.5, -1.0, 81.5, 42.0])
    lists = _lists(encode_example(FILE, {"id": 7, "file_name": "a"}, [annotation], category_names=NAMES))
    corners = [lists[f"image/object/bbox/{side}"] for side in ("xmin", "ymin", "xmax", "ymax")]
    assert corners == [[0.0], [0.0], [1.0], [1.0]]
    assert unpack_entries(lists["coco/annotations"][0])[1] == [annotation]


def _make(folder: Path, image: dict[str, Any], annotations: list[dict[str, Any]], **policies: str) -> Record:
    rules = Rules(
        policies=IssuePolicies({"default": "fail", **policies}),
        max_pixels=MAX_PIXELS,
        category_names=NAMES,
        keypoints={9: 2},
    )
    read = partial(read_file, str(folder), image["file_name"], max_pixels=MAX_PIXELS)
    return make_record(image, annotations, read=read, split="train", rules=rules)


IMAGE = {"id": 7, "file_name": "a.png", "width": 80, "height": 40}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Image.new("RGB", (80, 40)).save(tmp_path / "a.png")
    return tmp_path


def test_invalid_annotations_are_left_out_and_told(folder: Path) -> None:
    annotations = [_annotation(1, [0, 0, 0, 5]), _annotation(2, [1, 2, 3, 4]), _annotation(3, [50, 0, 50, 5])]
    record = _make(folder, IMAGE, annotations, box_empty="drop")
    assert record.example is not None
    assert unpack_entries(_lists(record.example)["coco/annotations"][0]) == (IMAGE, annotations[1:2])
    assert _lists(record.example)["image/object/class/label"] == [9]
    assert record.annotations == annotations[1:2]
    assert [issue.as_dict() for issue in record.issues] == [
        {
            "kind": "box_empty",
            "policy": "drop",
            "where": "train: a.png",
            "image_id": 7,
            "annotation_id": 1,
            "message": "bbox [0, 0, 0, 5] has no area. Correct the box or remove the annotation.",
        },
        {
            "kind": "box_outside",
            "policy": "fail",
            "where": "train: a.png",
            "image_id": 7,
            "annotation_id": 3,
            "message": "bbox [50, 0, 50, 5] (x, y, width, height) is outside the 80x40 image. "
            "Correct the box, or remove the annotation.",
        },
    ]
    assert str(record.issues[0]).startswith("train: a.png (image 7, annotation 1): bbox [0, 0, 0, 5] has no area.")


def test_an_invalid_image_gives_no_record(tmp_path: Path) -> None:
    record = _make(tmp_path, {"id": 7, "file_name": "absent.png"}, [_annotation(1, [0, 0, 0, 5])])
    assert (record.example, record.file, record.annotations) == (None, None, [])
    assert [(issue.kind, issue.annotation_id) for issue in record.issues] == [("image_missing", None)]
    assert str(record.issues[0]).startswith("train: absent.png (image 7): cannot read the image file: No such file")


def test_another_size_is_refused_or_taken_from_the_file(folder: Path) -> None:
    resized = IMAGE | {"width": 40, "height": 80}
    boxes = [_annotation(1, [60, 0, 20, 40])]
    [issue] = _make(folder, resized, boxes).issues
    assert (issue.kind, issue.message) == (
        "image_size",
        "declared as 40x80 pixels, the file has 80x40. Correct the entry or the file.",
    )
    fixed = _make(folder, resized, boxes, image_size="fix")
    assert fixed.example is not None
    assert unpack_entries(_lists(fixed.example)["coco/annotations"][0]) == (IMAGE, boxes)
    assert [issue.policy for issue in fixed.issues] == ["fix"]
    # Boxes of the declared size that do not fit the file's: another picture, perhaps.
    tall = _make(folder, resized, [_annotation(1, [0, 0, 20, 60])], image_size="fix")
    assert (tall.example, [issue.policy for issue in tall.issues]) == (None, ["drop"])


def test_the_declared_size_decides_which_pixels_a_turned_image_means(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 80, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "b.png", exif=exif)
    stored = {"id": 7, "file_name": "b.png", "width": 80, "height": 40}
    shown = stored | {"width": 40, "height": 80}
    for meant in (stored, {"id": 7, "file_name": "b.png"}):
        kept = _make(tmp_path, meant, [])
        assert kept.issues == []
        assert kept.file is not None
        assert kept.file.data == (tmp_path / "b.png").read_bytes()
    [issue] = _make(tmp_path, shown, []).issues
    assert issue.kind == "image_turned"
    assert "the rotation in its EXIF tag" in issue.message
    fixed = _make(tmp_path, shown, [_annotation(1, [0, 60, 40, 20])], image_turned="fix")
    assert fixed.example is not None
    lists = _lists(fixed.example)
    np.testing.assert_array_equal(decode_rgb(tf.constant(lists["image/encoded"][0])), np.rot90(pixels, -1))
    assert (lists["image/width"], lists["image/height"]) == ([40], [80])
    assert lists["image/object/bbox/ymax"] == [1.0]


def test_what_pillow_alone_reads_is_stored_as_png(tmp_path: Path) -> None:
    Image.new("RGB", (80, 40), (1, 2, 3)).save(tmp_path / "a.tiff")
    image = IMAGE | {"file_name": "a.tiff"}
    assert [issue.kind for issue in _make(tmp_path, image, []).issues] == ["image_unsupported"]
    record = _make(tmp_path, image, [], image_unsupported="fix")
    assert record.example is not None
    assert _lists(record.example)["image/format"] == [b"png"]
    assert (decode_rgb(tf.constant(_lists(record.example)["image/encoded"][0])).numpy() == (1, 2, 3)).all()


def test_a_declared_bomb_is_not_even_opened(tmp_path: Path) -> None:
    record = _make(tmp_path, {"id": 7, "file_name": "absent.png", "width": 10**6, "height": 10**6}, [])
    assert [issue.kind for issue in record.issues] == ["image_huge"]


@pytest.mark.parametrize("place", ["image", "annotation"])
def test_nan_anywhere_is_an_issue(folder: Path, place: str) -> None:
    odd = {"score": math.nan}
    annotations = [_annotation(1, [0, 0, 5, 5]), _annotation(2, [0, 0, 6, 6], **(odd if place == "annotation" else {}))]
    record = _make(folder, IMAGE | (odd if place == "image" else {}), annotations)
    assert [(issue.kind, issue.annotation_id) for issue in record.issues] == [
        ("entry", 2 if place == "annotation" else None)
    ]
    assert [entry["id"] for entry in record.annotations] == ([1] if place == "annotation" else [])


@pytest.mark.parametrize("area", [None, "12"])
def test_an_unusable_area_is_that_of_the_box(area: Any) -> None:
    example = encode_example(
        FILE, {"id": 7, "file_name": "a"}, [_annotation(1, [0, 0, 2, 3], area=area)], category_names=NAMES
    )
    assert _lists(example)["image/object/area"] == [6.0]


def test_real_records_decode_to_the_entries(shared_data: Path) -> None:
    folder = shared_data / "coco2017_ccby"
    file = index_annotations(folder / "instances_train.json")
    names = {category["id"]: category["name"] for category in file.categories}
    rules = Rules(policies=IssuePolicies({}), max_pixels=MAX_PIXELS, category_names=names, keypoints={})
    for image, annotations in islice(file.entries(), 4):
        path = folder / "images" / image["file_name"]
        record = make_record(image, annotations, read=path.read_bytes, split="train", rules=rules)
        assert record.example is not None
        assert record.issues == []
        sample = decode_record(record.example.SerializeToString(), category_ids=sorted(names))
        height, width = image["height"], image["width"]
        assert sample.image.shape == (height, width, 3)
        expected = [
            [box[1] / height, box[0] / width, (box[1] + box[3]) / height, (box[0] + box[2]) / width]
            for box in (entry["bbox"] for entry in annotations if not entry["iscrowd"])
        ]
        np.testing.assert_allclose(sample.boxes_yxyx, np.reshape(expected, (-1, 4)), atol=1e-6)
        assert _lists(record.example)["image/encoded"] == [path.read_bytes()]


def test_an_image_whose_annotations_fill_no_record_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_IMAGE_ENTRIES", 200)
    annotation = _annotation(1, [0, 0, 5, 5], segmentation=[[0, 0, 5, 0, 5, 5, 0, 5]] * 20)
    Image.new("RGB", (80, 40)).save(tmp_path / "a.png")
    record = _make(tmp_path, IMAGE, [annotation])
    assert record.example is None
    [issue] = record.issues
    assert (issue.kind, issue.annotation_id) == ("entry", None)
    assert "bytes of JSON, more than 200. Simplify their polygons" in issue.message
