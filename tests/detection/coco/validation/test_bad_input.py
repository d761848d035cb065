"""What cannot be evaluated is named, or skipped and listed; never a traceback, never other metrics."""

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detection.coco import MetricsAccumulator, evaluate
from detection.coco.engine import MatchingEngine
from detection.coco.params import make_params
from schemas.errors import DataError
from tests.detection.coco.generated_cases import generate

_HUGE = 10**30
_MASK = {"size": [48, 64], "counts": [100, 50, 2922]}


def _ground_truth() -> dict[str, Any]:
    keypoints = [12, 13, 2] * 17
    return {
        "images": [{"id": 1, "width": 64, "height": 48}, {"id": 2, "width": 64, "height": 48}],
        "annotations": [
            {
                "id": 5,
                "image_id": 2,
                "category_id": 3,
                "bbox": [1, 2, 30, 20],
                "area": 600,
                "iscrowd": 0,
                "segmentation": [[1, 2, 30, 2, 30, 20]],
                "keypoints": keypoints,
                "num_keypoints": 17,
            },
            {"id": 6, "image_id": 2, "category_id": 3, "bbox": [9, 9, 3, 2], "area": 6, "segmentation": _MASK},
        ],
        "categories": [{"id": 3, "name": "three"}],
    }


def _detections() -> list[dict[str, Any]]:
    detection = {"image_id": 2, "category_id": 3, "bbox": [1.0, 2.0, 30.0, 20.0], "score": 0.5}
    return [
        {**detection, "segmentation": {**_MASK, "counts": "T3b1Zk2"}, "keypoints": [1, 2, 0.5] * 17},
        {**detection, "score": 0.4, "segmentation": _MASK, "keypoints": [3, 2, 1] * 17},
    ]


def _with(path: tuple[Any, ...], value: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A good case with one value replaced, or removed where `value` is `...`."""
    case: dict[str, Any] = {"gt": _ground_truth(), "dt": _detections()}
    node: Any = case
    for key in path[:-1]:
        node = node[key]
    if value is ...:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return case["gt"], case["dt"]


_D, _A = ("dt", 0), ("gt", "annotations", 0)
_FIRST = r"detection 0 \(image 2\)"
_ERRORS: list[tuple[str, tuple[Any, ...], Any, str]] = [
    ("bbox", (*_D, "image_id"), 9, r"DT: unknown image_id: detection 0 \(image 9\): 9\. .* no such image.*--ground"),
    ("bbox", (*_D, "category_id"), 4, rf"DT: unknown category_id: {_FIRST}: 4\. The known ids are \[3\]\."),
    ("bbox", (*_D, "category_id"), None, rf"DT: invalid category_id: {_FIRST}: null\. .*integer"),
    ("bbox", (*_D, "bbox"), [1, 2, -3, 4], rf"DT: negative width or height in bbox: {_FIRST}"),
    ("bbox", (*_D, "bbox"), [1, 2, math.nan, 4], rf"DT: invalid bbox: {_FIRST}"),
    ("bbox", (*_D, "bbox"), [1, -math.inf, 3, 4], rf"DT: invalid bbox: {_FIRST}"),
    ("bbox", (*_D, "bbox"), [1, 2, 3], r"DT: invalid bbox: .*four finite numbers"),
    ("bbox", (*_D, "bbox"), [1, 2, 3, True], r"DT: invalid bbox"),
    ("bbox", (*_D, "bbox"), ["1", "2", "3", "4"], r"DT: invalid bbox"),
    ("bbox", (*_D, "bbox"), ..., r"DT: missing bbox"),
    ("bbox", (*_D, "score"), math.nan, r"DT: invalid score"),
    ("bbox", (*_D, "score"), math.inf, rf"DT: invalid score: {_FIRST}: Infinity\. .*finite number"),
    ("bbox", (*_D, "score"), _HUGE**20, r"DT: invalid score"),
    ("bbox", (*_D, "score"), None, r"DT: invalid score"),
    ("bbox", (*_D, "score"), ..., r"DT: missing score"),
    ("bbox", (*_D, "image_id"), ..., r"DT: missing image_id: detection 0\. "),
    ("bbox", (*_D, "image_id"), "2", r"DT: invalid image_id: detection 0 \(image '2'\): \"2\"\. .*integer"),
    ("bbox", (*_D, "image_id"), -2, r"DT: invalid image_id: detection 0 \(image -2\)"),
    ("bbox", (*_D, "image_id"), _HUGE, r"DT: invalid image_id: detection 0"),
    ("bbox", (*_D, "image_id"), 2.0, r"DT: invalid image_id: detection 0"),
    ("bbox", _D, 7, r"DT: not an object: detection 0: 7\. Write one with image_id, category_id, bbox, score\."),
    ("bbox", _D, [], r"DT: not an object: detection 0: \[\]\."),
    (
        "bbox",
        (*_A, "image_id"),
        9,
        r"GT: unknown image_id: annotation 5: 9\. Correct it, add the image to `images`, or",
    ),
    ("bbox", (*_A, "category_id"), 9, r"GT: unknown category_id: annotation 5: 9\."),
    ("bbox", (*_A, "category_id"), "\ud800", r"GT: invalid category_id: annotation 5"),
    ("bbox", (*_D, "category_id"), "\ud800", rf"DT: invalid category_id: {_FIRST}"),
    ("segm", (*_D, "score"), "\udfff", rf"DT: invalid score: {_FIRST}"),
    ("bbox", (*_D, "bbox"), [1, 2, "\ud800", 4], rf"DT: invalid bbox: {_FIRST}"),
    ("bbox", (*_A, "bbox"), [1, 2, 3, -4], r"GT: negative width or height in bbox: annotation 5"),
    ("bbox", (*_A, "bbox"), None, r"GT: invalid bbox: annotation 5"),
    ("bbox", (*_A, "area"), math.nan, r"GT: invalid area: annotation 5"),
    ("bbox", (*_A, "area"), -1, r"GT: invalid area: annotation 5"),
    ("bbox", (*_A, "iscrowd"), "0", r"GT: invalid iscrowd: annotation 5: \"0\"\. .*1 for a crowd"),
    ("bbox", (*_A, "iscrowd"), 2, r"GT: invalid iscrowd: annotation 5"),
    ("bbox", (*_A, "id"), ..., r"GT: missing id: annotation at position 0"),
    ("bbox", (*_A, "id"), 6, r"GT: duplicate id: annotation 6\. "),
    ("bbox", ("gt", "images", 1, "id"), 1, r"GT: duplicate id: image 1\."),
    ("bbox", ("gt", "images", 1), "two", r"GT: not an object: image at position 1"),
    ("bbox", ("gt", "categories", 0, "id"), "dog", r"GT: invalid id: category 'dog'"),
    (
        "bbox",
        ("gt", "categories", 0, "name"),
        "a\udcffb",
        r"GT: cannot be .* JSON in UTF-8: category 3: half a character",
    ),
    ("bbox", ("gt", "images"), ..., r"GT: not a COCO annotation file: no list images"),
    ("bbox", ("gt", "annotations"), {}, r"GT: not a COCO annotation file: no list annotations"),
    ("segm", ("gt", "images", 0, "width"), ..., r"GT: missing width: image 1\. .*in pixels"),
    ("segm", ("gt", "images", 0, "width"), 0, r"GT: invalid width: image 1"),
    ("segm", (*_A, "segmentation"), ..., r"GT: missing segmentation: annotation 5\. .*evaluate with iou_type bbox"),
    ("segm", (*_A, "segmentation"), [], r"GT: missing segmentation: annotation 5"),
    (
        "segm",
        (*_A, "segmentation"),
        [[1, 2, 3, 4]],
        r"GT: invalid segmentation: annotation 5: .*fewer than three points",
    ),
    ("segm", (*_A, "segmentation"), [[1, 2, 3, 4, math.nan, 6]], r"GT: invalid segmentation: annotation 5: .*NaN"),
    ("segm", (*_A, "area"), ..., r"GT: missing area: annotation 5\. The area of a mask"),
    ("segm", (*_D, "segmentation"), ..., rf"DT: missing segmentation: {_FIRST}"),
    (
        "segm",
        (*_D, "segmentation", "size"),
        [64, 48],
        rf"DT: invalid segmentation: {_FIRST}: .*size .*\[64, 48\], the image's \[48, 64\]",
    ),
    ("segm", (*_D, "segmentation", "counts"), "T3b1", r"DT: invalid segmentation: .*covers \d+ pixels, .* has 3072"),
    ("segm", (*_D, "segmentation", "counts"), "T3b1Zk2~", r"DT: invalid segmentation: .*invalid character '~'"),
    ("segm", (*_D, "segmentation", "counts"), [9], r"DT: invalid segmentation: .*covers 9 pixels"),
    ("segm", (*_D, "bbox"), ..., rf"DT: missing bbox: {_FIRST}\. .*one to all, or to none"),
    ("segm", (*_D, "bbox"), [], rf"DT: invalid bbox: {_FIRST}"),
    (
        "keypoints",
        (*_A, "keypoints"),
        [1, 2, 2],
        r"GT: invalid keypoints: annotation 5: 3 numbers instead of 51\. Every",
    ),
    ("keypoints", (*_A, "num_keypoints"), -1, r"GT: invalid num_keypoints: annotation 5"),
    ("keypoints", (*_D, "keypoints"), [1] * 50, rf"DT: invalid keypoints: {_FIRST}: 50 numbers .*set oks_sigmas"),
    ("keypoints", (*_D, "keypoints"), [math.inf] * 51, r"DT: invalid keypoints"),
    ("keypoints", (*_D, "keypoints"), ..., r"DT: invalid keypoints"),
]


@pytest.mark.parametrize("from_files", [False, True])
@pytest.mark.parametrize(("iou_type", "path", "value", "message"), _ERRORS)
def test_errors_of_entries(
    tmp_path: Path, *, iou_type: str, path: tuple[Any, ...], value: Any, message: str, from_files: bool
) -> None:
    inputs = _with(path, value)
    sources: Any = _files(tmp_path, *inputs) if from_files else inputs
    ground_truth, detections = ("gt.json", "dt.json") if from_files else ("ground truth", "detections")
    with pytest.raises(DataError, match=message.replace("GT", ground_truth).replace("DT", detections)):
        evaluate(sources[0], sources[1], iou_type)


@pytest.mark.parametrize("iou_type", ["bbox", "segm", "keypoints"])
def test_the_valid_case(tmp_path: Path, iou_type: str) -> None:
    metrics = evaluate(_ground_truth(), _detections(), iou_type)
    assert metrics.by_name["AP"] >= 0
    assert metrics.skipped == ()
    assert evaluate(*_files(tmp_path, _ground_truth(), _detections()), iou_type).by_name == metrics.by_name


def test_values_of_numpy_and_tuples_are_those_of_json() -> None:
    ground_truth = _ground_truth()
    ground_truth["annotations"][0] |= {"segmentation": (np.array([1, 2, 30, 2, 30, 20]),), "image_id": np.int64(2)}
    ground_truth["categories"][0]["name"] = np.int64(3)
    metrics = evaluate(ground_truth, _detections(), "segm")
    assert metrics.by_name == evaluate(_ground_truth(), _detections(), "segm").by_name


def test_keypoints_and_masks_without_boxes() -> None:
    detections = [{key: value for key, value in entry.items() if key != "bbox"} for entry in _detections()]
    with pytest.raises(DataError, match=r"keypoints with segmentation, without bbox: detection 0 \(image 2\), det.* 1"):
        evaluate(_ground_truth(), detections, "keypoints")


def test_many_invalid_entries_are_counted_and_the_first_named() -> None:
    detections = [{**_detections()[0], "score": float("nan")} for _ in range(9)]
    with pytest.raises(DataError, match=r"detection 4 \(image 2\): NaN and 4 more\. "):
        evaluate(_ground_truth(), detections)
    detections[3:5] = [{**_detections()[0], "bbox": []}, {**_detections()[0], "image_id": 8}]
    with pytest.raises(DataError, match=r"invalid score: detection 0 .* and 2 more\. .*\. Other issues there: 2\.$"):
        evaluate(_ground_truth(), detections)


@pytest.mark.parametrize(
    ("rows", "iou_type", "message"),
    [
        ([[2, 1, 2, 3, 4, 0.5, 3]], "segm", r"shape \[1, 7\] and type float64 for segm"),
        ([[2, 1, 2, 3, 4, 0.5]], "bbox", r"shape \[1, 6\]"),
        ([[9, 1, 2, 3, 4, 0.5, 3]], "bbox", r"unknown image_id: detection 0 \(image 9\): 9"),
        ([[np.nan, 1, 2, 3, 4, 0.5, 3]], "bbox", r"invalid image_id: detection 0 \(image nan\)"),
        ([[2, 1, 2, 3, 4, 0.5, 8]], "bbox", r"unknown category_id: detection 0 \(image 2\): 8"),
        ([[2, 1, np.nan, 3, 4, 0.5, 3]], "bbox", r"invalid bbox: detection 0"),
        ([[2, 1, 2, 3, 4, np.inf, 3]], "bbox", r"invalid score: detection 0"),
        ([[2, 1, 2, 3, -4, 0.5, 3]], "bbox", r"negative width or height in bbox: detection 0"),
    ],
)
def test_errors_of_rows(rows: list[list[float]], iou_type: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        evaluate(_ground_truth(), np.array(rows), iou_type)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"dt.json: cannot read the file: No such file"),
        ("[{", r"dt.json: not JSON: .*cut off"),
        ('[{"image_id": 2, "category_id": 3, "bbox": [1, 2, 3', r"dt.json: not JSON: .* line 1, column 52.*cut off"),
        ("", r"dt.json: not JSON"),
        ("{}", r"dt.json: not COCO results: expected a list of detections, not a dict"),
        ("3", r"dt.json: not COCO results: .* not a int"),
        ("null", r"dt.json: not COCO results: .* not a NoneType"),
        ("[] []", r"dt.json: not JSON: Extra data"),
        ("[" * 5000 + "]" * 5000, r"dt.json: nested more than 64 deep"),
        ('[{"image_id": ' + "9" * 5000 + "}]", r"dt.json: not a JSON text file.*4300"),
        (b'[{"image_id": "\xff"}]', r"dt.json: not a JSON text file"),
    ],
)
@pytest.mark.parametrize("iou_type", ["bbox", "segm"])
def test_errors_of_files(tmp_path: Path, content: str | bytes | None, message: str, iou_type: str) -> None:
    path = tmp_path / "dt.json"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DataError, match=message):
        evaluate(_ground_truth(), path, iou_type)


def test_a_truncated_annotation_file(tmp_path: Path) -> None:
    path = tmp_path / "gt.json"
    path.write_text(json.dumps(_ground_truth())[:-40])
    with pytest.raises(DataError, match=r"gt.json: not JSON: .*cut off"):
        evaluate(path, [])


@pytest.mark.parametrize("from_files", [False, True])
def test_invalid_entries_are_skipped_and_listed(tmp_path: Path, from_files: bool) -> None:
    ground_truth, detections = generate(8)
    ground_truth["annotations"][3]["bbox"] = [1, 2, 3, math.nan]
    ground_truth["annotations"].append({**ground_truth["annotations"][0], "category_id": 2})
    detections[0]["score"], detections[2]["image_id"], detections[4]["bbox"] = None, 999, [0, 0, 5, -5]
    sources: Any = _files(tmp_path, ground_truth, detections) if from_files else (ground_truth, detections)
    metrics = evaluate(*sources, skip_invalid=True)
    good = {**ground_truth, "annotations": [*ground_truth["annotations"][:3], *ground_truth["annotations"][4:-1]]}
    valid = [detection for position, detection in enumerate(detections) if position not in (0, 2, 4)]
    np.testing.assert_array_equal(metrics.precision, evaluate(good, valid).precision)
    gt, dt = map(str, sources) if from_files else ("ground truth", "detections")
    assert [(bad.source, bad.position, bad.what, bad.detail) for bad in metrics.skipped] == [
        (gt, 3, "invalid bbox", "[1, 2, 3, NaN]"),
        (gt, len(ground_truth["annotations"]) - 1, "duplicate id", ""),
        (dt, 0, "invalid score", "null"),
        (dt, 2, "unknown image_id", "999"),
        (dt, 4, "negative width or height in bbox", "[0, 0, 5, -5]"),
    ]
    assert metrics.skipped[3].record == "detection 2 (image 999)"


def test_with_an_image_all_of_it_is_skipped() -> None:
    ground_truth, detections = generate(8)
    image = ground_truth["images"][5]
    image["width"] = "wide"
    metrics = evaluate(ground_truth, detections, "segm", skip_invalid=True)
    kept: list[Any] = [
        [entry for entry in entries if entry["image_id"] != image["id"]]
        for entries in (ground_truth["annotations"], detections)
    ]
    images = [entry for entry in ground_truth["images"] if entry is not image]
    rest = evaluate({**ground_truth, "images": images, "annotations": kept[0]}, kept[1], "segm")
    np.testing.assert_array_equal(metrics.precision, rest.precision)
    assert (
        len(metrics.skipped) == 1 + len(ground_truth["annotations"]) - len(kept[0]) + len(detections) - len(kept[1]) > 2
    )
    assert metrics.skipped[0].what == "invalid width"


def test_rows_are_skipped() -> None:
    ground_truth, detections = generate(5)
    rows = np.array([[d["image_id"], *d["bbox"], d["score"], d["category_id"]] for d in detections])
    invalid = rows.copy()
    invalid[[1, 4, 6], [5, 0, 3]] = np.nan, 999, -1
    accumulator = MetricsAccumulator(ground_truth["categories"])
    skipped = accumulator.add(ground_truth["images"], ground_truth["annotations"], invalid, skip_invalid=True)
    assert [(bad.position, bad.what) for bad in skipped] == [
        (1, "invalid score"),
        (4, "unknown image_id"),
        (6, "negative width or height in bbox"),
    ]
    rest = evaluate(ground_truth, np.delete(rows, [1, 4, 6], axis=0))
    np.testing.assert_array_equal(accumulator.result().precision, rest.precision)


def test_categories_are_never_skipped() -> None:
    with pytest.raises(DataError, match="duplicate id: category 3"):
        evaluate({**_ground_truth(), "categories": [{"id": 3}, {"id": 3}]}, [], skip_invalid=True)


_NUMBERS = [True, False, -1, 0, 1, 1.5, 2, 3, math.nan, math.inf, _HUGE]
_LISTS = [
    [],
    [1, 2, 3],
    [1.0, 2.0, 3.0, 4.0],
    [[]],
    [[1, 2, 3, 4]],
    [None] * 4,
    [1, 2, "3", 4],
    [1] * 51,
    [math.nan] * 51,
]
_NASTY: list[Any] = [None, "x", "", {}, {"size": [48, 64], "counts": "0"}, *_NUMBERS, *_LISTS]


@pytest.mark.parametrize("iou_type", ["bbox", "segm", "keypoints"])
def test_files_and_parsed_entries_agree(tmp_path: Path, iou_type: str) -> None:
    """Whatever value stands wherever, a file is passed or refused as its parsed content is."""
    rng = np.random.default_rng(4)
    refused = 0
    for _ in range(250):
        ground_truth, detections = _ground_truth(), _detections()
        entries = (ground_truth["annotations"], detections)[rng.integers(2)]
        for _ in range(rng.integers(1, 3)):
            _spoil(entries[rng.integers(2)], rng)
        outcome = _outcome(ground_truth, detections, iou_type)
        assert _outcome(*_files(tmp_path, ground_truth, detections), iou_type) == outcome
        refused += isinstance(outcome, str)
    assert 60 < refused < 240


def _spoil(entry: dict[str, Any], rng: np.random.Generator) -> None:
    keys = sorted(entry)
    key = keys[rng.integers(len(keys))]
    if rng.random() < 0.15:
        del entry[key]
    else:
        entry[key] = copy.deepcopy(_NASTY[rng.integers(len(_NASTY))])


def _outcome(ground_truth: Any, detections: Any, iou_type: str) -> Any:
    """The metrics, or the error without the names of the sources."""
    try:
        return evaluate(ground_truth, detections, iou_type).by_name
    except DataError as error:
        return re.sub(r"^.*?(gt\.json|dt\.json|ground truth|detections): ", "", str(error))


def test_what_the_engine_refuses_is_told() -> None:
    engine = MatchingEngine(_ground_truth()["categories"], make_params())
    with pytest.raises(DataError, match=r"ground truth: cannot be evaluated: .*height"):
        engine.add([{"id": 1, "height": "tall"}], [], [], where="ground truth")


def _files(folder: Path, ground_truth: Any, detections: Any) -> tuple[Path, Path]:
    (folder / "gt.json").write_text(json.dumps(ground_truth))
    (folder / "dt.json").write_text(json.dumps(detections))
    return folder / "gt.json", folder / "dt.json"
