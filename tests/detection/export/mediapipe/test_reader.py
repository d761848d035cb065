"""Metadata comes back as it was written; wrong, missing and damaged metadata is refused by name."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detection.export.mediapipe import writer
from detection.export.mediapipe.associated_files import append_files
from detection.export.mediapipe.flatbuffer_tables import encode
from detection.export.mediapipe.litert_model import set_metadata
from detection.export.mediapipe.metadata import DetectorMetadata, ScoreCalibration, ScoreCurve
from detection.export.mediapipe.metadata_schema import DETECTOR_METADATA, METADATA_NAME
from detection.export.mediapipe.metadata_schema import METADATA as SCHEMA
from detection.export.mediapipe.reader import read_detector_file, read_metadata
from detection.export.mediapipe.writer import add_metadata
from schemas.errors import DataError
from tests.detection.export.mediapipe.tiny_models import (
    ANCHORS,
    METADATA,
    NAMES,
    RAW_METADATA,
    RAW_NAMES,
    UINT8_METADATA,
    detections_model,
    model_of_classes,
    raw_model,
    wrong_model,
)

CALIBRATED = dataclasses.replace(
    METADATA, calibration=ScoreCalibration(curves=(ScoreCurve(0.5, 2.0, -1.0), None, ScoreCurve(1.0, 3.0, 0.5, 0.25)))
)
_FLOATS = st.floats(-1e6, 1e6, width=32)
_TEXTS = st.text(st.characters(blacklist_categories=["Cs"]))
_LABELS = st.lists(
    st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\n\r\0"), min_size=1), min_size=1
)
_CURVES = st.none() | st.builds(ScoreCurve, _FLOATS.map(abs), _FLOATS, _FLOATS, st.none() | _FLOATS)


@st.composite
def _metadata(draw: st.DrawFn) -> DetectorMetadata:
    labels = tuple(draw(_LABELS))
    curves = draw(st.none() | st.tuples(*[_CURVES] * len(labels)))
    return DetectorMetadata(
        name=draw(_TEXTS),
        description=draw(_TEXTS),
        labels=labels,
        version=draw(st.none() | _TEXTS),
        normalization=(draw(_FLOATS), draw(st.floats(0.125, 1e6, width=32))),
        calibration=None
        if curves is None
        else ScoreCalibration(
            curves=curves,
            transformation=draw(st.sampled_from(["identity", "log", "inverse_logistic"])),
            default_score=draw(_FLOATS),
        ),
    )


@given(_metadata())
def test_metadata_comes_back(metadata: DetectorMetadata) -> None:
    assert read_metadata(add_metadata(detections_model(), metadata, outputs=NAMES), "m") == metadata


def test_metadata_of_raw_boxes_comes_back() -> None:
    found = read_metadata(add_metadata(raw_model(), RAW_METADATA, outputs=RAW_NAMES), "m")
    assert found.anchors_yxhw is not None
    np.testing.assert_array_equal(found.anchors_yxhw, ANCHORS)
    assert dataclasses.replace(found, anchors_yxhw=None) == dataclasses.replace(RAW_METADATA, anchors_yxhw=None)


def test_metadata_of_a_uint8_input_comes_back() -> None:
    content = add_metadata(detections_model("uint8"), UINT8_METADATA, outputs=NAMES)
    assert read_metadata(content, "m") == UINT8_METADATA


def test_outputs_are_named_in_the_order_of_the_file() -> None:
    def reverse(root: dict[str, Any]) -> None:
        root["subgraph_metadata"][0]["output_tensor_metadata"].reverse()

    content = changed(METADATA, reverse, outputs=NAMES[::-1])
    found = read_detector_file(content, "m")
    assert found.output_names == ("number of detections", "score", "category", "location")
    assert [tensor.shape for tensor in found.model.outputs] == [(1,), (1, 4), (1, 4), (1, 4, 4)]
    assert found.metadata == METADATA


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    """A file with suppression and calibration, and one of raw boxes."""
    return [
        add_metadata(detections_model(), CALIBRATED, outputs=NAMES),
        add_metadata(raw_model(), RAW_METADATA, outputs=RAW_NAMES),
    ]


def assert_read_or_refused(content: bytes) -> bool:
    """Returns whether a file is refused: on one line that names it and says what to do."""
    try:
        found = read_metadata(content, "model.tflite")
    except DataError as error:
        message = str(error)
    else:
        assert found.labels
        assert all(isinstance(label, str) and label for label in found.labels)
        return False
    assert message.startswith("model.tflite: ")
    assert message.endswith((" again.", " --format mediapipe."))
    assert "\n" not in message
    return True


def test_a_file_cut_anywhere_is_refused(files: list[bytes]) -> None:
    for content in files:
        assert not assert_read_or_refused(content)
        for length in range(len(content)):
            assert assert_read_or_refused(content[:length]), length


def test_a_file_with_any_byte_changed_is_read_or_refused(files: list[bytes]) -> None:
    random = np.random.default_rng(0)
    for content in files:
        for at, change in enumerate(random.integers(1, 256, len(content))):
            changed = bytearray(content)
            changed[at] ^= change
            assert_read_or_refused(bytes(changed))


@settings(max_examples=300)
@given(st.data())
def test_a_file_with_several_bytes_changed_is_read_or_refused(files: list[bytes], data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(files)))
    for _ in range(data.draw(st.integers(2, 6))):
        at = data.draw(st.integers(0, len(content) - 4))
        content[at : at + 4] = data.draw(st.binary(min_size=4, max_size=4))
    assert_read_or_refused(bytes(content))


@given(st.binary())
def test_other_files_are_refused(content: bytes) -> None:
    assert assert_read_or_refused(content)
    assert assert_read_or_refused(b"\x08\0\0\0TFL3" + content)


def changed(
    metadata: DetectorMetadata, change: Callable[[dict[str, Any]], object], outputs: tuple[str, ...] | None = None
) -> bytes:
    """A file whose metadata is changed before it is written."""
    raw = metadata.anchors_yxhw is not None
    model, names = (raw_model(), RAW_NAMES) if raw else (detections_model(), NAMES)
    root = copy.deepcopy(dict(writer._model(metadata)))
    change(root)
    files = {"labels.txt": "".join(f"{label}\n" for label in metadata.labels).encode()}
    if metadata.calibration is not None:
        files["score_calibration.txt"] = b"0.5,2,-1\n\n1,3,0.5\n"
    return append_files(set_metadata(model, encode(SCHEMA, root), outputs=outputs or names), files)


def _graph(root: dict[str, Any]) -> dict[str, Any]:
    graph: dict[str, Any] = root["subgraph_metadata"][0]
    return graph


def _input(root: dict[str, Any]) -> dict[str, Any]:
    image: dict[str, Any] = _graph(root)["input_tensor_metadata"][0]
    return image


def _output(root: dict[str, Any], number: int) -> dict[str, Any]:
    output: dict[str, Any] = _graph(root)["output_tensor_metadata"][number]
    return output


def _normalize(mean: list[float] | None, std: list[float] | None) -> Callable[[dict[str, Any]], object]:
    unit = {"options": ("NormalizationOptions", {"mean": mean, "std": std})}
    return lambda root: _input(root).update(process_units=[unit])


def _box(**values: object) -> Callable[[dict[str, Any]], object]:
    return lambda root: _output(root, 0)["content"]["content_properties"][1].update(values)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda root: root.update(min_parser_version="1.5.1"), "needs version '1.5.1' of MediaPipe's parser"),
        (lambda root: root.update(min_parser_version="x"), "needs version 'x'"),
        (lambda root: root.update(subgraph_metadata=None), "describes 0 graphs"),
        (lambda root: root["subgraph_metadata"].append(_graph(root)), "describes 2 graphs"),
        (lambda root: _graph(root).update(input_tensor_metadata=None), "1 inputs, of which 0 are described"),
        (lambda root: _graph(root)["output_tensor_metadata"].pop(), "4 outputs, of which 3 are described"),
        (lambda root: _input(root).update(process_units=None), "normalization is missing"),
        (lambda root: _input(root)["process_units"].append(_input(root)["process_units"][0]), "2 times"),
        (_normalize([0.0], None), "the normalization has means"),
        (_normalize([0.0, 1.0, 0.0], [1.0, 1.0, 1.0]), "MediaPipe takes one of each"),
        (_normalize([0.0, 0.0], [1.0, 1.0]), "the normalization has means"),
        (_normalize([0.0], [0.0]), "is not finite"),
        (_normalize([float("nan")], [1.0]), "is not finite"),
        (lambda root: _input(root)["content"].update(content_properties=("FeatureProperties", {})), "RGB image"),
        (lambda root: _input(root)["content"]["content_properties"][1].update(color_space=2), "RGB image"),
        (lambda root: _output(root, 2).update(name=None), "output 2 has no name, which crashes MediaPipe"),
        (lambda root: _output(root, 2).update(name="scores"), "the outputs are named .*'scores'"),
        (lambda root: _output(root, 2).update(name="category"), "the outputs are named"),
        (
            lambda root: (_output(root, 2).update(name="location"), _output(root, 0).update(name="score")),
            r"the output 'location' has the shape \[1, 4\]",
        ),
        (lambda root: _output(root, 0).update(content=None), "'location' is not described as boxes"),
        (_box(type=2), "boundaries in fractions"),
        (_box(coordinate_type=1), "boundaries in fractions"),
        (_box(index=None), r"the order of the coordinates is None, not \[1, 0, 3, 2\]"),
        (_box(index=[0, 1, 2, 3]), r"the order of the coordinates is \[0, 1, 2, 3\]"),
        (lambda root: _output(root, 1).update(associated_files=None), "'category' has no label file"),
        (lambda root: _output(root, 1)["associated_files"][0].update(type=2), "'category' has no label file"),
        (lambda root: _output(root, 1)["associated_files"][0].update(name="a.txt"), "'a.txt' is 0 times"),
        (lambda root: _output(root, 2).update(process_units=None), "the score calibration has no options"),
        (lambda root: _output(root, 2).update(associated_files=None), "the score calibration has no file"),
        (
            lambda root: _output(root, 2)["process_units"][0]["options"][1].update(score_transformation=3),
            "unknown transformation 3",
        ),
        (
            lambda root: _output(root, 2)["process_units"][0]["options"][1].update(default_score=float("inf")),
            "the default score inf",
        ),
    ],
)
def test_wrong_metadata(change: Callable[[dict[str, Any]], object], reason: str) -> None:
    with pytest.raises(DataError, match=f"^m: wrong metadata for MediaPipe: .*{reason}.*--format mediapipe"):
        read_metadata(changed(CALIBRATED, change), "m")


def _options(**values: object) -> Callable[[dict[str, Any]], object]:
    def change(root: dict[str, Any]) -> None:
        options = dict(writer._raw_options(ANCHORS, len(RAW_METADATA.labels)))
        options["tensors_decoding_options"].update(values)
        _graph(root)["custom_metadata"][0]["data"] = encode(DETECTOR_METADATA, options)

    return change


def _anchors(anchors: np.ndarray[Any, Any]) -> Callable[[dict[str, Any]], object]:
    data = encode(DETECTOR_METADATA, writer._raw_options(anchors, len(RAW_METADATA.labels)))
    return lambda root: _graph(root)["custom_metadata"][0].update(data=data)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda root: _graph(root).update(custom_metadata=None), "anchors of the raw boxes are missing"),
        (lambda root: _graph(root)["custom_metadata"][0].update(data=None), "anchors of the raw boxes are missing"),
        (lambda root: _graph(root)["custom_metadata"][0].update(data=b"\x08\0\0\0M001"), "its identifier is b'M001'"),
        (lambda root: _graph(root)["custom_metadata"][0].update(data=encode(DETECTOR_METADATA, {})), "0 anchors"),
        (_anchors(ANCHORS[:2]), "2 anchors and 3 labels for scores of shape"),
        (_anchors(ANCHORS * [[1, 1, 0, 1]]), "an anchor is not finite, or has no area"),
        (_anchors(ANCHORS * np.nan), "an anchor is not finite"),
        (_options(num_classes=4), "num_classes of the raw boxes is 4, not 3"),
        (_options(x_scale=10.0), "x_scale of the raw boxes is 10.0, not 1.0"),
        (_options(sigmoid_score=False), "sigmoid_score of the raw boxes is False, not True"),
        (
            lambda root: _output(root, 1)["associated_files"].append({"name": "c", "type": 4}),
            "the score calibration has no options",
        ),
    ],
)
def test_wrong_metadata_of_raw_boxes(change: Callable[[dict[str, Any]], object], reason: str) -> None:
    with pytest.raises(DataError, match=f"^m: wrong metadata for MediaPipe: .*{reason}.*--format mediapipe"):
        read_metadata(changed(RAW_METADATA, change), "m")


def test_a_calibration_of_raw_boxes_is_refused() -> None:
    calibrated = dataclasses.replace(RAW_METADATA, calibration=CALIBRATED.calibration)
    with pytest.raises(DataError, match="which MediaPipe does not apply to raw boxes"):
        add_metadata(raw_model(), calibrated, outputs=RAW_NAMES)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ("batch", r"the input is float32 \[2, 100, 100, 3\], not one image"),
        ("gray", r"the input is float32 \[1, 100, 100, 1\], not one image"),
        ("int32", r"the input is int32 \[1, 100, 100, 3\], not one image"),
        ("classes", "the outputs are float32, int32, float32, float32, not all float32"),
        ("count", r"the output 'number of detections' has the shape \[1, 1\]"),
        ("boxes", r"the output 'category' has the shape \[1, 4\]"),
    ],
)
def test_a_model_that_mediapipe_does_not_run(problem: str, reason: str) -> None:
    with pytest.raises(DataError, match=f"^the exported model: .*{reason}"):
        add_metadata(wrong_model(problem), METADATA, outputs=NAMES)


def test_a_model_without_metadata() -> None:
    with pytest.raises(DataError, match=r"^a\\nb: has no metadata for MediaPipe. Export the model again with --format"):
        read_metadata(model_of_classes(3), "a\nb")


def test_metadata_in_a_buffer_that_is_not_there() -> None:
    content = bytearray(add_metadata(detections_model(), METADATA, outputs=NAMES))
    name = content.index(METADATA_NAME)
    buffers = content.index(b"TFL3")
    assert buffers < name
    refused = 0
    for at in range(8, name):  # the number of the buffer is among these bytes
        if content[at] and at % 4 == 0:
            other = content.copy()
            other[at : at + 4] = b"\xff\xff\xff\x00"
            try:
                read_metadata(bytes(other), "m")
            except DataError as error:
                refused += "its metadata is in buffer 16777215 of" in str(error)
    assert refused == 1
