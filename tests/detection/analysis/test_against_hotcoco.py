"""The bootstrap of hotcoco, whose engine ours is: where the two differ."""

from typing import Any

import hotcoco
import numpy as np
import pytest

from detection.analysis.bootstrap import draw_images, resample
from detection.analysis.evaluated import Evaluated
from detection.coco.engine.streaming import engine_parameters
from tests.detection.analysis.cases import evaluated
from tests.detection.analysis.test_bootstrap import recall_case


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
