"""Bootstrap intervals: what must hold of them."""

from typing import Any

import numpy as np
import pytest

from detection.analysis.bootstrap import bootstrap
from detection.analysis.findings import Interval
from detection.analysis.intervals import difference_intervals, figure_intervals, interval
from detection.analysis.options import AnalysisOptions
from tests.detection.analysis.cases import evaluated, found_of, truth_of
from tests.detection.coco.generated_cases import generate

BOX = [10.0, 10.0, 50.0, 50.0]


def recall_case(images: int, share: float, seed: int = 0) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One object an image, found in a share of them: AR100 is that share, a mean of independent images."""
    hits = np.random.default_rng(seed).permutation(images) < share * images
    truth = truth_of(*[(image + 1, 1, BOX) for image in range(images)], images=images, categories=1)
    return truth, found_of(*[(image + 1, 1, BOX, 0.9) for image in np.flatnonzero(hits).tolist()])


def test_by_hand() -> None:
    replicates = np.array([0.1, 0.2, np.nan, 0.3, 0.4, 0.5])
    found = interval(0.35, replicates, 0.5, least=0.0)
    # The median, 0.3, is moved onto 0.35; half of the replicates lie between their quartiles, 0.2 and 0.4.
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.35, 0.25, 0.45))
    assert found.probability == 1.0


def test_bounds_stay_where_a_figure_can_be() -> None:
    replicates = np.array([0.0, 0.5, 1.0])
    for value, least, bounds in ((0.9, 0.0, (0.45, 1.0)), (0.1, 0.0, (0.0, 0.55)), (-0.9, -1.0, (-1.0, -0.45))):
        found = interval(value, replicates, 0.9, least=least)
        assert found is not None
        assert (found.low, found.high) == pytest.approx(bounds)


def test_undefined_replicates_alone_give_no_interval() -> None:
    assert interval(0.5, np.array([np.nan, np.nan]), 0.9, least=0.0) is None


def test_undefined_figures_are_left_out() -> None:
    defined = {"AP": np.array([0.4, 0.6]), "APs": np.array([0.4, 0.6])}
    assert set(figure_intervals({"AP": 0.5, "APs": -1.0}, defined, 0.9)) == {"AP"}
    assert set(difference_intervals({"AP": 0.5, "APs": -1.0}, {"AP": 0.5, "APs": 0.5}, defined, defined, 0.9)) == {"AP"}
    assert set(difference_intervals({"AP": 0.5, "APs": 0.5}, {"AP": 0.5, "APs": -1.0}, defined, defined, 0.9)) == {"AP"}


@pytest.mark.parametrize("images", [100, 400])
def test_width_is_that_of_the_mean_of_as_many_images(images: int) -> None:
    model = evaluated(*recall_case(images, 0.6))
    found = bootstrap(model, None, AnalysisOptions(replicates=2000)).figures["AR100"]
    deviation = np.sqrt(0.6 * 0.4 / images)
    assert found.value == pytest.approx(0.6)
    # Leaving repeated images out, as the engine's own intervals do, would give 0.76 of the width.
    assert found.high - found.low == pytest.approx(2 * 1.96 * deviation, rel=0.07)


@pytest.mark.parametrize("seed", range(10))
def test_intervals_hold_the_value_and_undefined_figures_have_none(seed: int) -> None:
    model = evaluated(*generate(seed))
    found = bootstrap(model, None, AnalysisOptions(replicates=50))
    assert {name for name, value in model.figures.items() if value >= 0} == set(found.figures)
    for name, bounds in found.figures.items():
        assert 0.0 <= bounds.low <= bounds.value <= bounds.high <= 1.0
        assert bounds.value == model.figures[name]
    assert found.differences == {}
    assert found.categories == {}


def test_undefined_figures_have_no_difference() -> None:
    truth, detections = generate(0)
    truth["annotations"] = [entry for entry in truth["annotations"] if entry["area"] > 32**2]
    model = evaluated(truth, detections)
    found = bootstrap(model, model, AnalysisOptions(replicates=20))
    assert model.figures["APs"] == -1
    assert "AP" in found.differences
    assert not {"APs", "ARs"} & {*found.differences, *found.figures}


@pytest.mark.parametrize("seed", range(5))
def test_a_model_does_not_differ_from_itself(seed: int) -> None:
    model = evaluated(*generate(seed))
    again = evaluated(*generate(seed))
    found = bootstrap(model, again, AnalysisOptions(replicates=30))
    assert found.differences
    assert set(found.differences.values()) == {Interval(0.0, 0.0, 0.0, 0.0)}
    assert set(found.categories.values()) == {Interval(0.0, 0.0, 0.0, 0.0)}


def test_a_clearly_better_model_is_told_and_chance_is_not() -> None:
    truth, good = recall_case(200, 0.8, seed=1)
    _, bad = recall_case(200, 0.5, seed=2)
    _, lucky = recall_case(200, 0.505, seed=3)
    options = AnalysisOptions(replicates=400)
    gain = bootstrap(evaluated(truth, good), evaluated(truth, bad), options)
    assert gain.differences["AR100"].low > 0.15
    assert gain.differences["AR100"].probability == 1.0
    assert gain.categories[1].low > 0.15
    loss = bootstrap(evaluated(truth, bad), evaluated(truth, good), options)
    assert loss.differences["AR100"].high < -0.15
    chance = bootstrap(evaluated(truth, lucky), evaluated(truth, bad), options).differences["AR100"]
    assert chance.low < 0 < chance.high
    assert 0.2 < chance.probability < 0.9


def test_models_are_compared_on_the_same_draws() -> None:
    truth, detections = recall_case(100, 0.5)
    worse = evaluated(truth, detections[1:])
    found = bootstrap(evaluated(truth, detections), worse, AnalysisOptions(replicates=300)).differences["AR100"]
    # They differ on one image: by the share of draws of it, not by the spread of the figures.
    assert found.value == pytest.approx(0.01)
    assert found.low >= 0
    assert found.high <= 0.05


def test_without_replicates_or_images_there_are_none() -> None:
    truth, detections = generate(0)
    model = evaluated(truth, detections)
    assert bootstrap(model, None, AnalysisOptions(replicates=0)).figures == {}
    empty = evaluated({"images": [], "annotations": [], "categories": truth["categories"]}, [])
    assert bootstrap(empty, None, AnalysisOptions()).figures == {}
