"""Analyses of our own against those that hotcoco has of the same kind, and where the two differ."""

from typing import Any

import hotcoco
import numpy as np
import pytest

from detection.analysis.bootstrap import draw_images, resample
from detection.analysis.categories import mean_curves
from detection.analysis.comparison import compare_detections
from detection.analysis.error_analysis import Gallery
from detection.analysis.evaluated import Evaluated
from detection.coco.engine.streaming import engine_parameters
from detection.coco.metrics import UNDEFINED
from detection.coco.params import make_params
from schemas.config.evaluate import AnalysisConfig
from schemas.metrics import METRIC_DEFINITIONS
from tests.detection.analysis.cases import evaluated
from tests.detection.analysis.test_bootstrap import recall_case
from tests.detection.coco.generated_cases import generate

IOU_TYPES = pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)


def hotcoco_eval(model: Evaluated) -> Any:
    """A finished evaluation by hotcoco itself."""
    ground_truth = model.ground_truth
    loaded = hotcoco.COCO(
        {"images": ground_truth.images, "annotations": ground_truth.annotations, "categories": ground_truth.categories}
    )
    results: Any = model.detections.results
    evaluation = hotcoco.COCOeval(loaded, loaded.load_res(results), model.params.iou_type)
    evaluation.params = engine_parameters(model.params, [])
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summary_lines()
    return evaluation


@IOU_TYPES
@pytest.mark.parametrize("seed", range(4))
def test_replicates_without_repeated_images_equal_its_slices(seed: int, iou_type: str) -> None:
    model = evaluated(*generate(seed), make_params(iou_type))
    ids = [image["id"] for image in model.ground_truth.images]
    draws = np.minimum(draw_images(len(ids), 5, seed), 1)
    slices = {str(number): np.array(ids)[draw == 1].tolist() for number, draw in enumerate(draws)}
    metrics = resample(model, draws).metrics
    for name, expected in hotcoco_eval(model).slice_by(slices).items():
        if name in slices:
            values = {
                metric: float(np.nan_to_num(value[int(name)], nan=UNDEFINED)) for metric, value in metrics.items()
            }
            assert values == pytest.approx({metric: expected[metric] for metric in metrics}, abs=1e-12)


@IOU_TYPES
@pytest.mark.parametrize("seed", range(4))
def test_differences_equal_its_comparison(seed: int, iou_type: str) -> None:
    ground_truth, detections = generate(seed)
    params = make_params(iou_type)
    a, b = detections[::2], detections[1:]
    ours = compare_detections(ground_truth, a, b, params=params, options=AnalysisConfig(replicates=0))
    theirs = hotcoco.compare(*(hotcoco_eval(evaluated(ground_truth, one, params)) for one in (a, b)))
    assert {name: change.a for name, change in ours.metrics.items()} == pytest.approx(theirs["metrics_a"])
    assert {name: change.b for name, change in ours.metrics.items()} == pytest.approx(theirs["metrics_b"])
    categories = {one.id: one.metrics["AP"] for one in ours.categories if one.metrics["AP"].difference is not None}
    changes = {one["cat_id"]: one for one in theirs["per_category"]}
    for key in ("a", "b"):
        expected = {identity: one[f"ap_{key}"] for identity, one in changes.items()}
        assert {identity: getattr(change, key) for identity, change in categories.items()} == pytest.approx(expected)


def test_its_intervals_are_too_narrow() -> None:
    """Why the bootstrap is our own: hotcoco counts an image once that is drawn twice."""
    ground_truth, detections = recall_case(400, 0.6)
    model = evaluated(ground_truth, detections)
    nothing = evaluated(ground_truth, [])
    theirs = hotcoco.compare(hotcoco_eval(nothing), hotcoco_eval(model), n_bootstrap=2000)["ci"]["AR100"]
    draws = draw_images(400, 2000, 0)

    def width(weights: Any) -> float:
        low, high = np.quantile(resample(model, weights).metrics["AR100"], [0.025, 0.975])
        return float(high - low)

    narrow = theirs["upper"] - theirs["lower"]
    assert narrow == pytest.approx(width(np.minimum(draws, 1)), rel=0.1)
    assert narrow < 0.85 * width(draws)


@IOU_TYPES
@pytest.mark.parametrize("seed", range(4))
def test_curves_and_counts_of_images_equal_its_report_and_diagnostics(seed: int, iou_type: str) -> None:
    model = evaluated(*generate(seed), make_params(iou_type))
    evaluation = hotcoco_eval(model)
    curves = evaluation.report()["curves"]
    ours = mean_curves(model)
    for name in ("0.50", "0.75"):
        np.testing.assert_allclose(ours[name], curves[f"pr@{name}"], rtol=0, atol=1e-12)
    options = AnalysisConfig(score=0.0)
    gallery = Gallery(model, model.diagnosis(options), options)
    summary = evaluation.image_diagnostics(0.5, 0.0)["img_summary"]
    counts = zip(gallery.tp.tolist(), gallery.fp.tolist(), gallery.fn.tolist(), strict=True)
    for image, expected in zip(model.ground_truth.images, counts, strict=True):
        one = summary.get(image["id"], {"tp": 0, "fp": 0, "fn": 0})
        assert (one["tp"], one["fp"], one["fn"]) == expected
