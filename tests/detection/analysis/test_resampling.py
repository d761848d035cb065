"""Resampled figures are those of pycocotools for a data set in which images are there several times."""

import json
from pathlib import Path

import numpy as np
import pytest

from detection.analysis.resampling import draw_images
from detection.coco.evaluation import evaluate
from detection.coco.metrics import METRIC_DEFINITIONS, UNDEFINED, metric_definitions_of
from detection.coco.params import FloatArray, make_params
from tests.detection.analysis.cases import evaluated, found_of, lvis_case, ranked, repeated, truth_of
from tests.detection.coco.generated_cases import found_near, generate, pycocotools_eval


def assert_equal(values: FloatArray, expected: FloatArray | list[float]) -> None:
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-12)


def as_stats(figures: dict[str, FloatArray], replicate: int) -> FloatArray:
    values = np.array([values[replicate] for values in figures.values()])
    return np.where(np.isnan(values), UNDEFINED, values)


@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
@pytest.mark.parametrize("seed", range(12))
def test_each_image_once_gives_the_figures_of_pycocotools(seed: int, iou_type: str) -> None:
    truth, detections = generate(seed)
    model = evaluated(truth, detections, make_params(iou_type))
    found = model.resampled(np.ones((1, len(truth["images"])), np.uint8)).figures
    reference = pycocotools_eval(truth, detections, iou_type)
    assert_equal(as_stats(found, 0), reference.stats)


@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
@pytest.mark.parametrize("seed", range(100, 106))
def test_images_drawn_several_times_count_several_times(seed: int, iou_type: str) -> None:
    truth, detections = generate(seed)
    detections = ranked(detections)
    ids = sorted(image["id"] for image in truth["images"])
    draws = draw_images(len(ids), 4, seed)
    found = evaluated(truth, detections, make_params(iou_type)).resampled(draws)
    for replicate, draw in enumerate(draws.tolist()):
        again = repeated(truth, detections, dict(zip(ids, draw, strict=True)))
        reference = pycocotools_eval(*again, iou_type)
        assert_equal(as_stats(found.figures, replicate), reference.stats)
        precision = reference.eval["precision"][:, :, :, 0, -1].mean(axis=(0, 1))
        categories = np.nan_to_num(found.categories[:, replicate], nan=UNDEFINED)
        assert_equal(categories, precision)


@pytest.mark.parametrize("first", [0, 1])
def test_of_objects_that_overlap_equally_the_last_is_taken(first: int) -> None:
    boxes = [[0.0, 0.0, 10.0, 10.0], [4.0, 0.0, 10.0, 10.0]]
    truth = truth_of((1, 1, boxes[first]), (1, 1, boxes[1 - first]))
    # The first lies between the two; the second fits one of them alone.
    detections = found_of((1, 1, [2.0, 0.0, 10.0, 10.0], 0.9), (1, 1, boxes[0], 0.8))
    found = evaluated(truth, detections).resampled(np.ones((1, 1), np.uint8)).figures
    assert_equal(as_stats(found, 0), pycocotools_eval(truth, detections).stats)
    assert found["AP50"][0] == pytest.approx(51 / 101 if first else 1.0)


@pytest.mark.parametrize(
    ("iou_type", "file"),
    [("bbox", "instances_val.json"), ("segm", "instances_val.json"), ("keypoints", "person_keypoints_val.json")],
)
def test_real_annotations(shared_data: Path, iou_type: str, file: str) -> None:
    truth = json.loads((shared_data / "coco2017_ccby" / file).read_text())
    detections = ranked(found_near(truth, np.random.default_rng(0)))
    ids = sorted(image["id"] for image in truth["images"])
    draws = draw_images(len(ids), 2, 0)
    found = evaluated(truth, detections, make_params(iou_type)).resampled(draws).figures
    for replicate, draw in enumerate(draws.tolist()):
        again = repeated(truth, detections, dict(zip(ids, draw, strict=True)))
        assert_equal(as_stats(found, replicate), pycocotools_eval(*again, iou_type).stats)


@pytest.mark.parametrize("seed", range(200, 206))
def test_own_settings(seed: int) -> None:
    truth, detections = generate(seed)
    # All but exact: COCOeval lets an IoU of 1 be reached from 1 - 1e-10 on.
    for entry in truth["annotations"][::3]:
        x, y, width, height = entry["bbox"]
        detections.append({**entry, "bbox": [x, y, width, height * (1 - 1e-12)], "score": 0.95})
    params = make_params(
        max_dets=(1, 2, 3),
        iou_thresholds=(0.3, 0.5, 1.0),
        area_ranges={"all": (0, 1e10), "thin": (0, 700), "none": (1, 2)},
    )
    found = evaluated(truth, detections, params).resampled(np.ones((1, len(truth["images"])), np.uint8)).figures
    metrics = evaluate(
        truth,
        detections,
        max_dets=params.max_dets,
        iou_thresholds=params.iou_thresholds,
        area_ranges=params.area_ranges,
    )
    assert list(found) == list(metrics.by_name)
    assert_equal(as_stats(found, 0), list(metrics.by_name.values()))


@pytest.mark.parametrize("most", [300, 5])
@pytest.mark.parametrize("seed", range(300, 306))
def test_lvis(seed: int, most: int) -> None:
    truth, detections = lvis_case(seed)
    detections = ranked(detections)
    params = make_params(lvis=True, max_dets=(most,))
    ids = sorted(image["id"] for image in truth["images"])
    draws = draw_images(len(ids), 3, seed)
    found = evaluated(truth, detections, params).resampled(draws).figures
    assert list(found) == [figure.name for figure in metric_definitions_of(params)]
    for replicate, draw in enumerate(draws.tolist()):
        again = repeated(truth, detections, dict(zip(ids, draw, strict=True)))
        metrics = evaluate(*again, lvis=True, max_dets=(most,))
        assert_equal(as_stats(found, replicate), list(metrics.by_name.values()))


def test_many_replicates_are_summed_up_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, detections = generate(7)
    model = evaluated(truth, detections)
    draws = draw_images(len(truth["images"]), 50, 0)
    whole = model.resampled(draws)
    monkeypatch.setattr("detection.analysis.resampling._BLOCK", 20)
    blocks = model.resampled(draws)
    for name, values in whole.figures.items():
        np.testing.assert_array_equal(blocks.figures[name], values)
    np.testing.assert_array_equal(blocks.categories, whole.categories)


def test_draws_are_of_as_many_images_and_differ_by_seed() -> None:
    draws = draw_images(40, 30, 3)
    assert draws.shape == (30, 40)
    assert set(draws.sum(axis=1)) == {40}
    assert len({tuple(draw) for draw in draws.tolist()}) == 30
    # A share of 1/e is left out of each draw.
    assert 0.3 < (draws == 0).mean() < 0.44
    np.testing.assert_array_equal(draw_images(40, 30, 3), draws)
    assert not np.array_equal(draw_images(40, 30, 4), draws)
