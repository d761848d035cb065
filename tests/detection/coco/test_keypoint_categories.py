"""Categories with keypoints of different numbers, against COCOeval of each category alone."""

import contextlib
import io
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from detection.analysis.analyse import analyse
from detection.coco import params as params_module
from detection.coco.accumulator import MetricsAccumulator
from detection.coco.evaluation import evaluate
from detection.coco.params import OKS_SIGMAS, fit_keypoints, make_params
from detection.coco.partitions import by_category, metrics_of_partitions, partitions_of
from detection.coco.validation.checks import Checked, check_whole_images
from schemas.errors import ConfigError, DataError
from tests.detection.coco.generated_cases import generate

PERSON, HAND, FOOT, THING = 7, 2, 90, 31
SIGMAS = (0.03, 0.11, 0.05, 0.2, 0.07)


def case(seed: int, numbers: dict[int, int]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A generated case whose categories have so many keypoints, of 17."""
    ground_truth, detections = generate(seed)
    for category in ground_truth["categories"]:
        if category["id"] in numbers:
            category["keypoints"] = [f"point {number}" for number in range(numbers[category["id"]])]
    for entry in (*ground_truth["annotations"], *detections):
        entry["keypoints"] = entry["keypoints"][: 3 * numbers.get(entry["category_id"], 17)]
        if "num_keypoints" in entry:
            entry["num_keypoints"] = sum(flag > 0 for flag in entry["keypoints"][2::3])
    return ground_truth, detections


def alone(tree: dict[str, Any], detections: list[dict[str, Any]], category: int, sigmas: Sequence[float]) -> COCOeval:
    """COCOeval of the entries of one category."""
    with contextlib.redirect_stdout(io.StringIO()):
        loaded = COCO()
        own = [one for one in tree["annotations"] if one["category_id"] == category]
        loaded.dataset = tree | {"annotations": own, "categories": [{"id": category, "name": "own"}]}
        loaded.createIndex()
        results = loaded.loadRes([dict(one) for one in detections if one["category_id"] == category])
        evaluation = COCOeval(loaded, results, "keypoints")
        evaluation.params.kpt_oks_sigmas = np.array(sigmas)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("category", "given"), [(PERSON, None), (HAND, SIGMAS), (PERSON, OKS_SIGMAS[::-1])])
def test_categories_of_other_keypoints_are_left_out(seed: int, category: int, given: Any) -> None:
    ground_truth, detections = case(seed, {PERSON: 17, HAND: 5, FOOT: 8, THING: 8})
    metrics = evaluate(ground_truth, detections, "keypoints", oks_sigmas=given)
    expected = alone(ground_truth, detections, category, given or OKS_SIGMAS).stats
    assert (expected[0] > 0) or seed
    np.testing.assert_allclose(metrics.stats, expected, rtol=0, atol=1e-12)
    for row in metrics.per_category:
        assert row["AP"] == (pytest.approx(expected[0], abs=1e-12) if row["id"] == category else -1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sigmas", [SIGMAS, None])
def test_several_categories_give_the_mean(seed: int, sigmas: Any) -> None:
    """Without sigmas, all are 0.05."""
    ground_truth, detections = case(seed, {PERSON: 5, HAND: 5, FOOT: 3, THING: 5})
    metrics = evaluate(ground_truth, detections, "keypoints", oks_sigmas=sigmas)
    each = [alone(ground_truth, detections, one, sigmas or [0.05] * 5).stats for one in (PERSON, HAND)]
    assert metrics.by_name["AP"] == pytest.approx(np.mean([stats[0] for stats in each]), abs=1e-12)
    assert metrics.by_name["AR"] == pytest.approx(np.mean([stats[5] for stats in each]), abs=1e-12)


def test_the_padding_of_a_model_is_no_keypoint() -> None:
    """A detector has one number of keypoints: the largest one of a category."""
    ground_truth, detections = case(0, {PERSON: 17, HAND: 5, FOOT: 8})
    expected = evaluate(ground_truth, detections, "keypoints", oks_sigmas=SIGMAS)
    boxed = [one | {"bbox": [1.0, 2.0, 30.0, 40.0]} for one in detections]
    padded = [one | {"keypoints": one["keypoints"] + [0.0] * (51 - len(one["keypoints"]))} for one in boxed]
    before = [list(one["keypoints"]) for one in padded]
    metrics = evaluate(ground_truth, padded, "keypoints", oks_sigmas=SIGMAS)
    assert metrics.by_name == evaluate(ground_truth, boxed, "keypoints", oks_sigmas=SIGMAS).by_name
    assert expected.by_name["AP"] == metrics.by_name["AP"]
    assert [one["keypoints"] for one in padded] == before
    padded[0]["category_id"], padded[0]["keypoints"][-1] = HAND, 1.0
    with pytest.raises(DataError, match=r"invalid keypoints: .* needs 5 times"):
        evaluate(ground_truth, padded, "keypoints", oks_sigmas=SIGMAS)


@pytest.mark.parametrize("sigmas", [SIGMAS, None])
def test_partitions_and_an_analysis_have_the_same_metrics(sigmas: Any) -> None:
    ground_truth, detections = case(1, {PERSON: 17, HAND: 5, FOOT: 8})
    categories = ground_truth["categories"]
    expected = evaluate(ground_truth, detections, "keypoints", oks_sigmas=sigmas).by_name
    params = fit_keypoints(make_params("keypoints", oks_sigmas=sigmas), categories)
    assert fit_keypoints(params, categories) == params
    lists = ground_truth["images"], ground_truth["annotations"], detections
    ids = np.array([category["id"] for category in categories])
    checked = check_whole_images(*lists, category_ids=ids, params=params, where="", where_detections="")
    arrays = {}
    for partition in partitions_of(categories, params):
        own = [category for category in categories if category["id"] == partition.category_id]
        accumulator = MetricsAccumulator(own, params, partition=partition)
        accumulator.add_checked(by_category(checked).get(own[0]["id"], Checked([], [], [])))
        arrays[partition] = accumulator.arrays()
    assert metrics_of_partitions(arrays, categories, params).by_name == expected
    analysis = analyse(ground_truth, detections, params=make_params("keypoints", oks_sigmas=sigmas))
    assert analysis.metrics == expected
    evaluated = {row.id for row in analysis.categories if row.ground_truth}
    assert evaluated == {HAND if sigmas else PERSON}


def test_the_log_has_the_choice_once(caplog: pytest.LogCaptureFixture) -> None:
    params_module._warn_once.cache_clear()
    categories = [{"id": number, "keypoints": ["a"] * number} for number in (3, 5)]
    with caplog.at_level(logging.WARNING, "cocoflow.evaluate"):
        for _ in range(2):
            fit_keypoints(make_params("keypoints"), categories)
    assert [record.getMessage() for record in caplog.records] == [
        "keypoints: oks_sigmas is not set: AP is that of 0.05 for each of 5 keypoints",
        "keypoints: of categories with 3, 5 keypoints, only those with 5 are evaluated (oks_sigmas)",
    ]


@pytest.mark.parametrize(("sigmas", "use_cats"), [((0.1,) * 6, True), (SIGMAS, False)])
def test_sigmas_of_no_category_are_refused(sigmas: Any, use_cats: bool) -> None:
    ground_truth, detections = case(2, {PERSON: 5, HAND: 3})
    with pytest.raises(ConfigError, match=rf"oks_sigmas: {len(sigmas)} numbers, but categories have 3, 5 keypoints"):
        evaluate(ground_truth, detections, "keypoints", oks_sigmas=sigmas, use_cats=use_cats)


@pytest.mark.parametrize("names", [None, [], 5, "nose", {"a": 1}])
def test_what_names_no_keypoints_has_coco_s(names: Any) -> None:
    params = make_params("keypoints")
    assert fit_keypoints(params, [{"id": 1, "keypoints": names}, {"id": 2}]) == params
