"""What the data mean for a model, against NumPy on the boxes themselves."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detection.datasets.statistics import SplitSummary
from detection.input_pipeline.evaluation_records import parse_record
from detection.input_pipeline.record_reader import RecordReader
from detection.training.auto.data_facts import data_facts, log_data_facts, require_trainable
from detection.training.auto.kept_images import divide
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.errors import DataError
from tests.detection.training.evaluation_records import CATEGORIES as CATEGORIES_OF_RECORDS
from tests.detection.training.evaluation_records import write_coco_shards

CATEGORIES = [{"id": 4, "name": "cat"}, {"id": 2, "name": "dog"}]
ABOUT = 1.1  # the bins of sizes and aspects are up to 9 % off their middles


def _config(*assignments: str) -> Config:
    return load_config(None, ["model.name=efficientdet-lite0", *assignments])


def _summary(images: list[tuple[int, int, list[Any]]]) -> SplitSummary:
    """Counts images of (width, height, annotations)."""
    summary = SplitSummary()
    for width, height, annotations in images:
        summary.add(annotations, width=width, height=height, image_format="jpeg", color_mode="RGB")
    return summary


def _objects(*sizes: tuple[float, float], **fields: Any) -> list[dict[str, Any]]:
    return [{"category_id": 4, "bbox": [0, 0, *size], **fields} for size in sizes]


def _texts(images: list[tuple[int, int, list[Any]]], *assignments: str) -> list[str]:
    return [str(fact) for fact in data_facts({"train": _summary(images)}, CATEGORIES, _config(*assignments))]


def _random_images() -> list[tuple[int, int, list[Any]]]:
    random = np.random.default_rng(0)
    sides = random.integers(300, 1200, (60, 2)).tolist()
    return [(w, h, _objects(*np.exp(random.uniform(1, 4, (20, 2))).tolist())) for w, h in sides]


def _scales(width: int, height: int, mode: str) -> tuple[float, float]:
    """Scale (x, y) into 320 x 256 pixels (width x height), as `ResizeConfig` describes the modes."""
    if mode == "stretch":
        return 320 / width, 256 / height
    scale = min(320 / width, 256 / height)
    if mode == "short_side":
        scale = min(scale, 200 / min(width, height), 250 / max(width, height))
    return scale, scale


@pytest.mark.parametrize("mode", ["fit", "stretch", "short_side"])
def test_small_objects_are_counted_in_pixels_of_the_input(mode: str) -> None:
    images = _random_images()
    sizes = []
    for width, height, annotations in images:
        x, y = _scales(width, height, mode)
        sizes += [np.sqrt(box["bbox"][2] * x * box["bbox"][3] * y) for box in annotations]
    sides = ("model.resize.short_side=200", "model.resize.long_side=250") if mode == "short_side" else ()
    texts = _texts(images, f"model.resize.mode={mode}", *sides, "model.image_size=[256,320]")
    (line,) = [text for text in texts if "smaller" in text]
    counted = int(line.partition("input: ")[2].partition(" of ")[0].replace(",", ""))
    assert "of the 320 x 256 input" in line
    assert np.sum(np.array(sizes) < 8 / ABOUT) <= counted <= np.sum(np.array(sizes) < 8 * ABOUT)
    assert 100 < counted < 1100


@pytest.mark.parametrize(
    ("side", "advice"),
    [
        # 6 % of the objects are 10 x 10 of 1024 pixels: 5 pixels at 512, 7.5 at 768, 10 at 1024.
        (10.0, "--set model.image_size=1024"),
        (3.0, "Even 4 times the input is too small"),
        (20.0, None),
    ],
)
def test_the_suggested_input_is_the_smallest_that_suffices(side: float, advice: str | None) -> None:
    images = [(1024, 700, _objects(*[(100, 100)] * 94, *[(side, side)] * 6))]
    (line,) = [text for text in _texts(images, "model.image_size=512") if "smaller" in text]
    assert f"input: {0 if advice is None else 6} of 100" in line
    assert (advice or "input: 0 of 100") in line
    assert ("--set" in line) == (advice is not None and "--set" in advice)


def test_crowded_images_are_counted_without_crowds() -> None:
    images = [
        (100, 100, _objects(*[(50, 50)] * 7)),
        (100, 100, _objects(*[(50, 50)] * 5) + _objects((90, 90), iscrowd=1)),
        (100, 100, _objects((50, 50))),
    ]
    limits = ("model.max_instances=5", "model.postprocess.max_detections=6")
    assert [text for text in _texts(images, *limits) if "images have more" in text] == [
        "1 of 3 images have more than 5 objects, the value of model.max_instances. Training drops the rest: "
        "--set model.max_instances=7",
        "1 of 3 images have more than 6 objects, the value of model.postprocess.max_detections. The detector cannot "
        "return them all: --set model.postprocess.max_detections=7",
    ]
    assert not [text for text in _texts(images) if "images have more" in text]


def test_objects_without_mask_are_counted_for_a_detector_of_masks_and_crowds_are_no_objects() -> None:
    masked = _objects((20, 20), (30, 30), segmentation=[[1, 1, 9, 1, 9, 9]])
    bare = [one | {"category_id": 2} for one in _objects((40, 40))]
    crowd = _objects((50, 50), iscrowd=1)
    images = [(400, 400, [*masked, *bare, *crowd])]
    said = "1 of 3 objects in train have no mask; only their boxes are learned; no object of dog has one"
    assert any(text.startswith(said) for text in _texts(images, "model.name=mask-rcnn-nano"))
    assert not any("mask" in text for text in _texts(images))
    boxes = ("model.name=mask-rcnn-nano", "model.overrides.include_mask=false")
    texts = _texts(images, *boxes)
    assert not any("mask" in text for text in texts)
    assert texts[:2] == ["train: 1 images, 3 objects", "objects of 2 categories in train: cat (2), dog (1)"]


def test_a_detector_of_masks_or_keypoints_needs_some() -> None:
    mask = {"segmentation": [[1, 1, 9, 1, 9, 9]]}
    named = [CATEGORIES[0] | {"keypoints": ["nose"]}, CATEGORIES[1]]

    def required(model: str, objects: list[Any], categories: Any = CATEGORIES) -> None:
        statistics = _summary([(400, 400, objects)]).as_dict()
        dataset = {"categories": categories, "splits": {"train": {"statistics": statistics}}}
        require_trainable([dataset], _config(f"model.name={model}"))

    bare, masked, crowd = _objects((20, 20)), _objects((30, 30), **mask), _objects((50, 50), iscrowd=1, **mask)
    required("mask-rcnn-nano", [*bare, *masked, *crowd])
    with pytest.raises(DataError, match=r"learns masks, and train has none .*model\.overrides\.include_mask=false"):
        required("mask-rcnn-nano", [*bare, *crowd])
    required("faster-rcnn-nano", [*bare, *crowd])
    required("centernet-nano-kpts", bare, named)
    with pytest.raises(DataError, match="learns keypoints, and no category names any"):
        required("centernet-nano-kpts", bare)


def test_many_categories_take_one_line_and_rare_ones_are_named() -> None:
    categories = [{"id": number, "name": f"kind {number}"} for number in range(1, 31)]
    boxes = [{"category_id": number, "bbox": [0, 0, 50, 50]} for number in range(1, 31) for _ in range(number)]
    facts = data_facts({"train": _summary([(100, 100, boxes)])}, categories, _config())
    assert str(facts[1]) == (
        "objects of 30 categories in train: kind 30 (30), kind 29 (29), kind 28 (28), kind 27 (27), kind 26 (26), ..., "
        "kind 2 (2), kind 1 (1)"
    )
    assert str(facts[2]).startswith(
        "9 categories with fewer than 10 objects in train: kind 1 (1), kind 2 (2), kind 3 (3), kind 4 (4), kind 5 (5) "
        "and 4 more. Expect"
    )


@pytest.mark.parametrize(("images", "without", "told"), [(49, 9, True), (50, 0, False), (0, 60, False)])
def test_few_images_with_objects_are_warned_of(images: int, without: int, told: bool) -> None:
    summary = _summary([*[(100, 100, _objects((50, 50)))] * images, *[(100, 100, [])] * without])
    facts = data_facts({"train": summary}, CATEGORIES, _config())
    found = [fact for fact in facts if "AP may stay below 0.05" in fact.advice]
    assert [fact.text for fact in found] == ([f"training images with objects: {images}"] if told else [])


def test_facts_to_act_on_are_warnings_and_spans_add_up(caplog: pytest.LogCaptureFixture) -> None:
    image = (100, 100, _objects(*[(50, 50)] * 10))
    dataset = {
        "categories": CATEGORIES[:1],
        "splits": {"train": {"statistics": _summary([image, image]).as_dict()}, "eval": {"statistics": {}}},
    }
    with caplog.at_level("INFO", "cocoflow.trainer"):
        log_data_facts([dataset, dataset], _config("model.max_instances=9"))
    assert [(record.levelname, record.message.partition(".")[0]) for record in caplog.records] == [
        ("INFO", "train: 4 images, 40 objects; eval: 0 images, 0 objects"),
        ("INFO", "objects of 1 category in train: cat (40)"),
        ("WARNING", "training images with objects: 4"),
        ("INFO", "objects smaller than 8 x 8 pixels of the 320 x 320 input: 0 of 40"),
        ("WARNING", "4 of 4 images have more than 9 objects, the value of model"),
    ]


def test_images_that_are_kept_for_validation_do_not_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shards, tree = write_coco_shards(tmp_path, 40)
    parts = divide(RecordReader(shards), 0.3)
    assert parts.validation is not None
    ids = [
        {parse_record(part.read(number)).image.image_id for number in range(len(part))}
        for part in (parts.training, parts.validation)
    ]
    both, training, kept = (
        _summary(
            [
                (64, 64, [one for one in tree["annotations"] if one["image_id"] == entry["id"]])
                for entry in tree["images"]
                if entry["id"] in chosen
            ]
        )
        for chosen in (ids[0] | ids[1], *ids)
    )
    dataset = {"categories": CATEGORIES_OF_RECORDS, "splits": {"train": {"statistics": both.as_dict()}}}
    with caplog.at_level("INFO", "cocoflow.trainer"):
        log_data_facts([dataset], _config("model.max_instances=2"), kept=parts.validation)
    assert caplog.messages == [
        str(fact)
        for fact in data_facts(
            {"train": training, "kept for train.validation": kept},
            CATEGORIES_OF_RECORDS,
            _config("model.max_instances=2"),
        )
    ]
    assert f"kept for train.validation: {len(ids[1])} images" in caplog.text


def test_examples_of_an_earlier_version_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "cocoflow.trainer"):
        log_data_facts([{"categories": CATEGORIES, "splits": {"train": {"images": 3, "annotations": 4}}}], _config())
    assert not caplog.messages


def test_categories_that_a_mirror_exchanges_are_named() -> None:
    arrows = [{"id": 4, "name": "arrow left"}, {"id": 2, "name": "arrow right"}]
    for value, said in (
        ("auto", ["no image is mirrored"]),
        ("true", ["--set train.augment.horizontal_flip=false"]),
        ("false", []),
    ):
        config = _config(f"train.augment.horizontal_flip={value}")
        texts = map(str, data_facts({"train": _summary([(64, 64, _objects((9, 9)))])}, arrows, config))
        lines = [text for text in texts if "mirrored arrow left" in text]
        assert len(lines) == len(said)
        assert all(words in line for words, line in zip(said, lines, strict=True))
