"""`evaluate` against pycocotools, oracle numbers and its own promises."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as masks

from detection.coco import CocoMetrics, evaluate
from detection.coco.engine import MatchingEngine
from detection.coco.figures import FIGURES, UNDEFINED
from detection.coco.settings import make_settings
from schemas.config import MetricName
from schemas.errors import ConfigError, DataError
from tests.detection.coco.generated_cases import generate, pycocotools_eval

ARRAYS = ("precision", "recall", "scores")


def assert_equal(metrics: CocoMetrics, reference: Any) -> None:
    np.testing.assert_allclose(metrics.stats, reference.stats, rtol=0, atol=1e-12)
    for name in ARRAYS:
        np.testing.assert_allclose(getattr(metrics, name), reference.eval[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("iou_type", FIGURES)
@pytest.mark.parametrize("seed", range(8))
def test_equals_pycocotools(seed: int, iou_type: str) -> None:
    truth, detections = generate(seed)
    assert_equal(evaluate(truth, detections, iou_type), pycocotools_eval(truth, detections, iou_type))


@pytest.mark.parametrize("seed", range(20, 50))
def test_boxes_equal_pycocotools_without_categories_and_with_few_detections(seed: int) -> None:
    truth, detections = generate(seed)
    metrics = evaluate(truth, detections, use_cats=False, max_dets=(1, 2, 100))
    assert_equal(metrics, pycocotools_eval(truth, detections, use_cats=False, max_dets=[1, 2, 100]))
    assert metrics.per_category == []


@pytest.mark.parametrize(
    ("iou_type", "file"),
    [("bbox", "instances_val.json"), ("segm", "instances_val.json"), ("keypoints", "person_keypoints_val.json")],
)
def test_real_annotations_equal_pycocotools(shared_data: Path, iou_type: str, file: str) -> None:
    path = shared_data / "coco2017_ccby" / file
    truth = json.loads(path.read_text())
    detections = _found_near(truth, np.random.default_rng(0))
    assert_equal(evaluate(path, detections, iou_type), pycocotools_eval(truth, detections, iou_type))


def test_max_dets_reach_the_figures_where_pycocotools_gives_up() -> None:
    truth, detections = generate(3)
    reference = pycocotools_eval(truth, detections, max_dets=[1, 2, 4])
    metrics = evaluate(truth, detections, max_dets=(1, 2, 4))
    np.testing.assert_allclose(metrics.stats[1:], reference.stats[1:], atol=1e-12)
    assert reference.stats[0] == -1
    precision = reference.eval["precision"][:, :, :, 0, 2]
    assert metrics.figures["AP"] == pytest.approx(precision[precision > -1].mean(), abs=1e-12)


def test_arrays_of_rows_equal_entries() -> None:
    truth, detections = generate(5)
    rows = np.array([[d["image_id"], *d["bbox"], d["score"], d["category_id"]] for d in detections])
    np.testing.assert_array_equal(evaluate(truth, rows).stats, evaluate(truth, detections).stats)


def test_files_equal_parsed_json_and_input_stays(tmp_path: Path) -> None:
    truth, detections = generate(6)
    before = copy.deepcopy((truth, detections))
    (tmp_path / "gt.json").write_text(json.dumps(truth))
    (tmp_path / "dt.json").write_text(json.dumps(detections))
    from_files = evaluate(tmp_path / "gt.json", str(tmp_path / "dt.json"))
    np.testing.assert_array_equal(from_files.precision, evaluate(truth, detections).precision)
    assert (truth, detections) == before


def test_no_detections_give_zero_where_there_is_ground_truth() -> None:
    truth, _ = generate(0)
    metrics = evaluate(truth, [])
    assert metrics.figures["AP"] == 0.0
    assert metrics.figures["AR100"] == 0.0


def test_no_ground_truth_is_undefined() -> None:
    truth, detections = generate(0)
    assert set(evaluate({**truth, "annotations": []}, detections).stats) == {UNDEFINED}


def test_per_category_equals_the_mean_of_its_slice() -> None:
    truth, detections = generate(1)
    reference = pycocotools_eval(truth, detections).eval["precision"]
    entries = evaluate(truth, detections).per_category
    assert [entry["id"] for entry in entries] == [2, 7, 31, 90]
    assert entries[2] == {"id": 31, "name": "category 31", "AP": -1.0, "AP50": -1.0}
    assert entries[1]["AP"] == pytest.approx(reference[:, :, 1, 0, 2].mean(), abs=1e-12)
    assert entries[1]["AP50"] == pytest.approx(reference[0, :, 1, 0, 2].mean(), abs=1e-12)


def test_own_thresholds_and_areas() -> None:
    truth, detections = generate(2)
    plain = evaluate(truth, detections)
    metrics = evaluate(truth, detections, iou_thresholds=[0.5], area_ranges={"all": (0, 1e10), "small": (0, 32**2)})
    assert metrics.figures["AP"] == metrics.figures["AP50"] == plain.figures["AP50"]
    assert metrics.figures["AP75"] == metrics.figures["APl"] == UNDEFINED
    assert metrics.precision.shape == (1, 101, 4, 2, 3)


def test_what_annotations_may_leave_out() -> None:
    truth, detections = generate(4)
    for annotation in truth["annotations"]:
        annotation["area"] = annotation["bbox"][2] * annotation["bbox"][3]
    short = copy.deepcopy(truth)
    for annotation in short["annotations"]:
        del annotation["area"]
        annotation["is_crowd"] = annotation.pop("iscrowd")
    assert_equal(evaluate(short, detections), pycocotools_eval(truth, detections))


def test_objects_without_keypoints_are_ignored() -> None:
    truth, detections = generate(4)
    for annotation in truth["annotations"][::2]:
        annotation.update(keypoints=[0] * 51, num_keypoints=0)
    short = copy.deepcopy(truth)
    for annotation in short["annotations"][::2]:
        del annotation["keypoints"], annotation["num_keypoints"]
    del short["annotations"][1]["num_keypoints"]
    assert_equal(evaluate(short, detections, "keypoints"), pycocotools_eval(truth, detections, "keypoints"))


def test_an_annotation_with_id_0_can_be_found() -> None:
    truth = _truth()
    truth["annotations"][0]["id"] = 0
    assert evaluate(truth, _detections()).figures["AP"] == pytest.approx(1.0)


def test_oracle_cases(oracles: dict[str, dict[str, Any]]) -> None:
    expected = oracles["coco.small_cases"]["expected"]
    for name, (boxes, found) in _oracle_cases().items():
        truth = {
            "images": [{"id": 1, "width": 640, "height": 640}],
            "annotations": [
                {"id": i, "image_id": 1, "bbox": box, "area": box[2] * box[3], "category_id": c, "iscrowd": crowd}
                for i, (box, c, crowd) in enumerate(boxes, 1)
            ],
            "categories": [{"id": 1, "name": "one"}, {"id": 2, "name": "two"}],
        }
        detections = [{"image_id": 1, "category_id": 1, "bbox": box, "score": score} for box, score in found]
        np.testing.assert_allclose(evaluate(truth, detections).stats, expected[name], atol=1e-5, err_msg=name)
    assert set(expected) == set(_oracle_cases())


def test_names_are_those_of_the_configuration() -> None:
    assert tuple(figure.name for figure in FIGURES["bbox"]) == MetricName.__args__  # type: ignore[attr-defined]


def _found_near(truth: dict[str, Any], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Detections near most of the real objects; their masks are the boxes."""
    found = []
    for annotation in truth["annotations"][::2]:
        x, y, width, height = (value + float(rng.normal(0, 2)) for value in annotation["bbox"])
        width, height = max(width, 1.0), max(height, 1.0)
        size = next(image for image in truth["images"] if image["id"] == annotation["image_id"])
        corners = [x, y, x + width, y, x + width, y + height, x, y + height]
        mask = masks.merge(masks.frPyObjects([corners], size["height"], size["width"]))
        keypoints = np.array(annotation.get("keypoints", [0] * 51)) + rng.normal(0, 2, 51)
        found.append(
            {
                "image_id": annotation["image_id"],
                "category_id": annotation["category_id"],
                "bbox": [x, y, width, height],
                "score": float(rng.choice([0.2, 0.5, 0.7])),
                "segmentation": {"size": mask["size"], "counts": mask["counts"].decode()},
                "keypoints": keypoints.tolist(),
            }
        )
    return found


def _oracle_cases() -> dict[str, tuple[list[Any], list[Any]]]:
    a, b = [100, 100, 100, 100], [300, 300, 100, 100]
    far = [500, 500, 50, 50]
    small, medium, large = [10, 10, 20, 20], [100, 100, 50, 50], [300, 300, 200, 200]
    crowd = [300, 300, 200, 200]
    return {
        "perfect_single": ([(a, 1, 0)], [(a, 0.9)]),
        "iou_0.75_single": ([(a, 1, 0)], [([100, 100, 100, 75], 0.9)]),
        "iou_0.7499": ([(a, 1, 0)], [([100, 100, 100, 74.99], 0.9)]),
        "one_of_two": ([(a, 1, 0), (b, 1, 0)], [(a, 0.9)]),
        "fp_first": ([(a, 1, 0)], [(far, 0.9), (a, 0.8)]),
        "fp_last": ([(a, 1, 0)], [(a, 0.9), (far, 0.8)]),
        "dup": ([(a, 1, 0)], [(a, 0.9), (a, 0.8)]),
        "crowd_ignored": ([(a, 1, 0), (crowd, 1, 1)], [([320, 320, 50, 50], 0.9), (a, 0.8)]),
        "two_classes_one_missed": ([(a, 1, 0), (b, 2, 0)], [(a, 0.9)]),
        "areas": ([(small, 1, 0), (medium, 1, 0), (large, 1, 0)], [(small, 0.9), (large, 0.8)]),
    }


def _truth() -> dict[str, Any]:
    return {
        "images": [{"id": 1, "width": 64, "height": 48}, {"id": 2, "width": 64, "height": 48}],
        "annotations": [{"id": 5, "image_id": 2, "category_id": 3, "bbox": [1, 2, 30, 20], "area": 600, "iscrowd": 0}],
        "categories": [{"id": 3, "name": "three"}],
    }


def _detections() -> list[dict[str, Any]]:
    return [{"image_id": 2, "category_id": 3, "bbox": [1.0, 2.0, 30.0, 20.0], "score": 0.5}]


def _with(path: tuple[Any, ...], value: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A good case with one value replaced, or removed where `value` is `...`."""
    case: dict[str, Any] = {"gt": _truth(), "dt": _detections()}
    node: Any = case
    for key in path[:-1]:
        node = node[key]
    if value is ...:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return case["gt"], case["dt"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("dt", 0, "image_id"), 9, r"detections: unknown image_id: detection 0 \(image 9\): 9\. .* no such image"),
        (("dt", 0, "category_id"), 4, r"detections: unknown category_id: detection 0 \(image 2\): 4\."),
        (("dt", 0, "bbox"), [1, 2, -3, 4], r"detections: negative width or height in bbox: detection 0 \(image 2\)"),
        (("dt", 0, "bbox"), [1, 2, float("nan"), 4], r"detections: bad bbox: detection 0 \(image 2\)"),
        (("dt", 0, "bbox"), [1, 2, 3], r"detections: bad bbox: .*four finite numbers"),
        (("dt", 0, "bbox"), ["1", "2", "3", "4"], r"detections: bad bbox"),
        (("dt", 0, "bbox"), ..., r"detections: bad bbox"),
        (("dt", 0, "score"), float("inf"), r"detections: bad score: detection 0 \(image 2\)\. .*finite number"),
        (("dt", 0, "score"), None, r"detections: bad score"),
        (("dt", 0, "score"), ..., r"detections: bad score"),
        (("dt", 0, "image_id"), ..., r"detections: bad image_id: detection 0\. "),
        (("dt", 0, "image_id"), "2", r"detections: bad image_id: detection 0 \(image '2'\)\. .*integer"),
        (("dt", 0, "image_id"), -2, r"detections: bad image_id: detection 0 \(image -2\)"),
        (("dt", 0), 7, r"detections: bad image_id: detection 0\."),
        (("gt", "annotations", 0, "image_id"), 9, r"ground truth: unknown image_id: annotation 5: 9\."),
        (("gt", "annotations", 0, "category_id"), 9, r"ground truth: unknown category_id: annotation 5: 9\."),
        (("gt", "annotations", 0, "bbox"), [1, 2, 3, -4], r"ground truth: negative width or height in bbox: annot.* 5"),
        (("gt", "annotations", 0, "area"), float("nan"), r"ground truth: bad area: annotation 5"),
        (("gt", "annotations", 0, "id"), ..., r"ground truth: bad id: annotation at position 0"),
        (("gt", "images", 1, "id"), 1, r"ground truth: an id is there more than once: image 1\."),
        (("gt", "categories", 0, "id"), "dog", r"ground truth: bad id: category 'dog'"),
        (("gt", "images"), ..., r"ground truth: not a COCO annotation file: no list images"),
        (("gt", "annotations"), {}, r"ground truth: not a COCO annotation file: no list annotations"),
    ],
)
def test_faults_of_entries(path: tuple[Any, ...], value: Any, message: str) -> None:
    truth, detections = _with(path, value)
    with pytest.raises(DataError, match=message):
        evaluate(truth, detections)


def test_many_faults_are_counted_and_the_first_named() -> None:
    detections = [{**_detections()[0], "score": float("nan")} for _ in range(9)]
    with pytest.raises(DataError, match=r"detection 4 \(image 2\) and 4 more\. "):
        evaluate(_truth(), detections)


@pytest.mark.parametrize(
    ("rows", "iou_type", "message"),
    [
        ([[2, 1, 2, 3, 4, 0.5, 3]], "segm", r"shape \[1, 7\] and type float64 for segm"),
        ([[2, 1, 2, 3, 4, 0.5]], "bbox", r"shape \[1, 6\]"),
        ([[9, 1, 2, 3, 4, 0.5, 3]], "bbox", r"unknown image_id: detection 0 \(image 9, category 3\)"),
        ([[2, 1, 2, 3, 4, 0.5, 8]], "bbox", r"unknown category_id: detection 0 \(image 2, category 8\)"),
        ([[2, 1, 2, 3, 4, np.inf, 3]], "bbox", r"not finite: detection 0"),
        ([[2, 1, 2, 3, -4, 0.5, 3]], "bbox", r"negative width or height: detection 0"),
    ],
)
def test_faults_of_rows(rows: list[list[float]], iou_type: str, message: str) -> None:
    truth = _truth()
    truth["annotations"][0]["segmentation"] = [[1, 2, 30, 2, 30, 20]]
    with pytest.raises(DataError, match=message):
        evaluate(truth, np.array(rows), iou_type)


@pytest.mark.parametrize(
    ("iou_type", "changes", "message"),
    [
        ("segm", {}, r"ground truth: no segmentation: annotation 5"),
        ("keypoints", {"keypoints": [1, 2, 2]}, r"ground truth: bad keypoints: annotation 5"),
        ("keypoints", {"keypoints": [1] * 51}, r"detections: bad keypoints: detection 0 \(image 2\)"),
        ("segm", {"segmentation": [[1, 2, 30, 2, 30, 20]]}, r"detections: no segmentation: detection 0"),
    ],
)
def test_faults_of_masks_and_keypoints(iou_type: str, changes: dict[str, Any], message: str) -> None:
    truth = _truth()
    truth["annotations"][0].update(changes)
    with pytest.raises(DataError, match=message):
        evaluate(truth, _detections(), iou_type)


def test_masks_need_image_sizes() -> None:
    truth = _truth()
    del truth["images"][0]["width"]
    with pytest.raises(DataError, match="no integer height and width: image 1"):
        evaluate(truth, [], "segm")


def test_what_the_engine_refuses_is_told() -> None:
    engine = MatchingEngine(_truth()["categories"], make_settings())
    with pytest.raises(DataError, match=r"ground truth: cannot be evaluated: .*height"):
        engine.add([{"id": 1, "height": "tall"}], [], [], where="ground truth")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"dt.json: cannot read the file: No such file"),
        ("[{", r"dt.json: not JSON: .*cut off"),
        ("{}", r"dt.json: not COCO results: expected a list of detections, not a dict"),
        ("3", r"dt.json: not COCO results: .* not a int"),
    ],
)
def test_faults_of_files(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "dt.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=message):
        evaluate(_truth(), path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"iou_type": "box"}, "iou_type 'box': choose one of bbox, segm, keypoints"),
        ({"max_dets": (1, 100)}, r"max_dets \(1, 100\): bbox takes 3 ascending"),
        ({"max_dets": (100, 10, 1)}, "ascending"),
        ({"max_dets": (5, 20), "iou_type": "keypoints"}, "keypoints takes 1 ascending"),
        ({"iou_thresholds": [0.5, 1.5]}, "above 0 and up to 1"),
        ({"area_ranges": {"small": (0, 1)}}, "a range named 'all'"),
    ],
)
def test_faults_of_parameters(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate(_truth(), _detections(), **arguments)
