"""Records with every liberty that tools take, back to COCO entries."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocotools import mask

from detection.datasets.annotations.packed_entries import pack_entries
from detection.datasets.importers import images as images_module
from detection.datasets.importers import source_format
from detection.datasets.importers.images import ImportedImage, read_images, read_own_images
from detection.datasets.importers.label_map import read_label_map
from detection.datasets.importers.merging import Survey, merge_surveys, survey_report
from detection.datasets.importers.source_format import (
    KEYPOINT_NUM,
    KEYPOINT_TEXT,
    KEYPOINT_VISIBILITY,
    KEYPOINT_X,
    KEYPOINT_Y,
    MASK,
    POLYGON,
)
from detection.datasets.importers.survey import survey_shard
from detection.datasets.issues import Issue
from schemas import features
from schemas.errors import DataError
from tests.detection.datasets.importers.builders import (
    automl_record,
    boxes,
    encoded_image,
    example,
    mask_png,
    write_shard,
)

CORNERS = [f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax")]


def survey_of(*shards: str) -> Survey:
    return merge_surveys([survey_shard(shard) for shard in shards])


def read(tmp_path: Path, *records: bytes) -> list[ImportedImage]:
    shard = write_shard(tmp_path / "one.record", records)
    return list(read_images(shard, survey_of(shard)))


def read_one(tmp_path: Path, **more: Any) -> ImportedImage:
    return read(tmp_path, automl_record(**more))[0]


def test_a_record_as_coco_has_it(tmp_path: Path) -> None:
    image = read_one(tmp_path, source_id=7)
    assert image.entry == {"id": 7, "file_name": "picture_0.png", "height": 40, "width": 60}
    assert image.annotations == [
        {"id": 1, "image_id": 7, "category_id": 17, "bbox": [3.25, 4.5, 10, 20.75], "area": 100.5, "iscrowd": 0},
        {"id": 2, "image_id": 7, "category_id": 3, "bbox": [30, 2, 25.5, 7.25], "area": 33.25, "iscrowd": 1},
    ]
    assert image.encoded == encoded_image(40, 60)
    assert (image.format, image.issues) == ("png", [])
    assert image.where.endswith("one.record, record 0")


@pytest.mark.parametrize(
    ("source_ids", "expected"),
    [
        ([900, 20], [(900, None), (20, None)]),
        (["900", "020"], [(900, None), (20, "020")]),
        (["900", ""], [(1, "900"), (2, None)]),
        ([None, None], [(1, None), (2, None)]),
        (["9", "9"], [(1, "9"), (2, "9")]),
        (["a1b2", "33"], [(1, "a1b2"), (2, "33")]),
        (["-3", "33"], [(1, "-3"), (2, "33")]),
        ([str(2**63), "33"], [(1, str(2**63)), (2, "33")]),
        ([str(2**53 + 1), "33"], [(1, str(2**53 + 1)), (2, "33")]),
        ([str(2**53), "33"], [(2**53, None), (33, None)]),
        (["\u0663", "33"], [(1, "\u0663"), (2, "33")]),
    ],
)
def test_image_ids(tmp_path: Path, source_ids: list[Any], expected: list[tuple[int, str | None]]) -> None:
    images = read(tmp_path, *(automl_record(source_id, seed=seed) for seed, source_id in enumerate(source_ids)))
    assert [(image.entry["id"], image.entry.get("source_id")) for image in images] == expected
    assert all(each["image_id"] == image.entry["id"] for image in images for each in image.annotations)


def test_shards_are_numbered_on_empty_ones_included(tmp_path: Path) -> None:
    first = write_shard(tmp_path / "0", [automl_record("a"), automl_record("b", objects=1)], compression="GZIP")
    empty = write_shard(tmp_path / "1", [])
    last = write_shard(tmp_path / "2", [automl_record("c", objects=0), automl_record("d")])
    survey = survey_of(first, empty, last)
    assert list(read_images(empty, survey)) == []
    images = [*read_images(first, survey), *read_images(last, survey)]
    assert [image.entry["id"] for image in images] == [1, 2, 3, 4]
    assert [[each["id"] for each in image.annotations] for image in images] == [[1, 2], [3], [], [4, 5]]


def test_a_lying_format_is_seen(tmp_path: Path) -> None:
    image = read_one(tmp_path, image__format="jpeg", image__filename="picture")
    assert image.format == "png"
    assert image.entry["file_name"] == "picture.png"


@pytest.mark.parametrize(
    ("file_name", "source_id", "expected"),
    [("a/b.JPG", 7, "a/b.JPG"), ("", 7, "7.png"), (None, "x.y", "x.y.png"), ("v1.2", 7, "v1.2.png")],
)
def test_file_names(tmp_path: Path, file_name: str | None, source_id: Any, expected: str) -> None:
    assert read_one(tmp_path, image__filename=file_name, source_id=source_id).entry["file_name"] == expected


def test_an_absent_size_is_the_header_s(tmp_path: Path) -> None:
    image = read_one(tmp_path, image__height=None, image__width=None)
    assert (image.entry["height"], image.entry["width"], image.issues) == (40, 60, [])


def test_another_size_is_the_header_s_and_told(tmp_path: Path) -> None:
    image = read_one(tmp_path, image__height=400, image__width=600)
    assert (image.entry["height"], image.entry["width"]) == (40, 60)
    assert image.annotations[0]["bbox"] == [3.25, 4.5, 10, 20.75]
    message = "the record declares 600x400 pixels, the image's header 60x40; using the header"
    assert image.issues == [Issue("image_size", "drop", image.where, image.entry["id"], None, message, "image")]


def test_the_size_after_an_exif_rotation_stays_as_declared(tmp_path: Path) -> None:
    turned = encoded_image(40, 60, image_format="JPEG", orientation=6)
    rows = [[1.5, 50.25, 30.0, 5.5]]
    image = read_one(
        tmp_path,
        objects=1,
        image__encoded=turned,
        image__height=60,
        image__width=40,
        **boxes(rows, height=60, width=40),
    )
    assert (image.entry["height"], image.entry["width"], image.issues) == (60, 40, [])
    assert image.annotations[0]["bbox"] == rows[0]
    untagged = read_one(tmp_path, image__height=60, image__width=40)
    assert (untagged.entry["height"], untagged.entry["width"]) == (40, 60)


def test_an_image_without_a_header_keeps_the_record_s_size(tmp_path: Path) -> None:
    whole = automl_record(1)
    broken = automl_record(2, image__encoded=b"no image at all")
    absent = automl_record(3, image__encoded=None, image__height=None)
    images = read(tmp_path, whole, broken, absent)
    assert [image.format for image in images] == ["png", "", ""]
    assert images[1].issues[0].kind == "image_broken"
    assert "no known format" in images[1].issues[0].message
    assert images[1].annotations[0]["bbox"] == [3.25, 4.5, 10, 20.75]
    assert (images[2].encoded, images[2].annotations) == (b"", [])


def test_an_image_beyond_pillow_s_limit_is_told(tmp_path: Path) -> None:
    header = bytearray(encoded_image(1, 1, image_format="BMP"))
    header[18:26] = (60_000).to_bytes(4, "little") * 2
    image = read_one(tmp_path, image__encoded=bytes(header))
    assert [issue.kind for issue in image.issues] == ["image_huge"]


def test_what_is_absent_is_filled_in_validly(tmp_path: Path) -> None:
    keys = ("is_crowd", "area", "class/label")
    image = read_one(tmp_path, **{f"image/object/{key}": None for key in keys})
    assert [(each["category_id"], each["iscrowd"], each["area"]) for each in image.annotations] == [
        (1, 0, 207.5),
        (2, 0, 25.5 * 7.25),
    ]


def test_unequal_corners_leave_the_image_without_objects(tmp_path: Path) -> None:
    image = read_one(tmp_path, image__object__bbox__xmax=[0.5])
    assert image.annotations == []
    message = "different numbers of box corners (2, 2, 1, 2); its objects are dropped"
    assert image.issues == [Issue("entry", "drop", image.where, image.entry["id"], None, message, "image")]


def test_a_box_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    image = read_one(tmp_path, image__object__bbox__xmax=[float("nan"), 0.5])
    assert [each["id"] for each in image.annotations] == [2]
    assert [(issue.kind, issue.annotation_id) for issue in image.issues] == [("entry", 1)]
    assert "is not finite or far outside" in image.issues[0].message


def masks(height: int = 40, width: int = 60) -> np.ndarray:
    inside = np.zeros([2, height, width], bool)
    inside[0, 4:25, 3:13] = True
    inside[1, 2:9, 30:50] = True
    return inside


def decoded(image: ImportedImage) -> np.ndarray:
    return np.stack([mask.decode(each["segmentation"]) for each in image.annotations])


@pytest.mark.parametrize("inside_value", [1, 255])
def test_png_masks(tmp_path: Path, inside_value: int) -> None:
    image = read_one(tmp_path, image__object__mask=[mask_png(each * np.uint8(inside_value)) for each in masks()])
    np.testing.assert_array_equal(decoded(image), masks())
    assert isinstance(image.annotations[0]["segmentation"]["counts"], str)
    assert image.annotations[0]["segmentation"]["size"] == [40, 60]


def test_colour_masks(tmp_path: Path) -> None:
    coloured = [mask_png(each[..., None] * np.array([0, 0, 9], np.uint8)) for each in masks()]
    np.testing.assert_array_equal(decoded(read_one(tmp_path, image__object__mask=coloured)), masks())


def test_masks_of_numbers(tmp_path: Path) -> None:
    values = masks().astype(float).ravel().tolist()
    np.testing.assert_array_equal(decoded(read_one(tmp_path, image__object__mask=values)), masks())


@pytest.mark.parametrize(
    ("stored", "message", "whose"),
    [
        ([mask_png(masks()[0]), b"\x89PNG broken"], "the mask cannot be decoded", 2),
        ([mask_png(masks()[0]), mask_png(masks(41, 60)[0])], "the mask has 60x41 pixels, the image 60x40", 2),
        ([mask_png(masks()[0])], "1 masks for 2 objects", None),
        ([0.0] * 4799, "1 masks for 2 objects", None),
        ([0.0] * 10, "5 values for 60x40 pixels", 1),
    ],
)
def test_broken_masks_are_left_out_and_told(tmp_path: Path, stored: list[Any], message: str, whose: int | None) -> None:
    image = read_one(tmp_path, image__object__mask=stored)
    assert len(image.annotations) == 2
    first = image.issues[0]
    assert (first.kind, first.annotation_id) == ("mask_broken", whose)
    assert message in first.message
    assert [each["id"] for each in image.annotations if "segmentation" in each] == ([1] if whose == 2 else [])


@pytest.mark.parametrize("end", [[], [-3.0, -3.0], [-2.0, -3.0]])
def test_flat_polygons(tmp_path: Path, end: list[float]) -> None:
    first, second = [1.1, 2.2, 8.3, 2.2, 8.3, 9.0], [20.0, 2.5, 28.0, 2.5, 28.0, 9.0]
    third = [30.25, 2.0, 40.0, 2.0, 40.0, 9.0]
    flat = [*first, -1.0, *second, -2.0, *third, *end]
    image = read_one(tmp_path, image__object__polygon=flat)
    assert [each["segmentation"] for each in image.annotations] == [[first, second], [third]]


def test_an_object_without_polygon_has_no_mask(tmp_path: Path) -> None:
    image = read_one(tmp_path, image__object__polygon=[1.0, 2.0, 8.0, 2.0, 8.0, 9.0, -2.0])
    assert ["segmentation" in each for each in image.annotations] == [True, False]
    assert image.issues == []


def keypoints(**more: Any) -> dict[str, Any]:
    """Three points of the first object, the second one hidden, the third not labelled; none of the second's."""
    points: dict[str, Any] = {
        "x": [3.5 / 60, 7 / 60, 9 / 60, 0.0, 0.0, 0.0],
        "y": [4.25 / 40, 8 / 40, 9 / 40, 0.0, 0.0, 0.0],
        "visibility": [2, 1, 0, 0, 0, 0],
        "num": [2, 0],
        "text": ["nose", "tail", "ear"] * 2,
    }
    return {f"image/object/keypoint/{key}": value for key, value in (points | more).items()}


FIRST = [3.5, 4.25, 2, 7, 8, 1, 0, 0, 0]


def test_keypoints_only_where_the_category_has_them(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "k", [automl_record(**keypoints())])
    survey = survey_of(shard)
    image = next(read_images(shard, survey))
    assert image.annotations[0]["keypoints"] == FIRST
    assert image.annotations[0]["num_keypoints"] == 2
    assert "keypoints" not in image.annotations[1]
    dog, cat = survey.categories
    assert cat == {"id": 17, "name": "cat", "keypoints": ["nose", "tail", "ear"], "skeleton": []}
    assert dog == {"id": 3, "name": "dog"}


def test_keypoints_without_visibility_and_names(tmp_path: Path) -> None:
    given = keypoints(visibility=None, text=None, num=None, x=[3.5 / 60, 7 / 60, float("nan"), 0.0, 0.0, 0.0])
    shard = write_shard(tmp_path / "k", [automl_record(**given)])
    survey = survey_of(shard)
    image = next(read_images(shard, survey))
    assert image.annotations[0]["keypoints"] == [3.5, 4.25, 2, 7, 8, 2, 0, 0, 0]
    assert survey.categories[1]["keypoints"] == ["point_1", "point_2", "point_3"]


def test_keypoints_are_placed_by_their_names(tmp_path: Path) -> None:
    other = keypoints(text=["ear", "nose", "left ear"] * 2)
    unnamed = keypoints(text=None)
    shard = write_shard(
        tmp_path / "k", [automl_record(1, **keypoints()), automl_record(2, **other), automl_record(3, **unnamed)]
    )
    survey = survey_of(shard)
    images = list(read_images(shard, survey))
    assert survey.categories[1]["keypoints"] == ["nose", "tail", "ear", "left ear"]
    assert [image.annotations[0].get("keypoints") for image in images] == [
        [*FIRST[:6], 0, 0, 0, 0, 0, 0],
        [7, 8, 1, 0, 0, 0, 3.5, 4.25, 2, 0, 0, 0],
        None,
    ]
    assert [[(issue.kind, issue.annotation_id) for issue in image.issues] for image in images] == [
        [],
        [],
        [("keypoints_broken", 5)],
    ]


def _with_map(tmp_path: Path, label_map: str, **given: Any) -> ImportedImage:
    (tmp_path / "map.pbtxt").write_text(label_map)
    shard = write_shard(tmp_path / "k", [automl_record(**keypoints(**given))])
    survey = merge_surveys([survey_shard(shard)], label_map=read_label_map(tmp_path / "map.pbtxt"))
    return next(read_images(shard, survey))


def test_objects_of_a_class_that_the_label_map_lacks_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "map.pbtxt").write_text("item { id: 4 name: 'dog' }")
    shard = write_shard(tmp_path / "one.record", [automl_record()])
    survey = merge_surveys([survey_shard(shard)], label_map=read_label_map(tmp_path / "map.pbtxt"))
    [image] = read_images(shard, survey)
    assert [(one["category_id"], one["bbox"][0]) for one in image.annotations] == [(4, 30.0)]
    assert "left out:   objects of cat, which it lacks" in survey_report(survey)


CAT_MAP = """item { id: 3 name: 'dog' keypoints { id: 1 label: 'tail' } keypoints { id: 3 label: 'paw' } }
item { id: 17 name: 'cat' keypoints { id: 2 label: 'ear' } keypoints { id: 0 label: 'nose' } }"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # By name: tail is the dog's, and of no use to a cat, as in the TF Object Detection API.
        ({"text": ["ear", "nose", "tail"] * 2}, [3.5, 4.25, 2, 7, 8, 1]),
        ({"text": ["nose", "tail", "ear"] * 2}, [0, 0, 0, 3.5, 4.25, 2]),
        # Without names, one for each id of all categories, of which 0 and 2 are the cat's.
        (
            {"text": None, "x": [0.05, 0.1, 0.15, 0.2] * 2, "y": [0.1] * 8, "visibility": [2] * 8, "num": [4, 4]},
            [9, 4, 2, 3, 4, 2],
        ),
        # Without names, one for each id of the category.
        (
            {"text": None, "x": [0.05, 0.1] * 2, "y": [0.1] * 4, "visibility": [2] * 4, "num": [2, 2]},
            [6, 4, 2, 3, 4, 2],
        ),
    ],
)
def test_keypoints_of_a_label_map(tmp_path: Path, given: dict[str, Any], expected: list[Any]) -> None:
    image = _with_map(tmp_path, CAT_MAP, **given)
    assert image.annotations[0]["keypoints"] == expected
    assert image.issues == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"text": ["wing", "beak", "tail"] * 2}, "keypoints wing, beak: the category has ear, nose"),
        ({"text": ["nose", "nose", "ear"] * 2}, "keypoint nose twice in one object"),
        ({"text": None}, "3 keypoints without names for the 2 of the category"),
    ],
)
def test_keypoints_that_do_not_fit_the_label_map_are_told(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    image = _with_map(tmp_path, CAT_MAP, **given)
    assert "keypoints" not in image.annotations[0]
    first = image.issues[0]
    assert (first.kind, first.annotation_id) == ("keypoints_broken", 1)
    assert message in first.message


def test_objects_of_unequally_many_points(tmp_path: Path) -> None:
    given = keypoints(
        x=[3.5 / 60, 7 / 60, 30 / 60], y=[4.25 / 40, 8 / 40, 5 / 40], visibility=[2, 1, 2], num=[2, 1], text=None
    )
    image = read_one(tmp_path, **given)
    assert [each["keypoints"] for each in image.annotations] == [[3.5, 4.25, 2, 7, 8, 1], [30, 5, 2]]


@pytest.mark.parametrize("invalid", [{"x": [0.1] * 5}, {"visibility": [2] * 5}, {"x": [0.1] * 5, "y": [0.1] * 5}])
def test_keypoints_that_cannot_be_divided_among_objects(tmp_path: Path, invalid: dict[str, Any]) -> None:
    image = read_one(tmp_path, **keypoints(**invalid))
    assert [issue.kind for issue in image.issues] == ["keypoints_broken"]
    assert all("keypoints" not in each for each in image.annotations)


def test_what_coco_has_no_place_for_is_kept(tmp_path: Path) -> None:
    image = read_one(
        tmp_path,
        image__caption=["a cat", "and a dog"],
        image__license="CC BY",
        image__class__label=[4],
        image__depth=1.5,
        image__binary=b"\xff\x00",
        image__key__sha256="0" * 64,
        image__object__difficult=[1, 0],
        image__object__group_of=[0, 1],
        image__object__view=["front", "left"],
        image__object__weight=[0.1, float("nan")],
        image__object__attribute__label=[1, 2, 3, 4],
        image__object__odd=[1, 2, 3],
    )
    extras = {key: value for key, value in image.entry.items() if key not in ("id", "file_name", "height", "width")}
    assert extras == {
        "caption": ["a cat", "and a dog"],
        "image_license": "CC BY",
        "image_class_label": 4,
        "depth": 1.5,
        "odd": [1, 2, 3],
    }
    first, second = image.annotations
    assert (first["difficult"], first["group_of"], first["view"], first["weight"]) == (1, 0, "front", 0.1)
    assert (second["difficult"], second["group_of"], second["view"]) == (0, 1, "left")
    assert "weight" not in second
    assert first["image_object_attribute_label"] == [1, 2]


def test_bytes_that_are_no_text_do_not_stop_the_reading(tmp_path: Path) -> None:
    image = read_one(tmp_path, image__filename=b"caf\xe9.png", image__object__class__text=[b"\xff", "dog"])
    assert image.entry["file_name"] == "caf\\xe9.png"


ENTRY = {"id": 9, "file_name": "x.png", "width": 60, "height": 40, "extra": [0.1, None]}
ANNOTATION = {"bbox": [0.1 + 0.2, 1, 2.0, 1e-7], "id": 2**40, "category_id": 3, "image_id": 9}


def own_record(**more: Any) -> bytes:
    return automl_record(9, coco__annotations=pack_entries(ENTRY, [ANNOTATION]), **more)


def test_our_own_records_come_back_as_they_were_packed(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "own", [own_record()])
    for images in (list(read_images(shard, survey_of(shard))), list(read_own_images(shard, {17, 3}))):
        assert [(image.entry, image.annotations) for image in images] == [(ENTRY, [ANNOTATION])]
        assert list(images[0].annotations[0]) == list(ANNOTATION)
        assert (images[0].encoded, images[0].format) == (encoded_image(40, 60), "png")


def test_our_own_records_without_entries_are_told(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "own", [own_record(), automl_record()])
    with pytest.raises(DataError, match=r"own, record 1: coco/annotations: 0 bytes"):
        list(read_own_images(shard, {17, 3}))


def test_what_is_no_example_is_told(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "other", [example({"image/encoded": b""}), b"\xff\xff\xff"])
    with pytest.raises(DataError, match=r"other, record 1: not a tf.train.Example"):
        survey_shard(shard)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("image/height", "40", "whole numbers"),
        ("image/object/class/label", [17.5, 3.0], "whole numbers"),
        ("image/object/is_crowd", [float("nan"), 0.0], "whole numbers"),
        ("image/object/bbox/xmin", ["0", "1"], "numbers"),
        ("image/encoded", 3, "bytes"),
    ],
)
def test_an_invalid_type_is_told_with_its_key(tmp_path: Path, key: str, value: Any, expected: str) -> None:
    shard = write_shard(tmp_path / "s", [automl_record(**{key: value})])
    with pytest.raises(DataError, match=rf"s, record 0: the values of {key} are not {expected}"):
        survey_shard(shard)


def test_whole_numbers_may_be_floats_and_floats_whole(tmp_path: Path) -> None:
    image = read_one(tmp_path, image__height=40.0, image__object__class__label=[17.0, 3.0], image__object__area=[5, 6])
    assert [(each["category_id"], each["area"]) for each in image.annotations] == [(17, 5.0), (3, 6.0)]


def test_a_shard_that_changed_between_the_passes_is_told(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s", [automl_record()])
    survey = survey_of(shard)
    write_shard(Path(shard), [automl_record(image__object__class__label=[18, 3])])
    with pytest.raises(DataError, match=r"s, record 0: an object of class \(18, 'cat'\) was not in the first pass"):
        list(read_images(shard, survey))


FLOATS = st.lists(st.one_of(st.floats(0, 1, width=32), st.floats(width=32)), max_size=4)
WHOLE = st.lists(st.one_of(st.integers(-2, 3), st.integers(-(2**63), 2**63 - 1)), max_size=4)
PICTURES = st.lists(st.sampled_from([mask_png(masks()[0]), encoded_image(40, 60), b"", b"\x89PNG"]), max_size=2)
TEXTS = st.lists(st.binary(max_size=6), max_size=4)
# Mostly of the type that a key has, else little but refusals would be seen.
VALUES = (
    dict.fromkeys((*CORNERS, features.AREA, POLYGON, KEYPOINT_X, KEYPOINT_Y), FLOATS)
    | dict.fromkeys((features.HEIGHT, features.WIDTH, features.CLASS_LABEL, features.IS_CROWD), WHOLE)
    | dict.fromkeys((KEYPOINT_VISIBILITY, KEYPOINT_NUM), WHOLE)
    | dict.fromkeys((features.FORMAT, features.FILENAME, features.CLASS_TEXT, KEYPOINT_TEXT), TEXTS)
    | dict.fromkeys((features.ENCODED, MASK), PICTURES)
    | {key: st.one_of(FLOATS, WHOLE, TEXTS) for key in (features.SOURCE_ID, "image/object/odd", "other")}
)


@given(st.lists(st.fixed_dictionaries({}, optional=VALUES), max_size=3))
def test_whatever_records_hold_they_are_read_or_refused_as_data(
    tmp_path_factory: pytest.TempPathFactory, changes: list[dict[str, Any]]
) -> None:
    shard = write_shard(tmp_path_factory.mktemp("odd") / "s", [automl_record(**change) for change in changes])
    try:
        images = list(read_images(shard, survey_of(shard)))
    except DataError:
        return
    assert len(images) == len(changes)
    for image in images:
        json.dumps([image.entry, image.annotations], allow_nan=False)


def test_the_classes_of_a_record_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once an object, a record of 8,000 objects took minutes."""
    objects = 50
    rows = [[float(number), 2.0, 5.5, 7.25] for number in range(objects)]
    corners: dict[str, Any] = {key.replace("/", "__"): value for key, value in boxes(rows, height=40, width=60).items()}
    record = automl_record(
        **corners,
        image__object__class__label=[17, 3] * (objects // 2),
        image__object__class__text=["cat", "dog"] * (objects // 2),
        image__object__area=[1.0] * objects,
        image__object__is_crowd=[0] * objects,
    )
    read_classes = images_module.object_classes
    calls: list[int] = []

    def counted(record: Any) -> Any:
        calls.append(1)
        return read_classes(record)

    monkeypatch.setattr(images_module, "object_classes", counted)
    [image] = read(tmp_path, record)
    assert [each["category_id"] for each in image.annotations] == [17, 3] * (objects // 2)
    assert len(calls) == 1


def test_a_key_of_too_many_numbers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_format, "MAX_NUMBERS", 10)
    with pytest.raises(DataError, match=r"record 0: image/weights has 11 values, more than 10"):
        read(tmp_path, automl_record(image__weights=[1] * 11))
    assert len(read(tmp_path, automl_record(image__weights=[1] * 10))) == 1


def test_crafted_entries_of_our_own_records_are_told_with_their_place(tmp_path: Path) -> None:
    packed = zlib.compress(json.dumps({"image": {"id": 1, "file_name": "a", "width": "9"}, "annotations": []}).encode())
    shard = write_shard(tmp_path / "own.record", [automl_record(coco__annotations=packed)])
    with pytest.raises(DataError, match=r'own\.record, record 0: coco/annotations: .*image: invalid width: "9"'):
        list(read_own_images(shard, {17, 3}))


def test_our_own_records_of_another_category_are_told(tmp_path: Path) -> None:
    annotation = {"id": 8, "image_id": 1, "category_id": 5, "bbox": [1, 1, 2, 2]}
    packed = pack_entries({"id": 1, "file_name": "a"}, [annotation])
    shard = write_shard(tmp_path / "own.record", [automl_record(coco__annotations=packed)])
    with pytest.raises(DataError, match=r"record 0: annotation 8 has the category 5, not in the data set"):
        list(read_images(shard, survey_of(shard)))
    [image] = read_own_images(shard, {5})
    assert image.annotations == [annotation]
