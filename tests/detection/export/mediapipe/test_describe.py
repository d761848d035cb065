"""A file's metadata in words."""

import dataclasses

import pytest

from detection.export.mediapipe.describe import describe
from detection.export.mediapipe.metadata import ScoreCalibration, ScoreCurve
from detection.export.mediapipe.writer import add_metadata
from schemas.errors import DataError
from tests.detection.export.mediapipe.tiny_models import (
    METADATA,
    NAMES,
    RAW_METADATA,
    RAW_NAMES,
    UINT8_METADATA,
    detections_model,
    raw_model,
)


def test_a_model_of_detections() -> None:
    calibration = ScoreCalibration(
        curves=(ScoreCurve(1, 2, 3), None, ScoreCurve(1, 1, 1)), transformation="log", default_score=0.25
    )
    metadata = dataclasses.replace(METADATA, version="7", normalization=(127.5, 127.5), calibration=calibration)
    content = add_metadata(detections_model(), metadata, outputs=NAMES)
    assert describe(content, "model.tflite").splitlines() == [
        f"file         model.tflite, {len(content):,} bytes",
        "name         tiny",
        "description  A test.",
        "version      7",
        "kind         object detector for MediaPipe Tasks; non-maximum suppression in the file; only built-in ops",
        "input        float32 [1, 100, 100, 3], RGB, (pixel - 127.5) / 127.5",
        "output       location: float32 [1, 4, 4]",
        "output       category: float32 [1, 4]",
        "output       score: float32 [1, 4]",
        "output       number of detections: float32 [1]",
        "labels       3: raccoon, hérisson, chien",
        "calibration  2 curves, transformation log, default score 0.25",
    ]


def test_a_model_of_raw_boxes() -> None:
    lines = describe(add_metadata(raw_model(), RAW_METADATA, outputs=RAW_NAMES), "m").splitlines()
    assert "raw boxes and scores of 3 anchors, which MediaPipe decodes and suppresses" in lines[3]
    assert lines[4:] == [
        "input        float32 [1, 100, 100, 3], RGB, 0 to 255, normalized by the model",
        "output       location: float32 [1, 3, 4]",
        "output       score: float32 [1, 3, 3]",
        "labels       3: raccoon, hérisson, chien",
        "calibration  none",
    ]


def test_hostile_texts_stay_on_their_lines() -> None:
    labels = ("a\x1b[2J\u2028b", "n" * 500, *(f"class {number}" for number in range(30)))
    metadata = dataclasses.replace(UINT8_METADATA, name="two\nlines\x07", description="", labels=labels)
    text = describe(add_metadata(detections_model("uint8"), metadata, outputs=NAMES), "a\nb")
    assert text.replace("\n", "").isprintable()
    assert "name         two\\nlines\\x07\n" in text
    assert f"labels       32: a\\x1b[2J\\u2028b, {'n' * 80}..., class 0, class 1, " in text
    assert text.splitlines()[0].startswith("file         a\\nb, ")
    assert "input        uint8 [1, 100, 100, 3], RGB, 0 to 255\n" in text
    assert "class 7, ...\n" in text
    assert "description" not in text


def test_a_model_without_metadata() -> None:
    with pytest.raises(DataError, match="no metadata for MediaPipe"):
        describe(detections_model(), "m")
