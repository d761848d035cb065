"""`analyse` as a whole: order, samples, baselines, empty input, refusals."""

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from detection.analysis.analyse import analyse
from detection.analysis.analysis_file import ImageSample
from detection.analysis.comparison import compare_detections
from detection.analysis.instances import sample_ids, sample_rank
from detection.coco.evaluation import evaluate
from detection.coco.params import make_params
from schemas.config.evaluate import AnalysisConfig
from schemas.errors import ConfigError, DataError
from schemas.metrics import METRIC_DEFINITIONS
from tests.detection.analysis.cases import lvis_case
from tests.detection.coco.generated_cases import generate

QUICK = AnalysisConfig(replicates=20)


def shuffled(entries: list[dict[str, Any]], seed: int, key: str) -> list[dict[str, Any]]:
    """The entries with images in another order; within an image they stay."""
    order = np.random.default_rng(seed).permutation(1000)
    return sorted(entries, key=lambda entry: int(order[entry[key] % 1000]))


@pytest.mark.parametrize("iou_type", [*METRIC_DEFINITIONS, "lvis"])
@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_images_makes_no_difference(seed: int, iou_type: str) -> None:
    lvis = iou_type == "lvis"
    ground_truth, detections = lvis_case(seed) if lvis else generate(seed)
    params = make_params(lvis=True, max_dets=(5,)) if lvis else make_params(iou_type)
    again = {
        "images": shuffled(ground_truth["images"], seed, "id"),
        "annotations": shuffled(ground_truth["annotations"], seed, "image_id"),
        "categories": ground_truth["categories"][::-1],
    }
    first = analyse(ground_truth, detections, params=params, baseline=detections[::2], options=QUICK)
    second = analyse(
        again,
        shuffled(detections, seed, "image_id"),
        params=params,
        baseline=shuffled(detections[::2], seed + 1, "image_id"),
        options=QUICK,
    )
    assert first == second
    assert first.differences


def test_rows_equal_entries() -> None:
    ground_truth, detections = generate(4)
    rows = np.array([[d["image_id"], *d["bbox"], d["score"], d["category_id"]] for d in detections])
    params = make_params()
    analysis = analyse(ground_truth, rows, params=params, options=QUICK)
    assert analysis == analyse(ground_truth, detections, params=params, options=QUICK)
    assert analysis.metrics == evaluate(ground_truth, detections).by_name
    assert analysis.sample == ImageSample(10, 10, 0)


def test_input_stays_and_the_result_is_plain() -> None:
    ground_truth, detections = generate(5)
    before = json.dumps([ground_truth, detections])
    analysis = analyse(ground_truth, detections, params=make_params(), options=QUICK)
    assert json.dumps([ground_truth, detections]) == before
    assert json.loads(json.dumps(asdict(analysis), allow_nan=False))["iou_type"] == "bbox"


@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
def test_a_baseline(iou_type: str) -> None:
    ground_truth, detections = generate(6)
    params = make_params(iou_type)
    analysis = analyse(ground_truth, detections, params=params, baseline=detections[::2], options=QUICK)
    alone = analyse(ground_truth, detections, params=params, options=QUICK)
    assert analysis.baseline_metrics == evaluate(ground_truth, detections[::2], iou_type).by_name
    assert analysis.differences["AP"].value == pytest.approx(analysis.metrics["AP"] - analysis.baseline_metrics["AP"])
    assert alone.baseline_metrics == alone.differences == {}
    compared = compare_detections(ground_truth, detections[::2], detections, params=params, options=QUICK)
    told = {one.id: one.metrics["AP"].interval for one in compared.categories}
    assert {one.id: one.ap_difference for one in analysis.categories} == told
    assert any(told.values())
    rows = [replace(category, baseline_metrics={}, ap_difference=None) for category in analysis.categories]
    assert replace(analysis, baseline_metrics={}, differences={}, categories=rows) == alone


def test_of_many_images_a_sample_is_analysed() -> None:
    ground_truth, detections = generate(7)
    options = QUICK.model_copy(update={"images": 4, "seed": 3})
    analysis = analyse(ground_truth, detections, params=make_params(), baseline=detections[::2], options=options)
    kept = sample_ids([image["id"] for image in ground_truth["images"]], 4, 3)
    part = {
        **ground_truth,
        "images": [image for image in ground_truth["images"] if image["id"] in kept],
        "annotations": [entry for entry in ground_truth["annotations"] if entry["image_id"] in kept],
    }
    theirs = [entry for entry in detections if entry["image_id"] in kept]
    before = [entry for entry in detections[::2] if entry["image_id"] in kept]
    alone = analyse(part, theirs, params=make_params(), baseline=before, total_images=10, options=options)
    assert analysis.sample == alone.sample == ImageSample(4, 10, 3)
    # The metrics are those of all images, everything else is the sample's.
    assert analysis.metrics == evaluate(ground_truth, detections).by_name
    assert analysis.baseline_metrics == evaluate(ground_truth, detections[::2]).by_name
    assert alone.metrics != analysis.metrics
    assert replace(alone, metrics=analysis.metrics, baseline_metrics=analysis.baseline_metrics) == analysis


def test_samples_are_stable() -> None:
    ids = list(range(1000, 1200))
    chosen = sample_ids(ids, 50, 1)
    assert chosen == sorted(chosen) == sample_ids(ids[::-1], 50, 1)
    assert len(chosen) == 50
    assert chosen != sample_ids(ids, 50, 2)
    assert sample_ids(ids[:20], 50, 1) == ids[:20]
    # One more image takes the place of at most one.
    assert len(set(chosen) - set(sample_ids([*ids, 5], 50, 1))) <= 1
    assert sample_rank(1, 0) == 0xEF134F2A180BA05D  # printf 0:1 | sha256sum
    assert {0 <= sample_rank(image_id, 0) < 2**64 for image_id in ids} == {True}


@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
@pytest.mark.parametrize("lacking", ["detections", "annotations", "images", "categories"])
def test_empty_input_is_a_valid_answer(lacking: str, iou_type: str) -> None:
    ground_truth, detections = generate(8)
    if lacking in ("images", "categories"):
        ground_truth = {**ground_truth, "annotations": [], lacking: []}
    elif lacking == "annotations":
        ground_truth = {**ground_truth, "annotations": []}
    if lacking != "annotations":
        detections = []
    analysis = analyse(ground_truth, detections, params=make_params(iou_type), baseline=[], options=QUICK)
    if lacking == "detections":
        assert analysis.metrics["AP"] == 0.0
        assert analysis.intervals["AP"].high == 0.0
        assert analysis.errors[-1].count == sum(category.ground_truth for category in analysis.categories)
    else:
        assert set(analysis.metrics.values()) == {-1.0}
        assert analysis.intervals == analysis.differences == {}
    assert analysis.calibration is None or detections
    json.dumps(asdict(analysis), allow_nan=False)


def test_objects_with_id_0_are_told_apart() -> None:
    ground_truth, detections = generate(9)
    params = make_params()
    plain = analyse(ground_truth, detections, params=params, options=QUICK)
    ground_truth["annotations"] = [{**entry, "id": entry["id"] - 1} for entry in ground_truth["annotations"]]
    assert analyse(ground_truth, detections, params=params, options=QUICK) == plain


def test_large_ids() -> None:
    ground_truth, detections = generate(10)
    plain = analyse(ground_truth, detections, params=make_params(), options=QUICK)
    offset = 2**52
    for image in ground_truth["images"]:
        image["id"] += offset
    for number, entry in enumerate(ground_truth["annotations"]):
        entry.update(image_id=entry["image_id"] + offset, id=offset - number)
    for entry in detections:
        entry["image_id"] += offset
    analysis = analyse(ground_truth, detections, params=make_params(), options=QUICK)
    assert analysis.worst[0].image_id == plain.worst[0].image_id + offset
    assert replace(analysis, worst=[], examples={}, label_errors=[]) == replace(
        plain, worst=[], examples={}, label_errors=[]
    )


def test_what_cannot_be_analysed() -> None:
    ground_truth, detections = generate(0)
    with pytest.raises(ConfigError, match="use_cats: an analysis needs categories"):
        analyse(ground_truth, detections, params=make_params(use_cats=False))
    with pytest.raises(ConfigError, match=r"iou 0\.5: the evaluation's IoU thresholds are 0\.6, 0\.75; choose one"):
        analyse(ground_truth, detections, params=make_params(iou_thresholds=(0.6, 0.75)))
    with pytest.raises(DataError, match=r"the baseline's detections: .*unknown image"):
        analyse(ground_truth, detections, params=make_params(), baseline=[{**detections[0], "image_id": 1}])
