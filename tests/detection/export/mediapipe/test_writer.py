"""Metadata as MediaPipe's own generated code and its ObjectDetector read it."""

import dataclasses
import io
import zipfile
from typing import Any

import numpy as np
import pytest

from detection.export.mediapipe.litert_model import read_model
from detection.export.mediapipe.metadata import DetectorMetadata, ScoreCalibration, ScoreCurve
from detection.export.mediapipe.writer import add_metadata
from schemas.errors import DataError
from tests.detection.export.mediapipe.detector_process import Detect, DetectorError
from tests.detection.export.mediapipe.published import generated_code
from tests.detection.export.mediapipe.tiny_models import (
    ANCHORS,
    BOXES,
    CLASSES,
    COUNT,
    LABELS,
    LOGITS,
    METADATA,
    NAMES,
    RAW_METADATA,
    RAW_NAMES,
    SCORES,
    SIDE,
    UINT8_METADATA,
    detections_model,
    model_of_classes,
    raw_model,
)

generated = generated_code("metadata_schema")
generated_detector = generated_code("object_detector_metadata_schema")
WHITE = np.full((SIDE, SIDE, 3), 255, np.uint8)
CALIBRATION = ScoreCalibration(
    curves=(ScoreCurve(0.5, 2.0, -1.0), None, ScoreCurve(1.0, 3.0, 0.5, 0.95)),
    transformation="inverse_logistic",
    default_score=0.125,
)


def _parsed(content: bytes) -> Any:
    data = read_model(content, "m").metadata
    assert data is not None
    assert generated.ModelMetadata.ModelMetadataBufferHasIdentifier(data, 0)
    return generated.ModelMetadataT.InitFromPackedBuf(data)


def test_mediapipes_code_reads_the_metadata() -> None:
    metadata = dataclasses.replace(METADATA, version="7", normalization=(127.5, 64.0), calibration=CALIBRATION)
    root = _parsed(add_metadata(detections_model(), metadata, outputs=NAMES))
    assert (root.name, root.description, root.version) == (b"tiny", b"A test.", b"7")
    assert root.minParserVersion == b"1.0.0"
    (graph,) = root.subgraphMetadata
    (image,) = graph.inputTensorMetadata
    assert image.content.contentPropertiesType == generated.ContentProperties.ImageProperties
    assert image.content.contentProperties.colorSpace == generated.ColorSpaceType.RGB
    (unit,) = image.processUnits
    assert unit.optionsType == generated.ProcessUnitOptions.NormalizationOptions
    assert (list(unit.options.mean), list(unit.options.std)) == ([127.5], [64.0])
    location, category, score, count = graph.outputTensorMetadata
    names = [output.name for output in (location, category, score, count)]
    assert names == [b"location", b"category", b"score", b"number of detections"]
    box = location.content.contentProperties
    assert location.content.contentPropertiesType == generated.ContentProperties.BoundingBoxProperties
    assert list(box.index) == [1, 0, 3, 2]
    assert box.type == generated.BoundingBoxType.BOUNDARIES
    assert box.coordinateType == generated.CoordinateType.RATIO
    (labels,) = category.associatedFiles
    assert (labels.name, labels.type) == (b"labels.txt", generated.AssociatedFileType.TENSOR_VALUE_LABELS)
    (curves,) = score.associatedFiles
    assert curves.type == generated.AssociatedFileType.TENSOR_AXIS_SCORE_CALIBRATION
    (unit,) = score.processUnits
    assert unit.optionsType == generated.ProcessUnitOptions.ScoreCalibrationOptions
    assert unit.options.scoreTransformation == generated.ScoreTransformationType.INVERSE_LOGISTIC
    assert unit.options.defaultScore == 0.125
    assert count.associatedFiles is None


def test_mediapipes_code_reads_the_anchors() -> None:
    content = add_metadata(raw_model(), RAW_METADATA, outputs=RAW_NAMES)
    root = _parsed(content)
    assert root.minParserVersion == b"1.5.0"
    (graph,) = root.subgraphMetadata
    location, score = graph.outputTensorMetadata
    assert (location.name, score.name) == (b"location", b"score")
    (labels,) = score.associatedFiles
    assert labels.type == generated.AssociatedFileType.TENSOR_AXIS_LABELS
    (custom,) = graph.customMetadata
    assert custom.name == b"DETECTOR_METADATA"
    data = bytes(custom.data)
    assert content.index(data) % 16 == 0
    options = generated_detector.ObjectDetectorOptionsT.InitFromPackedBuf(data)
    anchors = options.ssdAnchorsOptions.fixedAnchorsSchema.anchors
    found = [[one.yCenter, one.xCenter, one.height, one.width] for one in anchors]
    np.testing.assert_array_equal(np.array(found, np.float32), ANCHORS)
    decoding = vars(options.tensorsDecodingOptions)
    assert {name: decoding[name] for name in ("numClasses", "numBoxes", "numCoords", "numKeypoints")} == {
        "numClasses": 3,
        "numBoxes": 3,
        "numCoords": 4,
        "numKeypoints": 0,
    }
    assert [decoding[f"{side}Scale"] for side in "xywh"] == [1.0] * 4
    assert decoding["applyExponentialOnBoxSize"]
    assert decoding["sigmoidScore"]


def test_the_label_file() -> None:
    content = add_metadata(detections_model(), METADATA, outputs=NAMES)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.read("labels.txt").decode() == "raccoon\nhérisson\nchien\n"


def test_the_bytes_are_those_of_the_last_time() -> None:
    assert add_metadata(raw_model(), RAW_METADATA, outputs=RAW_NAMES) == add_metadata(
        raw_model(), RAW_METADATA, outputs=RAW_NAMES
    )


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (dataclasses.replace(METADATA, labels=("a", "b\nc", "d")), r"class 1: the name 'b\\nc' has a line break"),
        (dataclasses.replace(METADATA, normalization=None), "its normalization is missing"),
        (dataclasses.replace(METADATA, calibration=ScoreCalibration(curves=(None,))), "1 lines for 3 classes"),
        (RAW_METADATA, "4 outputs, of which 2 are described"),
    ],
)
def test_metadata_that_does_not_fit_the_model(metadata: DetectorMetadata, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        add_metadata(detections_model(), metadata, outputs=NAMES)


def _pixels(box: list[float]) -> tuple[int, int, int, int]:
    """x, y, width, height as MediaPipe cuts them, each by itself, in float32."""
    ymin, xmin, ymax, xmax = (np.float32(side) for side in box)
    return int(xmin * SIDE), int(ymin * SIDE), int((xmax - xmin) * SIDE), int((ymax - ymin) * SIDE)


@pytest.mark.parametrize(("dtype", "metadata"), [("float32", METADATA), ("uint8", UINT8_METADATA)])
def test_mediapipe_detects_what_the_model_does(
    dtype: str, metadata: DetectorMetadata, mediapipe_detect: Detect
) -> None:
    content = add_metadata(detections_model(dtype), metadata, outputs=NAMES)
    full, half = mediapipe_detect(content, [WHITE, WHITE // 2])
    assert [detection[:4] for detection in full] == [_pixels(box) for box in BOXES[:COUNT]]
    for found, light in ((full, 1.0), (half, 127 / 255)):
        (names, scores) = zip(
            *[(category.name, category.score) for one in found for category in one.categories], strict=True
        )
        assert list(names) == [LABELS[number] for number in CLASSES[:COUNT]]
        np.testing.assert_allclose(scores, np.array(SCORES[:COUNT]) * light, atol=1e-6)


def test_mediapipe_decodes_raw_boxes(mediapipe_detect: Detect) -> None:
    (found,) = mediapipe_detect(add_metadata(raw_model(), RAW_METADATA, outputs=RAW_NAMES), [WHITE])
    best = np.max(LOGITS, axis=1)
    assert [one.categories[0].name for one in found] == [LABELS[number] for number in np.argmax(LOGITS, axis=1)]
    np.testing.assert_allclose([one.categories[0].score for one in found], 1 / (1 + np.exp(-best)), atol=1e-6)
    y, x, height, width = (ANCHORS.astype(float) * SIDE).T
    exact = np.stack([x - width / 2, y - height / 2, width, height], axis=1)
    np.testing.assert_allclose([one[:4] for one in found], exact, atol=1.0)  # whole pixels


def test_mediapipe_calibrates_the_scores(mediapipe_detect: Detect) -> None:
    metadata = dataclasses.replace(METADATA, calibration=CALIBRATION)
    (found,) = mediapipe_detect(add_metadata(detections_model(), metadata, outputs=NAMES), [WHITE])
    scores = {one.categories[0].name: one.categories[0].score for one in found}
    logit = np.log(0.7 / 0.3)
    assert scores == {
        "raccoon": pytest.approx(0.5 / (1 + np.exp(-(2.0 * logit - 1.0))), abs=1e-6),
        "hérisson": 0.125,  # no curve
        "chien": 0.125,  # 0.9 is not above the curve's min_score
    }


def test_names_of_any_script_and_length_come_through(mediapipe_detect: Detect) -> None:
    labels: tuple[str, ...] = (
        "same",
        "same",
        "'q\" \\ %s {x}",
        "n" * 500,
        "عربى",
        "日本語",
        "\ufeffbom",
        " lead, trail ",
        "\t\x1b[31m",
    )
    labels += ("\x85\u2028x", "😀\u202e", "<b>", "x\x0b\x0cy", "a,b;c", " ")
    content = add_metadata(model_of_classes(len(labels)), dataclasses.replace(METADATA, labels=labels), outputs=NAMES)
    (found,) = mediapipe_detect(content, [WHITE])
    assert tuple(one.categories[0].name for one in found) == labels


def test_without_metadata_mediapipe_refuses_the_model(mediapipe_detect: Detect) -> None:
    with pytest.raises(DetectorError, match="require TFLite Model Metadata"):
        mediapipe_detect(detections_model(), [WHITE])
