"""The engine's batch side: what the analyses rely on."""

from typing import Any

import hotcoco
import numpy as np
import pytest
from pycocotools import mask as masks

from detection.analysis.bootstrap import resample
from detection.coco.engine import MatchingEngine
from detection.coco.engine.batch import FN, FP, IGNORED, MATCHED, TP, BatchEvaluation
from detection.coco.params import make_params
from schemas.errors import DataError
from schemas.metrics import METRIC_DEFINITIONS
from tests.detection.analysis.cases import detections_of, evaluated, ground_truth_of
from tests.detection.coco.generated_cases import SIDE, generate, pycocotools_eval


def test_detections_get_ids_in_the_order_given() -> None:
    ground_truth, detections = generate(0)
    loaded = hotcoco.COCO(ground_truth).load_res(detections)
    assert sorted(loaded.anns) == list(range(1, len(detections) + 1))
    for position, entry in enumerate(detections):
        result = loaded.anns[position + 1]
        assert [result[key] for key in ("image_id", "bbox", "score")] == [
            entry[key] for key in ("image_id", "bbox", "score")
        ]


@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
@pytest.mark.parametrize("seed", range(6))
def test_arrays_equal_those_of_streamed_images(seed: int, iou_type: str) -> None:
    model = evaluated(*generate(seed), make_params(iou_type))
    ground_truth = model.ground_truth
    engine = MatchingEngine(ground_truth.categories, model.params)
    engine.add(ground_truth.checked_images, ground_truth.annotations, model.detections.results, where="ground truth")
    for name in ("precision", "recall", "scores"):
        np.testing.assert_array_equal(getattr(model.arrays, name), getattr(engine.arrays(), name))


@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
@pytest.mark.parametrize("seed", range(10))
def test_the_diagnosis_is_pycocotools_matching(seed: int, iou_type: str) -> None:
    ground_truth, detections = generate(seed)
    model = evaluated(ground_truth, detections, make_params(iou_type))
    diagnosis = model.evaluation.diagnose(iou=0.75, score=0.5)
    evaluation = pycocotools_eval(ground_truth, detections, iou_type)
    # pycocotools numbers detections as they came, ours are ordered by image.
    order = np.argsort([entry["image_id"] for entry in detections], kind="stable")
    positions = {int(number) + 1: position for position, number in enumerate(order)}
    annotations = {entry["id"]: position for position, entry in enumerate(model.ground_truth.annotations)}
    statuses = np.full(len(detections), IGNORED)
    expected, matches = np.full(len(annotations), IGNORED), np.full(len(annotations), -1)
    for entry in evaluation.evalImgs:
        if entry is None or entry["aRng"] != evaluation.params.areaRng[0]:
            continue
        for number, match, ignored in zip(entry["dtIds"], entry["dtMatches"][5], entry["dtIgnore"][5], strict=True):
            if not ignored:
                statuses[positions[number]] = TP if match else FP
        for number, match, ignored in zip(entry["gtIds"], entry["gtMatches"][5], entry["gtIgnore"], strict=True):
            if not ignored:
                expected[annotations[number]] = MATCHED if match else FN
                matches[annotations[number]] = positions[match] if match else -1
    np.testing.assert_array_equal(diagnosis.detections, statuses)
    np.testing.assert_array_equal(diagnosis.annotations, expected)
    np.testing.assert_array_equal(diagnosis.matches, matches)


@pytest.mark.parametrize("kind", ["polygons", "runs", "compressed", "keypoints"])
def test_results_without_boxes_get_those_of_pycocotools(kind: str) -> None:
    """Boxes, areas and resampled metrics are those that `loadRes` and COCOeval have of the same masks or keypoints."""
    iou_type = "keypoints" if kind == "keypoints" else "segm"
    ground_truth, detections = generate(11)
    given, references = zip(*(_without_box(entry, kind) for entry in detections), strict=True)
    loaded = pycocotools_eval(ground_truth, list(references), iou_type)
    model = evaluated(ground_truth, list(given), make_params(iou_type))
    order = np.argsort([entry["image_id"] for entry in detections], kind="stable")
    expected = [loaded.cocoDt.anns[number + 1] for number in order.tolist()]
    np.testing.assert_array_equal(model.geometry.boxes, [entry["bbox"] for entry in expected])
    np.testing.assert_array_equal(model.geometry.areas, [entry["area"] for entry in expected])
    metrics = resample(model, np.ones((1, len(ground_truth["images"])), np.uint8)).metrics
    ours = [-1.0 if np.isnan(values[0]) else values[0] for values in metrics.values()]
    np.testing.assert_allclose(ours, loaded.stats, rtol=0, atol=1e-12)


def _without_box(detection: dict[str, Any], kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A result without `bbox`, and one of the same shape that `loadRes` takes."""
    kept = {key: detection[key] for key in ("image_id", "category_id", "score")}
    if kind == "keypoints":
        entry = {**kept, "keypoints": detection["keypoints"]}
        return entry, entry
    x, y, width, height = detection["bbox"]
    polygon = [x, y, x + width, y + 0.3 * height, x + 0.4 * width, y + height]
    mask = masks.merge(masks.frPyObjects([polygon], SIDE, SIDE))
    text = {"size": mask["size"], "counts": mask["counts"].decode()}
    runs = np.diff(np.flatnonzero(np.diff(masks.decode(mask).ravel(order="F"), prepend=0, append=2)), prepend=0)
    shapes = {"polygons": [polygon], "compressed": text, "runs": {"size": mask["size"], "counts": runs.tolist()}}
    return {**kept, "segmentation": shapes[kind]}, {**kept, "segmentation": text}


def test_detections_beyond_the_best_are_ignored() -> None:
    box = [10.0, 10.0, 30.0, 30.0]
    given = detections_of(*[(1, 1, box, score) for score in (0.5, 0.9, 0.7, 0.8)])
    model = evaluated(ground_truth_of((1, 1, box)), given, make_params(max_dets=(1, 2, 3)))
    statuses = model.evaluation.diagnose(iou=0.5, score=0.0).detections
    assert statuses.tolist() == [IGNORED, TP, FP, FP]


@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
@pytest.mark.parametrize("seed", range(4))
def test_overlaps_equal_pycocotools(seed: int, iou_type: str) -> None:
    ground_truth, detections = generate(seed)
    model = evaluated(ground_truth, detections, make_params(iou_type))
    evaluation = pycocotools_eval(ground_truth, detections, iou_type)
    for position, image in enumerate(model.ground_truth.images):
        for number, category in enumerate(model.ground_truth.categories):
            theirs = np.flatnonzero((model.detections.image == position) & (model.detections.category == number))
            here = np.flatnonzero((model.ground_truth.image == position) & (model.ground_truth.category == number))
            expected = np.asarray(evaluation.ious[image["id"], category["id"]])
            overlaps = model.geometry.overlaps(theirs, here)
            assert overlaps.shape == (len(theirs), len(here))
            if expected.size:
                falling = np.argsort(-model.detections.scores[theirs], kind="stable")
                np.testing.assert_allclose(overlaps[falling], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_objects_with_few_or_no_keypoints(seed: int) -> None:
    ground_truth, detections = generate(seed)
    for number, entry in enumerate(ground_truth["annotations"]):
        hidden = (0, 17, 9)[number % 3]
        entry["keypoints"][2 : 3 * hidden : 3] = [0] * hidden
        entry["num_keypoints"] = 17 - hidden
    model = evaluated(ground_truth, detections, make_params("keypoints"))
    reference = pycocotools_eval(ground_truth, detections, "keypoints")
    metrics = resample(model, np.ones((1, len(ground_truth["images"])), np.uint8)).metrics
    values = np.array([values[0] for values in metrics.values()])
    np.testing.assert_allclose(np.nan_to_num(values, nan=-1.0), reference.stats, rtol=0, atol=1e-12)
    for cell, overlaps in reference.ious.items():
        here = [entry for entry in model.ground_truth.annotations if (entry["image_id"], entry["category_id"]) == cell]
        theirs = [entry for entry in detections if (entry["image_id"], entry["category_id"]) == cell]
        if not here or not theirs:
            continue
        annotations = [model.ground_truth.annotations.index(entry) for entry in here]
        rows = [model.detections.results.index(entry) for entry in theirs]  # type: ignore[union-attr]
        falling = np.argsort([-entry["score"] for entry in theirs], kind="stable")
        mine = model.geometry.overlaps(np.array(rows), np.array(annotations))
        np.testing.assert_allclose(mine[falling], overlaps, rtol=0, atol=1e-12)


@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
def test_areas_of_detections_are_pycocotools(iou_type: str) -> None:
    ground_truth, detections = generate(1)
    keys = {"bbox": "bbox", "segm": "segmentation", "keypoints": "keypoints"}
    bare = [{key: one[key] for key in ("image_id", "category_id", "score", keys[iou_type])} for one in detections]
    model = evaluated(ground_truth, bare, make_params(iou_type))
    order = np.argsort([entry["image_id"] for entry in bare], kind="stable")
    loaded = pycocotools_eval(ground_truth, bare, iou_type).cocoDt.anns
    np.testing.assert_allclose(model.geometry.areas, [loaded[int(i) + 1]["area"] for i in order])
    np.testing.assert_allclose(model.geometry.boxes, [loaded[int(i) + 1]["bbox"] for i in order])


def test_what_the_engine_refuses_is_told() -> None:
    ground_truth = ground_truth_of((1, 1, [0.0, 0.0, 9.0, 9.0]))
    rows = [{"image_id": 1, "category_id": 1, "bbox": "x", "score": 0.5}]
    with pytest.raises(DataError, match=r"detections: cannot be evaluated: .* Correct them"):
        BatchEvaluation(ground_truth["images"], [], ground_truth["categories"], rows, make_params())
