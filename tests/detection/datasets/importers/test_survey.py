"""The first pass, and what it decides for the second."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from detection.datasets.annotations.packed_entries import pack_entries
from detection.datasets.importers.label_map import LabelMap
from detection.datasets.importers.merging import merge_surveys, survey_report
from detection.datasets.importers.source_format import AUTOML, COCOFLOW, OD_API
from detection.datasets.importers.survey import ShardSurvey, survey_shard
from schemas.errors import DataError
from tests.detection.datasets.importers.builders import automl_record, encoded_image, example, write_shard

PACKED = pack_entries({"id": 1, "file_name": "a.png"}, [])


def test_a_survey_is_plain_json(tmp_path: Path) -> None:
    points: dict[str, Any] = {f"image/object/keypoint/{axis}": [0.5, 0.25] for axis in "xy"}
    path = write_shard(tmp_path / "s", [automl_record(5, image__format="gif", **points), automl_record("x", objects=0)])
    survey = survey_shard(path)
    assert ShardSurvey(**json.loads(json.dumps(dataclasses.asdict(survey)))) == survey
    assert (survey.path, survey.records, survey.objects) == (path, 2, 2)
    assert survey.classes == [(17, "cat"), (3, "dog")]
    assert survey.keypoints == [(17, "cat", (), 1), (3, "dog", (), 1)]
    assert survey.source_ids is None
    assert (survey.formats, survey.claimed) == ({"png": 2}, {"png, gif": 1})
    assert survey.keys["image/object/area"] == 1
    assert survey.keys["image/encoded"] == 2


def test_a_survey_from_json_decides_the_same(tmp_path: Path) -> None:
    points: dict[str, Any] = {f"image/object/keypoint/{axis}": [0.5, 0.25] for axis in "xy"}
    survey = survey_shard(write_shard(tmp_path / "s", [automl_record(5, **points)]))
    again = ShardSurvey(**json.loads(json.dumps(dataclasses.asdict(survey))))
    assert merge_surveys([again]) == merge_surveys([survey])


@pytest.mark.parametrize("claimed", ["jpg", "JPEG", "image.jpeg", ".jpg", ""])
def test_names_of_one_format_are_no_lies(tmp_path: Path, claimed: str) -> None:
    record = automl_record(image__encoded=encoded_image(40, 60, image_format="JPEG"), image__format=claimed)
    expected = {"jpeg, image.jpeg": 1} if claimed == "image.jpeg" else {}
    assert survey_shard(write_shard(tmp_path / "s", [record])).claimed == expected


@pytest.mark.parametrize(
    ("more", "source_format"),
    [
        ({}, AUTOML),
        ({"image__caption": "a cat", "image__object__is_crowd": None}, AUTOML),
        ({"image__object__polygon": [1.0, 2.0]}, AUTOML),
        ({"image__object__is_crowd": None}, OD_API),
        ({"image__object__class__label": None}, OD_API),
        ({"image__object__keypoint__x": [0.5, 0.5], "image__object__keypoint__y": [0.5, 0.5]}, OD_API),
        ({"coco__annotations": PACKED}, COCOFLOW),
    ],
)
def test_source_formats(tmp_path: Path, more: dict[str, Any], source_format: str) -> None:
    survey = merge_surveys([survey_shard(write_shard(tmp_path / "s", [automl_record(**more)]))])
    assert survey.source_format == source_format
    assert survey_report(survey).splitlines()[0].endswith(f"({source_format})")


def test_the_report_tells_what_is_amiss(tmp_path: Path) -> None:
    records = [
        automl_record(1, image__object__difficult=[0, 1]),
        automl_record(2, image__format="jpeg", image__height=41, image__class__label=[3]),
        automl_record(3, image__encoded=b"?", image__object__bbox__xmin=[0.5]),
        automl_record(4, image__object__keypoint__x=[0.5] * 3, image__object__keypoint__y=[0.5] * 3),
    ]
    path = write_shard(tmp_path / "coco.record-00001-of-00004", records)
    lines = survey_report(merge_surveys([survey_shard(path)])).splitlines()
    assert "formats:    3 png, 1 unreadable; of these 1 png called jpeg" in lines
    assert "image ids:  those of image/source_id" in lines
    assert "kept too:   image/class/label, image/object/difficult" in lines
    issues = [line.removeprefix("issue:      ") for line in lines if line.startswith("issue:")]
    assert issues == [
        f"different sizes in the record and in the image's header: 1, first {path}, record 1",
        "image/encoded: not a readable image (no known format). Copy the file again or convert it again.: "
        f"1, first {path}, record 2",
        f"different numbers of box corners: 1, first {path}, record 2",
        f"keypoints that cannot be assigned to the objects: 1, first {path}, record 3",
        f"missing shards: 3, first {tmp_path}/coco.record-00000",
    ]


def test_a_label_map_gives_the_categories(tmp_path: Path) -> None:
    labels = LabelMap("map", [{"id": 17, "name": "cat"}, {"id": 3, "name": "dog"}], {17: {"cat"}, 3: {"dog"}})
    survey = merge_surveys([survey_shard(write_shard(tmp_path / "s", [automl_record()]))], label_map=labels)
    assert survey.categories == labels.categories
    assert "categories: 2, from map" in survey_report(survey)


def test_issues_of_several_shards_add_up(tmp_path: Path) -> None:
    shards = [write_shard(tmp_path / name, [automl_record(image__height=1)]) for name in "ab"]
    survey = merge_surveys([survey_shard(shard) for shard in shards])
    assert list(survey.issues.values()) == [(2, f"{shards[0]}, record 0")]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "s: no records in 1 files"),
        ([example({"image/source_id": 3})], "no images in 1 records: .*encoded is missing; keys are image/source_id"),
        ([automl_record(), automl_record(coco__annotations=PACKED)], "s: records of other tools beside Cocoflow's"),
    ],
)
def test_sets_that_cannot_be_read(tmp_path: Path, records: list[bytes], message: str) -> None:
    survey = survey_shard(write_shard(tmp_path / "s", records))
    with pytest.raises(DataError, match=message):
        merge_surveys([survey])


def test_labels_that_contradict_each_other_name_both_files(tmp_path: Path) -> None:
    first = survey_shard(write_shard(tmp_path / "a", [automl_record()]))
    second = survey_shard(write_shard(tmp_path / "b", [automl_record(image__object__class__text=["cow", "dog"])]))
    with pytest.raises(DataError, match=rf"label 17 is 'cat' in {first.path} but 'cow' in {second.path}"):
        merge_surveys([first, second])
