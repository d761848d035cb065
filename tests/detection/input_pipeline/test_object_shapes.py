"""Masks and keypoints of records, ours and of other tools, against pycocotools."""

import io
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from pycocotools import mask
from pycocotools.coco import COCO

from detection.datasets.annotations.annotation_file import index_annotations
from detection.datasets.annotations.packed_entries import pack_entries
from detection.datasets.encode_record import Rules, make_record
from detection.datasets.importers import source_format
from detection.input_pipeline.object_shapes import draw_mask
from detection.input_pipeline.record_decoder import decode_record
from detection.input_pipeline.sample import Sample
from detection.storage.tfrecord import read_shard
from schemas import features
from schemas.config.issues import MAX_PIXELS, IssuePolicies
from schemas.errors import DataError, find_user_error
from tests.detection.input_pipeline.augmentation.coordinate_images import array
from tests.detection.synthetic import example

HEIGHT, WIDTH = 20, 30
BOXES = [[2, 3, 12, 9], [5, 10, 15, 28]]  # pixels, (ymin, xmin, ymax, xmax)


def _record(**values: Sequence[Any]) -> bytes:
    """A record of `BOXES`, both of category 7, with more features: names of keys in lower case."""
    record = tf.train.Example.FromString(example(np.zeros((HEIGHT, WIDTH, 3), np.uint8), BOXES, [7, 7]))
    for name, listed in values.items():
        feature = record.features.feature[getattr(features, name.upper(), None) or getattr(source_format, name.upper())]
        if isinstance(listed[0], bytes):
            feature.bytes_list.value.extend(listed)
        elif isinstance(listed[0], float):
            feature.float_list.value.extend(listed)
        else:
            feature.int64_list.value.extend(listed)
    return bytes(record.SerializeToString())


def _packed(*annotations: Mapping[str, Any]) -> bytes:
    common = {"image_id": 42, "category_id": 7, "bbox": [0, 0, 1, 1]}
    entries = [{"id": number, **common, **annotation} for number, annotation in enumerate(annotations)]
    return _record(coco=[pack_entries({"id": 42, "file_name": "a.png"}, entries)])


def _decode(record: bytes, *, num_keypoints: int = 2) -> Sample:
    return decode_record(tf.constant(record), category_ids=[7], with_masks=True, num_keypoints=num_keypoints)


def _refused(record: bytes, category_ids: Sequence[int] = (7,), **options: Any) -> str:
    """What a data set that decodes the record says to its user."""
    decoded = tf.data.Dataset.from_tensors(record).map(
        lambda serialized: decode_record(serialized, category_ids=category_ids, **({"with_masks": True} | options))
    )
    with pytest.raises(tf.errors.OpError) as caught:
        next(iter(decoded))
    error = find_user_error(caught.value)
    assert isinstance(error, DataError)
    return str(error)


def test_real_polygons_and_run_lengths_are_drawn_as_pycocotools_draws_them(shared_data: Path) -> None:
    """38 COCO images: polygons, crowds as uncompressed RLE, people with keypoints."""
    folder = shared_data / "coco2017_ccby"
    drawn = people = 0
    for split in ("train", "val"):
        coco = COCO(str(folder / f"instances_{split}.json"))
        person = json.loads((folder / f"person_keypoints_{split}.json").read_text())
        points = {entry["id"]: entry["keypoints"] for entry in person["annotations"]}
        file = index_annotations(folder / f"instances_{split}.json", folder / f"person_keypoints_{split}.json")
        names = {category["id"]: category["name"] for category in file.categories}
        rules = Rules(IssuePolicies({}), MAX_PIXELS, names, {1: 17})
        for image, entries in islice(file.entries(), 0, None, 3):
            path = folder / "images" / image["file_name"]
            record = make_record(image, entries, read=path.read_bytes, split=split, rules=rules)
            assert record.example is not None
            sample = decode_record(
                tf.constant(record.example.SerializeToString()),
                category_ids=sorted(names),
                with_masks=True,
                num_keypoints=17,
                with_crowds=True,
            )
            assert sample.masks is not None
            assert sample.keypoints is not None
            assert sample.crowds is not None
            assert sample.crowds.numpy().tolist() == [bool(entry["iscrowd"]) for entry in record.annotations]
            for entry, one, each in zip(record.annotations, sample.masks, sample.keypoints, strict=True):
                np.testing.assert_array_equal(one.numpy(), coco.annToMask(coco.anns[entry["id"]]))
                expected = np.reshape(points.get(entry["id"], [0] * 51), (17, 3))[:, [1, 0, 2]]
                got = each.numpy() * [image["height"], image["width"], 1]
                np.testing.assert_allclose(got, expected, atol=1e-4)
                drawn, people = drawn + 1, people + bool(expected.any())
    assert drawn > 50
    assert people > 5


def test_records_of_the_object_detection_api_give_their_masks_and_keypoints(shared_data: Path) -> None:
    """The same images as that tool wrote them: PNG masks, 17 keypoints for every object."""
    folder = shared_data / "coco2017_ccby"
    coco = COCO(str(folder / "instances_val.json"))
    people = COCO(str(folder / "person_keypoints_val.json"))
    ids = {category["name"]: category["id"] for category in coco.dataset["categories"]}
    checked = labelled = 0
    for shard in sorted((shared_data / "tfrecords" / "coco2017_ccby_odapi").glob("*.record-*")):
        for data in islice(read_shard(shard), 0, None, 4):
            record = tf.train.Example.FromString(data)
            feature = record.features.feature
            texts = [text.decode() for text in feature[features.CLASS_TEXT].bytes_list.value]
            feature[features.CLASS_LABEL].int64_list.value.extend(ids[text] for text in texts)
            sample = decode_record(
                tf.constant(record.SerializeToString()),
                category_ids=sorted(ids.values()),
                with_masks=True,
                num_keypoints=17,
                with_crowds=True,
            )
            image = int(feature[features.SOURCE_ID].bytes_list.value[0])
            size = np.array([coco.imgs[image]["height"], coco.imgs[image]["width"]])
            entries = coco.imgToAnns[image]
            assert sample.masks is not None
            assert sample.keypoints is not None
            assert len(sample.masks) == len(texts)
            for box, one, each in zip(sample.boxes_yxyx, sample.masks, sample.keypoints, strict=True):
                corner = np.array(box) * np.tile(size, 2)
                near = lambda entry, at=corner: np.abs(np.array(entry["bbox"])[[1, 0]] - at[:2]).max()  # noqa: E731
                entry = min(entries, key=near)
                np.testing.assert_array_equal(one.numpy(), coco.annToMask(entry))
                person = people.anns.get(entry["id"], {"keypoints": [0] * 51})
                expected = np.reshape(person["keypoints"], (17, 3))[:, [1, 0, 2]]
                np.testing.assert_allclose(each.numpy() * [*size, 1], expected, atol=0.01)
                checked, labelled = checked + 1, labelled + bool(expected.any())
    assert checked > 30
    assert labelled > 2


def test_every_form_of_segmentation() -> None:
    square = [10, 5, 20, 5, 20, 12, 10, 12]
    whole = np.zeros((HEIGHT, WIDTH), np.uint8)
    whole[5:12, 10:20] = 1
    packed = mask.encode(np.asfortranarray(whole))
    compressed = {"size": [HEIGHT, WIDTH], "counts": packed["counts"].decode()}
    runs = np.flatnonzero(np.diff(whole.ravel("F"), prepend=0, append=0))
    counts = np.diff([0, *runs, whole.size]).tolist()
    for segmentation in ([square], compressed, {"size": [HEIGHT, WIDTH], "counts": counts}):
        np.testing.assert_array_equal(draw_mask(segmentation, height=HEIGHT, width=WIDTH), whole)
    two = [[10, 5, 15, 5, 15, 12, 10, 12], [15, 5, 20, 5, 20, 12, 15, 12]]
    np.testing.assert_array_equal(draw_mask(two, height=HEIGHT, width=WIDTH), whole)
    # Two points are no polygon; pycocotools would take them for a box.
    np.testing.assert_array_equal(draw_mask([[1, 1, 5, 5], square], height=HEIGHT, width=WIDTH), whole)
    nothing: Any
    for nothing in (None, [], [[]], [[1, 1, 5, 5]]):
        assert not draw_mask(nothing, height=HEIGHT, width=WIDTH).any()


def test_masks_of_other_tools_as_png_as_pixels_and_as_polygons() -> None:
    expected = np.zeros((2, HEIGHT, WIDTH), np.uint8)
    for one, (top, left, bottom, right) in zip(expected, BOXES, strict=True):
        one[top:bottom, left:right] = 1
    encoded = []
    for one in expected:
        file = io.BytesIO()
        Image.fromarray(one).save(file, "PNG")
        encoded.append(file.getvalue())
    polygons = [3.0, 2, 9, 2, 9, 12, 3, 12, -2, 10, 5, 28, 5, 28, 15, 10, 15, -3, -3]
    for record in (
        _record(mask=encoded),
        _record(mask=expected.astype(float).ravel().tolist()),
        _record(polygon=polygons),
    ):
        np.testing.assert_array_equal(array(_decode(record).masks), expected)
    assert not np.asarray(_decode(_record()).masks).any()


def test_keypoints_ours_and_of_other_tools_y_first_and_zero_where_not_labelled() -> None:
    expected = [[[0.25, 0.5, 2], [0, 0, 0]], [[0.1, 0.9, 1], [0.5, 0.2, 2]]]
    ours = _packed({"keypoints": [15, 5, 2, 9, 9, 0]}, {"keypoints": [27, 2, 1, 6, 10, 2]})
    theirs = _record(
        keypoint_y=[0.25, 0.3, 0.1, 0.5], keypoint_x=[0.5, 0.7, 0.9, 0.2], keypoint_visibility=[2, 0, 1, 2]
    )
    for record in (ours, theirs):
        np.testing.assert_allclose(array(_decode(record).keypoints), np.array(expected), atol=1e-6)
    assert not np.asarray(_decode(_record()).keypoints).any()
    # A category of fewer points, in a data set whose categories have up to three.
    fewer = _decode(_packed({"keypoints": [15, 5, 2]}, {}), num_keypoints=3).keypoints
    np.testing.assert_allclose(array(fewer)[0], np.array([[0.25, 0.5, 2], [0, 0, 0], [0, 0, 0]]), atol=1e-6)
    assert not array(fewer)[1].any()


def test_crowds_are_left_out_or_marked_with_all_that_is_theirs() -> None:
    record = tf.train.Example.FromString(_packed({"segmentation": [[3, 2, 9, 2, 9, 12, 3, 12]]}, {}))
    record.features.feature[features.IS_CROWD].int64_list.value.extend([0, 1])
    serialized = tf.constant(record.SerializeToString())
    single = decode_record(serialized, category_ids=[7], with_masks=True, num_keypoints=1)
    assert [len(array(field)) for field in (single.boxes_yxyx, single.classes, single.masks, single.keypoints)] == [
        1
    ] * 4
    assert single.crowds is None
    both = decode_record(serialized, category_ids=[7], with_masks=True, with_crowds=True)
    assert np.asarray(both.crowds).tolist() == [False, True]
    assert [int(np.sum(one)) for one in np.asarray(both.masks)] == [60, 0]
    assert np.asarray(both.maskless).tolist() == [False, True]


def test_what_cannot_be_read_is_named() -> None:
    message = _refused(_packed({"segmentation": {"size": [3, 3], "counts": [9]}}, {}))
    assert "image 'without id': the mask of object 0 cannot be drawn on 30x20 pixels (its size is [3, 3])" in message
    assert "2 masks" not in message
    assert "1 annotations for 2 boxes" in _refused(_packed({}))
    assert "3 masks for 2 objects" in _refused(_record(mask=[b"a", b"b", b"c"]))
    assert "the mask cannot be decoded" in _refused(_record(mask=[b"a", b"b"]))
    unequal = _record(keypoint_x=[0.1, 0.2, 0.3], keypoint_y=[0.1, 0.2, 0.3])
    assert "keypoints cannot be assigned" in _refused(unequal, with_masks=False, num_keypoints=2)
    many = _packed({"keypoints": [1, 1, 2] * 3}, {})
    assert "object 0 has 3 keypoints, but categories have at most 2" in _refused(
        many, with_masks=False, num_keypoints=2
    )


def test_an_unknown_category_is_an_error_and_no_class_0() -> None:
    record = tf.train.Example.FromString(_record(source_id=[b"15"]))
    record.features.feature[features.CLASS_LABEL].int64_list.value[:] = [7, 9]
    message = _refused(record.SerializeToString(), category_ids=[3, 7], with_masks=False)
    assert message.startswith("the record of image '15': object 1 has the unknown category 9; the data set has 3, 7")
