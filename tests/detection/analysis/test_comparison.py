"""Comparisons of detections and of evaluations' folders."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from detection.analysis.analyse import analyse
from detection.analysis.analysis_file import write_analysis
from detection.analysis.comparison import BOUNDARY_IOU, Change, Comparison, compare_detections
from detection.analysis.folders import compare_evaluations
from detection.coco.evaluation import evaluate
from detection.coco.params import make_params
from detection.coco.summary import metrics_to_json
from detection.storage.atomic import write_json
from schemas.artifacts import ANALYSIS_JSON, DETECTIONS_JSON, METRICS_JSON
from schemas.config.evaluate import AnalysisConfig
from schemas.errors import DataError
from schemas.metrics import METRIC_DEFINITIONS
from tests.detection.analysis.cases import detections_of, ground_truth_of
from tests.detection.coco.generated_cases import generate

QUICK = AnalysisConfig(replicates=20)
BOX = [20.0, 20.0, 60.0, 60.0]
OTHER = [110.0, 110.0, 60.0, 60.0]


def compared(seed: int, iou_type: str = "bbox", **options: Any) -> Comparison:
    ground_truth, detections = generate(seed)
    return compare_detections(
        ground_truth,
        detections[::2],
        detections,
        params=make_params(iou_type),
        names=("half", "all"),
        options=QUICK.model_copy(update=options),
    )


def write_evaluation(
    folder: Path, ground_truth: dict[str, Any], detections: list[dict[str, Any]], *, analysed: bool = True
) -> Path:
    folder.mkdir()
    write_json(folder / METRICS_JSON, metrics_to_json(evaluate(ground_truth, detections)))
    (folder / DETECTIONS_JSON).write_text(json.dumps(detections))
    if analysed:
        write_analysis(folder / ANALYSIS_JSON, analyse(ground_truth, detections, params=make_params(), options=QUICK))
    return folder


@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
@pytest.mark.parametrize("seed", range(3))
def test_detections_are_compared_as_analyses_with_a_baseline(seed: int, iou_type: str) -> None:
    ground_truth, detections = generate(seed)
    params = make_params(iou_type)
    comparison = compared(seed, iou_type)
    analysis = analyse(ground_truth, detections, params=params, baseline=detections[::2], options=QUICK)
    assert (comparison.a, comparison.b, comparison.sample) == ("half", "all", analysis.sample)
    assert bool(comparison.remarks) == (iou_type == "segm")
    assert {name: change.a for name, change in comparison.metrics.items()} == analysis.baseline_metrics
    assert {name: change.b for name, change in comparison.metrics.items()} == analysis.metrics
    intervals = {name: change.interval for name, change in comparison.metrics.items() if change.interval}
    assert intervals == analysis.differences
    for change, row in zip(comparison.categories, analysis.categories, strict=True):
        assert (change.id, change.name, change.ground_truth) == (row.id, row.name, row.ground_truth)
        metrics = {name: one for name, one in change.metrics.items() if name != BOUNDARY_IOU}
        assert {name: one.a for name, one in metrics.items()} == row.baseline_metrics
        assert {name: one.b for name, one in metrics.items()} == row.metrics
    assert [change.b for change in comparison.errors] == analysis.errors
    json.dumps(asdict(comparison), allow_nan=False)


def test_categories_have_intervals_of_their_own() -> None:
    comparison = compared(1)
    by_id = {category.id: category.metrics["AP"] for category in comparison.categories}
    assert by_id[31] == Change(-1.0, -1.0, None, None)
    for category_id in (2, 7, 90):
        change = by_id[category_id]
        assert change.interval is not None
        assert change.interval.value == change.difference
        assert change.interval.low <= change.interval.value <= change.interval.high
    assert {category.metrics["AP50"].interval for category in comparison.categories} == {None}


def test_images_that_changed_most_by_hand() -> None:
    ground_truth = ground_truth_of((1, 1, BOX), (2, 1, BOX), (3, 1, BOX), (3, 1, OTHER), images=4)
    good = detections_of((1, 1, BOX, 0.9), (3, 1, BOX, 0.9), (3, 1, OTHER, 0.9))
    other = detections_of((1, 1, BOX, 0.9), (2, 1, BOX, 0.9), (4, 1, BOX, 0.9), (4, 1, OTHER, 0.9))
    comparison = compare_detections(ground_truth, good, other, params=make_params(), options=QUICK)
    assert [(one.errors, one.a.image_id) for one in comparison.better] == [(-1, 2)]
    # Two FN on image 3, two FP on image 4.
    assert [(one.errors, one.b.image_id, one.b.fp, one.b.fn) for one in comparison.worse] == [
        (2, 3, 0, 2),
        (2, 4, 2, 0),
    ]
    assert [box.status for box in comparison.worse[0].a.detections] == ["TP", "TP"]
    few = compare_detections(
        ground_truth, good, other, params=make_params(), options=QUICK.model_copy(update={"worst": 1})
    )
    assert [one.b.image_id for one in few.worse] == [3]


def test_a_model_against_itself() -> None:
    ground_truth, detections = generate(2)
    comparison = compare_detections(ground_truth, detections, detections, params=make_params(), options=QUICK)
    assert {change.difference for change in comparison.metrics.values()} <= {0.0, None}
    assert comparison.better == comparison.worse == []


def test_a_sample_is_compared_with_the_metrics_of_all() -> None:
    ground_truth, detections = generate(3)
    comparison = compared(3, images=4)
    assert comparison.sample is not None
    assert (comparison.sample.images, comparison.sample.of) == (4, 10)
    assert comparison.metrics["AP"].b == evaluate(ground_truth, detections).by_name["AP"]
    interval = comparison.metrics["AP"].interval
    assert interval is not None
    assert interval.value != comparison.metrics["AP"].difference


def test_evaluations_with_the_ground_truth_are_compared_image_by_image(tmp_path: Path) -> None:
    ground_truth, detections = generate(4)
    a = write_evaluation(tmp_path / "a", ground_truth, detections[::2])
    b = write_evaluation(tmp_path / "b", ground_truth, detections, analysed=False)
    [comparison] = compare_evaluations(a, b, ground_truth=ground_truth, options=QUICK)
    assert replace(comparison, a="half", b="all") == compared(4)
    assert (comparison.a, comparison.b) == (str(a), str(b))


def test_evaluations_without_the_ground_truth(tmp_path: Path) -> None:
    ground_truth, detections = generate(5)
    a = write_evaluation(tmp_path / "a", ground_truth, detections[::2])
    b = write_evaluation(tmp_path / "b", ground_truth, detections)
    [comparison] = compare_evaluations(str(a), str(b), options=QUICK)
    paired = compared(5)
    assert comparison.sample is None
    assert comparison.better == comparison.worse == []
    assert comparison.remarks == [
        "Intervals and images are missing: they require the ground truth, to evaluate both models on the same "
        "resampled images. Pass it, too."
    ]
    assert comparison.errors == paired.errors
    without = {name: replace(change, interval=None) for name, change in paired.metrics.items()}
    assert comparison.metrics == without
    assert [(row.id, row.name, row.ground_truth) for row in comparison.categories] == [
        (row.id, row.name, row.ground_truth) for row in paired.categories
    ]
    assert [row.metrics["AP"].difference for row in comparison.categories] == [
        row.metrics["AP"].difference for row in paired.categories
    ]


def test_evaluations_without_an_analysis(tmp_path: Path) -> None:
    ground_truth, detections = generate(6)
    a = write_evaluation(tmp_path / "a", ground_truth, detections[::2], analysed=False)
    b = write_evaluation(tmp_path / "b", ground_truth, detections)
    (a / DETECTIONS_JSON).unlink()
    [comparison] = compare_evaluations(a, b)
    assert comparison.errors == []
    assert {row.ground_truth for row in comparison.categories} == {None}
    assert list(comparison.categories[0].metrics)[:2] == ["AP", "AP50"]
    assert comparison.categories[0].metrics["AP"].difference is not None


def test_differing_ground_truth_is_told(tmp_path: Path) -> None:
    ground_truth, detections = generate(7)
    less = {
        **ground_truth,
        "annotations": [one for one in ground_truth["annotations"] if one["iscrowd"] or one["category_id"] != 7],
    }
    a = write_evaluation(tmp_path / "a", ground_truth, detections)
    b = write_evaluation(tmp_path / "b", less, detections)
    count = sum(not one["iscrowd"] and one["category_id"] == 7 for one in ground_truth["annotations"])
    assert compare_evaluations(a, b)[0].remarks[1:] == [
        f"The ground truths differ: category 7 has {count} instances in {a}, 0 in {b}."
    ]
    fewer = {**ground_truth, "categories": [one for one in ground_truth["categories"] if one["id"] != 31]}
    c = write_evaluation(tmp_path / "c", fewer, detections)
    [comparison] = compare_evaluations(a, c)
    assert comparison.remarks[1:] == ["The ground truths differ: category 31 is in only one of them."]
    assert [row.id for row in comparison.categories] == [2, 7, 31, 90]
    assert comparison.categories[2].metrics["AP"] == Change(-1.0, -1.0, None, None)


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    ground_truth, detections = generate(8)
    a = write_evaluation(tmp_path / "a", ground_truth, detections)
    b = write_evaluation(tmp_path / "b", ground_truth, detections)
    write_json(b / METRICS_JSON, metrics_to_json(evaluate(ground_truth, detections, "segm")))
    with pytest.raises(DataError, match=f"{a} evaluated bbox, {b} segm. Compare the same IoU type."):
        compare_evaluations(a, b)
    (b / METRICS_JSON).write_text('{"AP": 1}')
    with pytest.raises(DataError, match=r"metrics\.json: not a metrics file .*: iou_type: Field required\. "):
        compare_evaluations(a, b)
    with pytest.raises(DataError, match=r"metrics\.json: cannot read the file"):
        compare_evaluations(a, tmp_path / "c")
    (a / DETECTIONS_JSON).write_text("{}")
    with pytest.raises(DataError, match=r"detections\.json: not COCO results: a dict, not a list. Evaluate again."):
        compare_evaluations(a, a, ground_truth=ground_truth)
    (a / DETECTIONS_JSON).unlink()
    with pytest.raises(DataError, match=r"detections\.json: cannot read the file"):
        compare_evaluations(a, a, ground_truth=ground_truth)
    with pytest.raises(DataError, match=r"second: .*unknown image"):
        compare_detections(
            ground_truth,
            detections,
            [{**detections[0], "image_id": 1}],
            params=make_params(),
            names=("first", "second"),
        )


_DAMAGED: list[tuple[str, tuple[Any, ...], Any, str]] = [
    (METRICS_JSON, (), [], "object"),
    (METRICS_JSON, ("iou_type",), 7, "iou_type: "),
    (METRICS_JSON, ("iou_type",), "box", "iou_type: "),
    (METRICS_JSON, ("metrics",), [], "metrics: "),
    (METRICS_JSON, ("metrics", "AP"), None, r"metrics\.AP: "),
    (METRICS_JSON, ("metrics", "AP"), "high", r"metrics\.AP: "),
    (METRICS_JSON, ("metrics", "AP"), float("nan"), r"metrics\.AP: not a finite number"),
    (METRICS_JSON, ("per_category",), {}, "per_category: "),
    (METRICS_JSON, ("per_category", 0), 3, r"per_category\.0: "),
    (METRICS_JSON, ("per_category", 1, "id"), "x", r"per_category\.1\.id: "),
    (METRICS_JSON, ("per_category", 1, "id"), 2, "per_category: duplicate id"),
    (METRICS_JSON, ("per_category", 1, "AP"), [], r"per_category\.1\.AP: "),
    (METRICS_JSON, ("per_category", 0, "name"), ..., r"per_category\.0\.name: Field required"),
    (ANALYSIS_JSON, ("errors",), [], r"errors: \[\], expected Cls, Loc"),
    (ANALYSIS_JSON, ("errors", 0, "ap_gain"), float("inf"), r"errors\.0\.ap_gain: not a finite number"),
    (ANALYSIS_JSON, ("categories", 0, "metrics"), 1, r"categories\.0\.metrics: "),
    (ANALYSIS_JSON, ("categories", 1, "id"), 2, "categories: duplicate id"),
]


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_evaluation(tmp_path_factory.mktemp("evaluation") / "a", *generate(8))


@pytest.mark.parametrize("damage", _DAMAGED)
def test_damaged_files_of_an_evaluation_are_refused_by_file_and_key(
    tmp_path: Path, evaluation: Path, damage: tuple[str, tuple[Any, ...], Any, str]
) -> None:
    name, path, value, message = damage
    damaged = tmp_path / "b"
    shutil.copytree(evaluation, damaged)
    tree = json.loads((damaged / name).read_text())
    node = tree
    for key in path[:-1]:
        node = node[key]
    if value is ...:
        del node[path[-1]]
    elif path:
        node[path[-1]] = value
    (damaged / name).write_text(json.dumps(tree if path else value))
    for folders in ((evaluation, damaged), (damaged, evaluation)):
        with pytest.raises(DataError, match=rf"b/{name}: not an? .* of this version: .*{message}"):
            compare_evaluations(*folders)


@pytest.mark.parametrize("side", ["wide", [], {}, None, -5, float("nan"), float("inf"), 10**400, True])
def test_sizes_of_images_that_no_box_needs_may_be_anything(side: Any) -> None:
    ground_truth, detections = generate(3)
    for image in ground_truth["images"]:
        image["width"] = image["height"] = side
    comparison = compare_detections(ground_truth, detections[::2], detections, params=make_params(), options=QUICK)
    assert {(one.a.width, one.b.height) for one in [*comparison.better, *comparison.worse]} == {(0, 0)}
