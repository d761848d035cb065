"""Masks and keypoints under the Object Detection API's keys, read as its decoder does, and by our own importer."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image
from pycocotools import mask

from detection.datasets.encode_record import Rules, make_record
from detection.datasets.importers.images import read_images
from detection.datasets.importers.label_map import read_label_map
from detection.datasets.importers.merging import merge_surveys
from detection.datasets.importers.survey import survey_shard
from detection.images.files import read_file
from schemas.config.issues import MAX_PIXELS, IssuePolicies
from tests.detection.datasets.importers.builders import write_shard

HEIGHT, WIDTH = 40, 80
NAMES = {5: "cat", 9: "dog"}
KEYPOINTS = {5: ["nose"], 9: ["ear", "tail"]}
MAP = """item { id: 5 name: 'cat' keypoints { id: 0 label: 'nose' } }
item { id: 9 name: 'dog' keypoints { id: 1 label: 'ear' } keypoints { id: 2 label: 'tail' } }"""
POLYGON = [[10.0, 5.0, 30.0, 5.0, 30.0, 25.0, 10.0, 25.0]]
ANNOTATIONS: list[dict[str, Any]] = [
    {"id": 1, "category_id": 9, "bbox": [10, 5, 20, 20], "keypoints": [12, 6, 2, 20, 10, 1], "segmentation": POLYGON},
    {"id": 2, "category_id": 5, "bbox": [40, 5, 20, 20], "keypoints": [50, 20, 2]},
    {"id": 3, "category_id": 9, "bbox": [0, 0, 8, 8], "keypoints": [1, 1, 0, 4, 4, 2]},
]
for _annotation in ANNOTATIONS:
    _annotation |= {"image_id": 7, "iscrowd": 0, "area": 400.0}


def _example(folder: Path, keypoints: dict[int, list[str]] | None) -> tf.train.Example:
    Image.new("RGB", (WIDTH, HEIGHT)).save(folder / "a.png")
    rules = Rules(
        policies=IssuePolicies({}),
        max_pixels=MAX_PIXELS,
        category_names=NAMES,
        keypoints={identity: len(names) for identity, names in KEYPOINTS.items()},
        od_api_keypoints=keypoints,
    )
    image = {"id": 7, "file_name": "a.png", "width": WIDTH, "height": HEIGHT}
    read = partial(read_file, str(folder), "a.png", max_pixels=MAX_PIXELS)
    example = make_record(image, ANNOTATIONS, read=read, split="train", rules=rules).example
    assert example is not None
    return example


def test_the_decoder_of_the_api_finds_masks_and_keypoints(tmp_path: Path) -> None:
    """As `tf_example_decoder.py` parses them: PNGs of one channel, and three keypoints for each object."""
    ragged = {"mask": tf.string, "keypoint/x": tf.float32, "keypoint/y": tf.float32, "keypoint/visibility": tf.int64}
    spec = {f"image/object/{key}": tf.io.VarLenFeature(kind) for key, kind in ragged.items()}
    parsed = tf.io.parse_single_example(_example(tmp_path, KEYPOINTS).SerializeToString(), spec)
    values = {key.removeprefix("image/object/"): tf.sparse.to_dense(value).numpy() for key, value in parsed.items()}
    masks = [tf.io.decode_png(png, channels=1)[..., 0].numpy() > 0 for png in values["mask"]]
    expected = mask.decode(mask.merge(mask.frPyObjects(POLYGON, HEIGHT, WIDTH))).astype(bool)
    np.testing.assert_array_equal(masks, [expected, np.zeros_like(expected), np.zeros_like(expected)])
    x, y, visibility = (values[f"keypoint/{key}"].reshape(-1, 3) for key in ("x", "y", "visibility"))
    np.testing.assert_allclose(x * WIDTH, [[0, 12, 20], [50, 0, 0], [0, 0, 4]], rtol=1e-6)
    np.testing.assert_allclose(y * HEIGHT, [[0, 6, 10], [20, 0, 0], [0, 0, 4]], rtol=1e-6)
    np.testing.assert_array_equal(visibility, [[0, 2, 1], [2, 0, 0], [0, 0, 2]])


def test_without_our_own_key_they_are_read_as_another_program_s(tmp_path: Path) -> None:
    example = _example(tmp_path, KEYPOINTS)
    del example.features.feature["coco/annotations"]
    shard = write_shard(tmp_path / "od.record", [example.SerializeToString()])
    (tmp_path / "map.pbtxt").write_text(MAP)
    survey = merge_surveys([survey_shard(shard)], label_map=read_label_map(tmp_path / "map.pbtxt"))
    [image] = read_images(shard, survey)
    assert image.issues == []
    assert [one["keypoints"] for one in image.annotations] == [[12, 6, 2, 20, 10, 1], [50, 20, 2], [0, 0, 0, 4, 4, 2]]
    rle = image.annotations[0]["segmentation"]
    expected = mask.decode(mask.merge(mask.frPyObjects(POLYGON, HEIGHT, WIDTH)))
    np.testing.assert_array_equal(mask.decode(rle), expected)


def test_by_default_there_are_none(tmp_path: Path) -> None:
    keys = _example(tmp_path, None).features.feature.keys()
    assert not [key for key in keys if "mask" in key or "keypoint" in key]
