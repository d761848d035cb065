"""Real records of the TF Object Detection API against the COCO files that they were made from."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask
from pycocotools.coco import COCO

from detection.datasets.importers.images import ImportedImage, read_images
from detection.datasets.importers.label_map import LabelMap, read_label_map
from detection.datasets.importers.merging import Survey, merge_surveys, survey_report
from detection.datasets.importers.survey import survey_shard
from detection.storage.tfrecord import find_shards


def read_all(where: Path, label_map: LabelMap | None = None) -> tuple[Survey, list[ImportedImage]]:
    shards = find_shards(where)
    survey = merge_surveys([survey_shard(shard) for shard in shards], label_map=label_map)
    return survey, [image for shard in shards for image in read_images(shard, survey)]


@pytest.fixture(scope="module")
def coco(shared_data: Path) -> tuple[Survey, list[ImportedImage]]:
    labels = read_label_map(shared_data / "coco2017_ccby/person_keypoints_val.json")
    everything = read_label_map(shared_data / "coco2017_ccby/instances_val.json")
    categories = {category["id"]: category for category in [*everything.categories, *labels.categories]}
    merged = LabelMap("both", [*categories.values()], everything.texts)
    return read_all(shared_data / "tfrecords/coco2017_ccby_odapi", merged)


def by_image(path: Path) -> tuple[dict[int, dict[str, Any]], dict[int, list[dict[str, Any]]]]:
    tree = json.loads(path.read_text())
    annotations: dict[int, list[dict[str, Any]]] = {image["id"]: [] for image in tree["images"]}
    for annotation in tree["annotations"]:
        annotations[annotation["image_id"]].append(annotation)
    return {image["id"]: image for image in tree["images"]}, annotations


def test_raccoon_boxes_and_bytes_are_equal(shared_data: Path) -> None:
    survey, images = read_all(shared_data / "tfrecords/raccoon")
    entries, annotations = by_image(shared_data / "raccoon/instances_val.json")
    by_name = {entry["file_name"]: entry for entry in entries.values()}
    assert {image.entry["file_name"] for image in images} == by_name.keys()
    assert survey.categories == [{"id": 1, "name": "raccoon"}]
    assert survey.image_ids == "number"
    assert [image.entry["id"] for image in images] == list(range(1, 41))
    assert [each["id"] for image in images for each in image.annotations] == list(range(1, 45))
    for image in images:
        original = by_name[image.entry["file_name"]]
        assert image.encoded == (shared_data / "raccoon/images" / original["file_name"]).read_bytes()
        assert [image.entry["height"], image.entry["width"]] == [original["height"], original["width"]]
        assert image.entry["source_id"] == original["file_name"]
        assert image.issues == []
        expected = [(each["bbox"], each["category_id"], 0) for each in annotations[original["id"]]]
        assert [(each["bbox"], each["category_id"], each["iscrowd"]) for each in image.annotations] == expected
        assert all(each["area"] == each["bbox"][2] * each["bbox"][3] for each in image.annotations)


def test_raccoon_report(shared_data: Path) -> None:
    survey, _ = read_all(shared_data / "tfrecords/raccoon")
    lines = survey_report(survey).splitlines()
    assert lines[0] == "source:     TF Object Detection API (od_api)"
    assert lines[1] == "records:    40 with 44 objects"
    assert lines[2] == "categories: 1, from the records' labels and texts"
    assert "1 to 40 in the order of the records" in lines[3]
    assert lines[4] == "formats:    40 jpeg"
    assert "image/format" in lines[5]
    assert lines[6:] == ["missing:    crowd flags (taken as 0), areas (taken from the boxes)"]


def test_coco_entries_are_equal(shared_data: Path, coco: tuple[Survey, list[ImportedImage]]) -> None:
    survey, images = coco
    entries, annotations = by_image(shared_data / "coco2017_ccby/instances_val.json")
    assert survey.image_ids == "source"
    assert {image.entry["id"] for image in images} == entries.keys()
    assert len(survey.categories) == 80
    for image in images:
        original = entries[image.entry["id"]]
        assert image.entry == {key: original[key] for key in ("id", "file_name", "height", "width")}
        assert image.encoded == (shared_data / "coco2017_ccby/images" / original["file_name"]).read_bytes()
        assert image.issues == []
        for annotation, expected in zip(image.annotations, annotations[original["id"]], strict=True):
            assert annotation["bbox"] == expected["bbox"]
            assert (annotation["category_id"], annotation["iscrowd"]) == (expected["category_id"], expected["iscrowd"])
            assert annotation["image_id"] == expected["image_id"]
            assert np.float32(annotation["area"]) == np.float32(expected["area"])


def test_coco_masks_are_those_of_the_polygons(shared_data: Path, coco: tuple[Survey, list[ImportedImage]]) -> None:
    ground_truth = COCO(str(shared_data / "coco2017_ccby/instances_val.json"))
    originals = by_image(shared_data / "coco2017_ccby/instances_val.json")[1]
    compared = 0
    for image in coco[1]:
        for annotation, expected in zip(image.annotations, originals[image.entry["id"]], strict=True):
            np.testing.assert_array_equal(mask.decode(annotation["segmentation"]), ground_truth.annToMask(expected))
            compared += 1
    assert compared == 263


def test_coco_keypoints_are_equal(shared_data: Path, coco: tuple[Survey, list[ImportedImage]]) -> None:
    tree = json.loads((shared_data / "coco2017_ccby/person_keypoints_val.json").read_text())
    points = {annotation["id"]: annotation for annotation in tree["annotations"]}
    originals = by_image(shared_data / "coco2017_ccby/instances_val.json")[1]
    survey, images = coco
    assert set(survey.keypoints) == {1}
    compared = 0
    for image in images:
        for imported, expected in zip(image.annotations, originals[image.entry["id"]], strict=True):
            assert ("keypoints" in imported) == (imported["category_id"] == 1)
            if expected["id"] in points:
                original = points[expected["id"]]
                assert imported["keypoints"] == original["keypoints"]
                assert imported["num_keypoints"] == original["num_keypoints"]
                compared += original["num_keypoints"] > 0
    assert compared == 19


def test_names_of_keypoints_come_from_the_records(shared_data: Path) -> None:
    survey, _ = read_all(shared_data / "tfrecords/coco2017_ccby_odapi")
    tree = json.loads((shared_data / "coco2017_ccby/person_keypoints_val.json").read_text())
    person = next(category for category in survey.categories if category["name"] == "person")
    assert person["keypoints"] == tree["categories"][0]["keypoints"]
    assert "numbered in sorted order" in survey_report(survey)
    assert "missing:    labels" in survey_report(survey)
