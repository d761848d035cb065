"""Score curves of a detector whose confidence is known: matched as pycocotools does, and measured by plain loops."""

from typing import Any

import numpy as np
import pytest

from detection.analysis.evaluated import Evaluated
from detection.export.score_calibration import _notes, fit_and_measure
from detection.inference.formats.score_curves import calibrate_scores, fit_curves
from tests.detection.analysis.cases import counted_detections, evaluated
from tests.detection.coco.generated_cases import pycocotools_eval

IDS = [40, 3, 7]  # in the order of the network's classes
CATEGORIES = [{"id": number, "name": f"kind {number}"} for number in IDS]
SIDE, IMAGES = 30.0, 60


def overconfident(seed: int = 0) -> tuple[dict[str, Any], np.ndarray]:
    """A data set with a crowd in each image, and rows; a detection of score s is right with a probability of s / 2."""
    random = np.random.default_rng(seed)
    annotations: list[dict[str, Any]] = []
    rows = []
    for image in range(1, IMAGES + 1):
        for place in range(12):
            box = [float(place % 4) * 50, float(place // 4) * 50, SIDE, SIDE]
            # The last category is rare.
            category = int(random.choice(IDS, p=[0.6, 0.38, 0.02]))
            score = float(np.float32(random.beta(1.2, 1.2)))
            crowd = place == 0
            if crowd or random.random() < score / 2:
                entry = {"id": len(annotations) + 1, "image_id": image, "category_id": category, "bbox": box}
                annotations.append({**entry, "area": SIDE**2, "iscrowd": int(crowd)})
            rows.append([image, *box, score, category])
    order = random.permutation(len(rows))
    images = [{"id": number, "width": 200, "height": 150} for number in range(1, IMAGES + 1)]
    return {"images": images, "annotations": annotations, "categories": CATEGORIES}, np.array(rows)[order]


@pytest.fixture(scope="module")
def case() -> tuple[dict[str, Any], np.ndarray]:
    return overconfident()


@pytest.fixture(scope="module")
def model(case: tuple[dict[str, Any], np.ndarray]) -> Evaluated:
    return evaluated(*case)  # type: ignore[arg-type]  # rows


def as_results(rows: np.ndarray) -> list[dict[str, Any]]:
    return [
        {"image_id": int(image), "category_id": int(category), "bbox": box, "score": score}
        for image, *box, score, category in rows.tolist()
    ]


def calibration_error(ground_truth: dict[str, Any], rows: np.ndarray) -> float:
    """Over ten bins, weighted by count."""
    counted = list(counted_detections(pycocotools_eval(ground_truth, as_results(rows))))
    bins: dict[int, list[float]] = {}
    for one in counted:
        bins.setdefault(int(one.score * 10 + 1e-9), []).append(one.score - one.right)
    return sum(abs(sum(gaps)) for gaps in bins.values()) / len(counted)


def test_curves_are_fitted_to_what_pycocotools_counts(
    case: tuple[dict[str, Any], np.ndarray], model: Evaluated
) -> None:
    ground_truth, rows = case
    counted = list(counted_detections(pycocotools_eval(ground_truth, as_results(rows))))
    assert len(counted) < len(rows)  # crowds
    expected = fit_curves(
        [one.score for one in counted],
        [IDS.index(one.category) for one in counted],
        [one.right for one in counted],
        num_classes=3,
    )
    curves = fit_and_measure(model, IDS, "eval")
    assert [curve.fitted_on for curve in curves.curves] == ["category", "category", "all categories"]
    for found, other in zip(curves.curves, expected, strict=True):
        assert (found.true_positives, found.false_positives) == (other.true_positives, other.false_positives)
        assert (found.slope, found.offset) == pytest.approx((other.slope, other.offset), abs=1e-4)
    assert (curves.split, curves.images, curves.iou) == ("eval", IMAGES, 0.5)


def test_the_calibration_error_falls_on_images_of_the_other_half(
    case: tuple[dict[str, Any], np.ndarray], model: Evaluated
) -> None:
    ground_truth, rows = case
    curves = fit_and_measure(model, IDS, "eval")
    assert curves.error_before == pytest.approx(calibration_error(ground_truth, rows), abs=1e-9)
    assert curves.error_before > 0.2  # half of the mean score
    assert curves.error_after < 0.06
    # By hand: the halves are the images of even and odd position, as are their ids less one.
    crossed = rows.copy()
    for half in (0, 1):
        mine = (rows[:, 0] - 1) % 2 == half
        kept = [image["id"] for image in ground_truth["images"] if (image["id"] - 1) % 2 != half]
        part = {
            **ground_truth,
            "images": [image for image in ground_truth["images"] if image["id"] in kept],
            "annotations": [one for one in ground_truth["annotations"] if one["image_id"] in kept],
        }
        others = fit_and_measure(evaluated(part, rows[~mine]), IDS, "half")
        classes = [IDS.index(category) for category in rows[mine, 6]]
        crossed[mine, 5] = calibrate_scores(others.curves, rows[mine, 5], classes)
    assert curves.error_after == pytest.approx(calibration_error(ground_truth, crossed), abs=1e-9)


def test_the_ap_of_each_category_stays(case: tuple[dict[str, Any], np.ndarray], model: Evaluated) -> None:
    ground_truth, rows = case
    curves = fit_and_measure(model, IDS, "eval")
    calibrated = rows.copy()
    calibrated[:, 5] = calibrate_scores(curves.curves, rows[:, 5], [IDS.index(category) for category in rows[:, 6]])
    assert (np.abs(calibrated[:, 5] - rows[:, 5]) > 0.1).any()
    before, after = (pycocotools_eval(ground_truth, as_results(one)).eval["precision"] for one in (rows, calibrated))
    np.testing.assert_array_equal(after, before)
    notes = _notes(curves, model, CATEGORIES)
    assert notes == [
        f"scores calibrated on {IMAGES} images of eval: expected calibration error {curves.error_before:.4f} before, "
        f"{curves.error_after:.4f} after (each half of the images with the curves of the other half); the AP of each "
        "category is unchanged",
        "1 of 3 categories have fewer than 10 true or false positives on these images and use the curve of all "
        "categories",
    ]


def test_without_enough_matches_scores_stay_and_a_note_says_so(case: tuple[dict[str, Any], np.ndarray]) -> None:
    ground_truth, rows = case
    few = rows[rows[:, 0] <= 1]
    one = {**ground_truth, "annotations": [entry for entry in ground_truth["annotations"] if entry["image_id"] == 1]}
    model = evaluated(one, few)  # type: ignore[arg-type]  # rows
    curves = fit_and_measure(model, IDS, "eval")
    assert {(curve.slope, curve.offset, curve.fitted_on) for curve in curves.curves} == {(1.0, 0.0, "nothing")}
    assert curves.error_after == pytest.approx(curves.error_before, abs=1e-6)
    assert _notes(curves, model, CATEGORIES)[1].endswith("on these images and use uncalibrated scores")
