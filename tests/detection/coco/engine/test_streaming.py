"""Memory of an evaluation: bounded, or refused before it starts; the metrics stay those of pycocotools."""

import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest

from detection.analysis.analyse import analyse
from detection.coco import evaluate
from detection.coco.engine import streaming
from detection.coco.params import make_params
from detection.coco.validation.entry_types import BoxAnnotation
from detection.datasets.annotations.entry_rules import convert_all
from schemas.errors import DataError
from schemas.metrics import METRIC_DEFINITIONS
from tests.detection.coco.awkward_cases import awkward_case, reference
from tests.detection.coco.generated_cases import generate, pycocotools_eval

_CROWDED = """
import resource, numpy as np
from detection.coco import evaluate
rng = np.random.default_rng(0)
boxes = rng.uniform(1, 90, (2000, 4))
annotations = [
    {"id": number, "image_id": 1, "category_id": 1, "bbox": box, "area": 100.0, "iscrowd": 0}
    for number, box in enumerate(boxes.tolist(), 1)
]
ones, scores = np.ones((60_000, 1)), rng.random((60_000, 1))
rows = np.hstack([ones, rng.uniform(1, 90, (60_000, 4)), scores, ones])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
evaluate({"images": [{"id": 1}], "annotations": annotations, "categories": [{"id": 1}]}, rows)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_crowded_image_takes_no_more_than_its_best_detections() -> None:
    """Overlaps of all its detections would be 2,000 x 60,000 x 8 bytes: 960 MB."""
    done = subprocess.run([sys.executable, "-c", _CROWDED], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 150_000, "kilobytes"


@pytest.mark.parametrize("use_cats", [True, False])
@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
def test_the_best_detections_are_those_of_pycocotools(iou_type: str, use_cats: bool) -> None:
    """Many more than `max_dets`, with equal scores within and across categories."""
    if iou_type == "keypoints" and not use_cats:
        pytest.skip("pycocotools matches no keypoints without categories")
    for seed in range(8):
        ground_truth, detections = generate(seed)
        many = [entry for entry in detections for _ in range(5)]
        most = (3,) if iou_type == "keypoints" else (1, 2, 4)
        metrics = evaluate(ground_truth, many, iou_type, max_dets=most, use_cats=use_cats)
        expected = pycocotools_eval(ground_truth, many, iou_type, maxDets=list(most), useCats=int(use_cats)).eval
        for name in ("precision", "recall", "scores"):
            np.testing.assert_allclose(getattr(metrics, name), expected[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_categories_and_pairs_in_groups_give_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_CATEGORIES", 1 + seed % 3)
    monkeypatch.setattr(streaming, "PAIRS_AT_ONCE", 1 + 3 * seed)
    iou_type = list(METRIC_DEFINITIONS)[seed % 3]
    case = awkward_case(seed, iou_type)
    metrics = evaluate(case.ground_truth, case.detections, iou_type, **case.params)
    expected = reference(case, iou_type).eval
    for name in ("precision", "recall", "scores"):
        np.testing.assert_allclose(getattr(metrics, name), expected[name], rtol=0, atol=1e-12)


def test_too_many_pairs_in_an_image_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    box = [1.0, 1.0, 5.0, 5.0]
    annotations = [
        {"id": number, "image_id": 7 + number % 2, "category_id": 1 + number % 3, "bbox": box, "iscrowd": 0}
        for number in range(60)
    ]
    ground_truth = {
        "images": [{"id": 7}, {"id": 8}],
        "annotations": annotations,
        "categories": [{"id": 1}, {"id": 2}, {"id": 3}],
    }
    many = [{"image_id": 8, "category_id": 1 + number % 3, "bbox": box, "score": 0.5} for number in range(90)]
    monkeypatch.setattr(streaming, "PAIRS_AT_ONCE", 1)
    monkeypatch.setattr(streaming, "MOST_PAIRS", 30 * 90)
    assert evaluate(ground_truth, many, use_cats=False).by_name["AP"] > 0
    monkeypatch.setattr(streaming, "MOST_PAIRS", 30 * 90 - 1)
    with pytest.raises(DataError, match=r"image 8 has 2,700 pairs .*0\.0 GiB.* Lower --max-dets"):
        evaluate(ground_truth, many, use_cats=False)
    # Pairs of one category alone are compared: a third of 30 objects, a third of 90 detections, three times.
    monkeypatch.setattr(streaming, "MOST_PAIRS", 3 * 10 * 30)
    assert evaluate(ground_truth, many).by_name["AP"] > 0
    monkeypatch.setattr(streaming, "MOST_PAIRS", 3 * 10 * 30 - 1)
    with pytest.raises(DataError, match="image 8 has 900 pairs"):
        evaluate(ground_truth, many)


def test_too_many_categories_are_refused_before_anything_is_made() -> None:
    ground_truth: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": number} for number in range(100_000)],
    }
    tracemalloc.start()
    with pytest.raises(DataError, match=r"100000 categories: .* 18\.1 GiB .* at most 16529 categories .*--no-cats"):
        evaluate(ground_truth, [])
    with pytest.raises(DataError, match=r"100000 categories: an analysis .* more than 3\. Evaluate without analysis"):
        analyse(ground_truth, [], params=make_params())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20
    assert evaluate(ground_truth, [], use_cats=False).precision.shape == (10, 101, 1, 4, 3)


def test_one_long_text_takes_no_memory_for_all_values() -> None:
    values: list[Any] = [
        {"id": number, "image_id": 1, "category_id": 1, "area": 0.5, "bbox": [1.0, 2.0, 3.0, 4.0]}
        for number in range(20_000)
    ]
    tracemalloc.start()
    for change in ({"id": "x" * 20_000}, {"area": "y" * 20_000}, {"bbox": [1.0, 2.0, "z" * 20_000, 4.0]}):
        assert convert_all([*values[:7], {**values[7], **change}, *values[8:]], BoxAnnotation) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20


def test_messages_cut_values_short() -> None:
    detections = [{"image_id": "x\x1b[2J" * 10_000, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}]
    with pytest.raises(DataError) as caught:
        evaluate({"images": [{"id": 1}], "annotations": [], "categories": [{"id": 1}]}, detections)
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()
