"""Categories with keypoints of different numbers, against COCOeval of each category alone."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pycocotools.cocoeval import COCOeval

from detection.analysis.analyse import analyse
from detection.coco import keypoint_sigmas
from detection.coco.accumulator import MetricsAccumulator
from detection.coco.evaluation import evaluate
from detection.coco.keypoint_sigmas import OKS_SIGMAS, fit_keypoints
from detection.coco.params import make_params
from detection.coco.partitions import by_category, metrics_of_partitions, partitions_of
from detection.coco.validation.checks import Checked, check_whole_images
from schemas.config.evaluate import AnalysisConfig
from schemas.errors import ConfigError, DataError
from tests.detection.coco.generated_cases import generate, pycocotools_eval

PERSON, HAND, FOOT, THING = 7, 2, 90, 31
NAMES = {PERSON: "person", HAND: "hand", FOOT: "foot", THING: "thing"}
NUMBERS = {PERSON: 17, HAND: 5, FOOT: 8, THING: 8}
SIGMAS = (0.03, 0.11, 0.05, 0.2, 0.07)


def case(seed: int, numbers: dict[int, int]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A generated case whose categories have so many keypoints, of 17."""
    ground_truth, detections = generate(seed)
    for category in ground_truth["categories"]:
        if category["id"] in numbers:
            category["keypoints"] = [f"point {number}" for number in range(numbers[category["id"]])]
            category["name"] = NAMES[category["id"]]
    for entry in (*ground_truth["annotations"], *detections):
        entry["keypoints"] = entry["keypoints"][: 3 * numbers.get(entry["category_id"], 17)]
        if "num_keypoints" in entry:
            entry["num_keypoints"] = sum(flag > 0 for flag in entry["keypoints"][2::3])
    return ground_truth, detections


def alone(tree: dict[str, Any], detections: list[dict[str, Any]], category: int, sigmas: Sequence[float]) -> COCOeval:
    """COCOeval of the entries of one category."""
    return pycocotools_eval(tree, detections, "keypoints", catIds=[category], kpt_oks_sigmas=np.array(sigmas))


def mean_alone(tree: dict[str, Any], detections: list[dict[str, Any]], sigmas: dict[int, Sequence[float]]) -> Any:
    """Means of the ten values of COCOeval over the categories for which they are defined."""
    values = np.array([alone(tree, detections, *pair).stats for pair in sigmas.items()])
    return np.ma.masked_less(values, 0).mean(axis=0).filled(-1)


FIVE, EIGHT = [0.05] * 5, [0.05] * 8


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("given", "sigmas"),
    [
        (None, {PERSON: OKS_SIGMAS, HAND: FIVE, FOOT: EIGHT, THING: EIGHT}),
        (SIGMAS, {PERSON: OKS_SIGMAS, HAND: SIGMAS, FOOT: EIGHT, THING: EIGHT}),
        (OKS_SIGMAS[::-1], {PERSON: OKS_SIGMAS[::-1], HAND: FIVE, FOOT: EIGHT, THING: EIGHT}),
        (
            {"hand": SIGMAS, "foot": {f"point {number}": 0.02 + 0.01 * number for number in reversed(range(8))}},
            {PERSON: OKS_SIGMAS, HAND: SIGMAS, FOOT: [0.02 + 0.01 * number for number in range(8)], THING: EIGHT},
        ),
    ],
)
def test_each_category_has_its_sigmas(seed: int, given: Any, sigmas: dict[int, Sequence[float]]) -> None:
    ground_truth, detections = case(seed, NUMBERS)
    metrics = evaluate(ground_truth, detections, "keypoints", oks_sigmas=given)
    np.testing.assert_allclose(metrics.stats, mean_alone(ground_truth, detections, sigmas), rtol=0, atol=1e-12)
    for row in metrics.per_category:
        expected = alone(ground_truth, detections, row["id"], sigmas[row["id"]]).stats[0]
        assert row["AP"] == pytest.approx(expected, abs=1e-12)
    assert metrics.by_name["AP"] > 0.05


def test_the_padding_of_a_model_is_no_keypoint() -> None:
    """A detector has one number of keypoints: the largest one of a category."""
    ground_truth, detections = case(0, NUMBERS)
    boxed = [one | {"bbox": [1.0, 2.0, 30.0, 40.0]} for one in detections]
    padded = [one | {"keypoints": one["keypoints"] + [0.0] * (51 - len(one["keypoints"]))} for one in boxed]
    before = [list(one["keypoints"]) for one in padded]
    expected = evaluate(ground_truth, boxed, "keypoints").by_name
    assert evaluate(ground_truth, padded, "keypoints").by_name == expected
    assert expected["AP"] == evaluate(ground_truth, detections, "keypoints").by_name["AP"]
    assert [one["keypoints"] for one in padded] == before
    padded[0]["category_id"], padded[0]["keypoints"][-1] = HAND, 1.0
    with pytest.raises(DataError, match=r"invalid keypoints: .*51 numbers instead of 15"):
        evaluate(ground_truth, padded, "keypoints")


@pytest.mark.parametrize("given", [SIGMAS, None])
def test_states_and_partitions_have_the_same_metrics(given: Any) -> None:
    ground_truth, detections = case(1, NUMBERS)
    categories = ground_truth["categories"]
    expected = evaluate(ground_truth, detections, "keypoints", oks_sigmas=given).by_name
    params = fit_keypoints(make_params("keypoints", oks_sigmas=given), categories)
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
    states = []
    for image in ground_truth["images"]:
        accumulator = MetricsAccumulator(categories, params)
        accumulator.add([image], *([one for one in some if one["image_id"] == image["id"]] for some in lists[1:]))
        states.append(accumulator.to_bytes())
    whole = MetricsAccumulator.from_bytes(states[0], categories, params)
    for state in states[1:]:
        whole.merge(MetricsAccumulator.from_bytes(state, categories, params))
    assert whole.result().by_name == expected
    joined = MetricsAccumulator.arrays_of_states(iter(states), categories, params)
    np.testing.assert_array_equal(joined.precision, whole.arrays().precision)
    assert joined.category_ids == whole.arrays().category_ids == tuple(sorted(ids.tolist()))


@pytest.mark.parametrize("seed", range(3))
def test_an_analysis_is_that_of_the_categories_alone(seed: int) -> None:
    ground_truth, detections = case(seed, NUMBERS | {THING: 3})
    options = AnalysisConfig(replicates=0, score=0.2)
    params = make_params("keypoints", oks_sigmas=SIGMAS)
    analysis = analyse(ground_truth, detections, params=params, options=options)
    assert analysis.metrics == evaluate(ground_truth, detections, "keypoints", oks_sigmas=SIGMAS).by_name
    parts = {}
    for category in ground_truth["categories"]:
        own = {
            **ground_truth,
            "annotations": [one for one in ground_truth["annotations"] if one["category_id"] == category["id"]],
            "categories": [category],
        }
        theirs = [one for one in detections if one["category_id"] == category["id"]]
        alone_params = make_params("keypoints", oks_sigmas=SIGMAS if category["id"] == HAND else None)
        parts[category["id"]] = analyse(own, theirs, params=alone_params, options=options)
    present = [part for part in parts.values() if part.metrics["AP"] >= 0]
    for position, error in enumerate(analysis.errors):
        each = [part.errors[position] for part in parts.values()]
        assert error.count == sum(one.count for one in each)
        gains = [part.errors[position].ap_gain for part in present]
        assert error.ap_gain == pytest.approx(np.mean(gains), abs=1e-12)
    counts = sum(np.array([row.count for row in part.calibration.bins]) for part in parts.values() if part.calibration)
    assert analysis.calibration is not None
    np.testing.assert_array_equal([row.count for row in analysis.calibration.bins], counts)
    gaps = [abs(row.score - row.precision) for row in analysis.calibration.bins]
    assert analysis.calibration.expected_error == pytest.approx(np.average(gaps, weights=counts))


def test_the_log_has_each_default_once(caplog: pytest.LogCaptureFixture) -> None:
    keypoint_sigmas._warn_once.cache_clear()
    categories = [{"id": number, "name": f"c{number}", "keypoints": ["a"] * number} for number in (3, 5, 17)]
    with caplog.at_level(logging.WARNING, "cocoflow.evaluate"):
        for _ in range(2):
            fit_keypoints(make_params("keypoints"), categories)
    assert [record.getMessage() for record in caplog.records] == [
        f"keypoints: oks_sigmas of 'c{number}' is not set: AP is that of 0.05 for each of {number} keypoints"
        for number in (3, 5)
    ]


@pytest.mark.parametrize(
    ("sigmas", "use_cats", "message"),
    [
        ((0.1,) * 6, True, "oks_sigmas: 6 numbers, but categories have 17, 5, 8 keypoints"),
        (SIGMAS, False, "oks_sigmas: use_cats=False needs one list, but categories have 17, 5, 8"),
        ({"hand": (0.1,) * 4}, True, "oks_sigmas of 'hand': 4 numbers, but it has 5 keypoints"),
        ({"hnd": SIGMAS}, True, "oks_sigmas: no category is named 'hnd'"),
        ({"hand": {"point 1": 0.1}}, True, "oks_sigmas of 'hand': specify its keypoints, 'point 0, point 1, "),
        ({"hand": {"point 1": 0.0}}, True, r"oks_sigmas \(0.0,\): specify a positive number per keypoint"),
    ],
)
def test_sigmas_of_other_keypoints_are_refused(sigmas: Any, use_cats: bool, message: str) -> None:
    ground_truth, detections = case(2, NUMBERS)
    with pytest.raises(ConfigError, match=message):
        evaluate(ground_truth, detections, "keypoints", oks_sigmas=sigmas, use_cats=use_cats)


@pytest.mark.parametrize("names", [None, [], 5, "nose", {"a": 1}])
def test_what_names_no_keypoints_has_coco_s(names: Any) -> None:
    params = fit_keypoints(make_params("keypoints"), [{"id": 1, "keypoints": names}, {"id": 2}])
    assert params.sigmas_of == {1: OKS_SIGMAS, 2: OKS_SIGMAS}


@pytest.mark.parametrize("name", [["hand"], {"hand": 1}, 5, None])
def test_a_name_that_is_no_text_is_taken_as_text(name: Any) -> None:
    params = make_params("keypoints", oks_sigmas={str(name): {"['a']": 0.1}})
    assert fit_keypoints(params, [{"id": 1, "name": name, "keypoints": [["a"]]}]).sigmas_of == {1: (0.1,)}


def test_what_names_no_keypoints_has_those_of_the_largest_number() -> None:
    """Detections of a model have as many, whatever their category."""
    params = fit_keypoints(make_params("keypoints", oks_sigmas=SIGMAS), [{"id": 1, "keypoints": ["a"] * 5}, {"id": 2}])
    assert params.sigmas_of == {1: SIGMAS, 2: SIGMAS}
    assert fit_keypoints(make_params("keypoints", oks_sigmas=SIGMAS), [{"id": 2}]).sigmas_of == {2: SIGMAS}
    own = fit_keypoints(make_params("keypoints", oks_sigmas={"hand": SIGMAS}), [{"id": 2, "name": "hand"}])
    assert own.sigmas_of == {2: SIGMAS}
