"""Size buckets against pycocotools with the same area ranges."""

import contextlib
import io

import numpy as np
import pytest

from detection.analysis.findings import SizeBucket
from detection.analysis.sizes import size_buckets
from detection.coco.params import make_params
from tests.detection.analysis.cases import evaluated, found_of, truth_of
from tests.detection.coco.generated_cases import generate, pycocotools_eval

EDGES = (0, 16, 32, 64, 96, 128, 256, 512)


def buckets(seed: int, iou_type: str) -> list[SizeBucket]:
    model = evaluated(*generate(seed), make_params(iou_type))
    return size_buckets(model.objects, model.found, model.params)


@pytest.mark.parametrize("iou_type", ["bbox", "segm", "keypoints"])
@pytest.mark.parametrize("seed", range(4))
def test_figures_equal_pycocotools(seed: int, iou_type: str) -> None:
    truth, detections = generate(seed)
    found = buckets(seed, iou_type)
    assert [(bucket.low, bucket.high) for bucket in found] == list(zip(EDGES, (*EDGES[1:], 0), strict=True))
    recall_name = "AR" if iou_type == "keypoints" else "AR100"
    for bucket in found:
        # Areas here are never a whole number, so that both ends of a range may belong to it.
        limits = [bucket.low**2, bucket.high**2 or 1e10]
        evaluation = pycocotools_eval(truth, detections, iou_type)
        evaluation.params.areaRng = [limits]
        with contextlib.redirect_stdout(io.StringIO()):
            evaluation.evaluate()
            evaluation.accumulate()
        precision, recall = evaluation.eval["precision"][..., 0, -1], evaluation.eval["recall"][..., 0, -1]
        objects = sum(not one["iscrowd"] and limits[0] <= one["area"] < limits[1] for one in truth["annotations"])
        assert bucket.objects == objects
        for name, values in (("AP", precision), ("AP50", precision[0]), (recall_name, recall)):
            defined = values[values > -1]
            assert bucket.figures[name] == pytest.approx(defined.mean() if objects else -1, abs=1e-12)
        assert list(bucket.figures) == ["AP", "AP50", recall_name]


def test_an_object_is_in_one_bucket() -> None:
    sides = (15.999, 16.0, 32.0, 96.0, 600.0)
    truth = truth_of(*[(number + 1, 1, [0.0, 0.0, side, side]) for number, side in enumerate(sides)], images=5)
    found = found_of(*[(one["image_id"], 1, one["bbox"], 0.9) for one in truth["annotations"]])
    model = evaluated(truth, found)
    rows = size_buckets(model.objects, model.found, model.params)
    assert [row.objects for row in rows] == [1, 1, 1, 0, 1, 0, 0, 1]
    assert [row.figures["AR100"] for row in rows] == [1, 1, 1, -1, 1, -1, -1, 1]


def test_without_anything() -> None:
    model = evaluated({"images": [], "annotations": [], "categories": []}, [])
    rows = size_buckets(model.objects, model.found, model.params)
    assert {row.objects for row in rows} == {0}
    assert np.unique([list(row.figures.values()) for row in rows]) == [-1]
