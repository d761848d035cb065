"""The transform against pycocotools, over many awkward cases, however images are bundled."""

import json
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest

from components.coco_evaluator.beam import detection_files
from components.coco_evaluator.beam import evaluate as beam_evaluate
from components.coco_evaluator.beam.batches import DetectedBatch
from components.coco_evaluator.beam.detection_files import detections_to_files, read_detections, write_detections
from components.coco_evaluator.beam.evaluate import Measure, SliceResult, evaluate_batches, read_slices
from components.coco_evaluator.tfma.slice_metrics import OVERALL, SliceKey
from detection.coco import CocoMetrics, evaluate
from detection.coco.keypoint_sigmas import fit_keypoints
from detection.coco.params import make_params
from schemas.errors import DataError, find_user_error
from schemas.metrics import METRIC_DEFINITIONS
from tests.detection.coco.generated_cases import generate, pycocotools_eval

ARRAYS = ("precision", "recall", "scores")
CASES = 24  # test_equality.py has more, of the engine alone
ALL = ("bbox", True)  # has all divisions, the others the one of the smallest chunks
_APART = 1_000  # between the ids of two cases


def cases_in_one(seeds: Sequence[int]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The images of many generated cases as one data set; `case_of` tells which one an image is of."""
    images, annotations, detections = [], [], []
    for seed in seeds:
        ground_truth, rows = generate(seed)
        base = seed * _APART
        images += [image | {"id": base + image["id"]} for image in ground_truth["images"]]
        for annotation in ground_truth["annotations"]:
            ids = {"id": base + annotation["id"], "image_id": base + annotation["image_id"]}
            annotations.append(annotation | ids)
        detections += [detection | {"image_id": base + detection["image_id"]} for detection in rows]
    return {"images": images, "annotations": annotations, "categories": ground_truth["categories"]}, detections


def case_of(image_id: int) -> SliceKey:
    return (("case", image_id // _APART),)


def write_batches(
    folder: Path, ground_truth: dict[str, Any], detections: list[dict[str, Any]], *, seed: int, rows: bool = False
) -> list[str]:
    """Images in random order, in batches of random sizes, in files of random numbers of batches."""
    rng = random.Random(seed)
    folder.mkdir()
    images = rng.sample(ground_truth["images"], len(ground_truth["images"]))
    files: list[list[DetectedBatch]] = [[] for _ in range(rng.randint(2, 9))]
    while images:
        some = [images.pop() for _ in range(min(len(images), rng.randint(1, 12)))]
        ids = {image["id"] for image in some}
        of_batch: Any = [detection for detection in detections if detection["image_id"] in ids]
        if rows:
            of_batch = np.array([[d["image_id"], *d["bbox"], d["score"], d["category_id"]] for d in of_batch]).reshape(
                -1, 7
            )
        batch = DetectedBatch(
            images=some,
            annotations=[annotation for annotation in ground_truth["annotations"] if annotation["image_id"] in ids],
            detections=of_batch,
            slices=[(OVERALL, case_of(image["id"])) for image in some],
        )
        rng.choice(files).append(batch)
    paths = [folder / f"{number}" for number in range(len(files))]
    for path, batches in zip(paths, files, strict=True):
        path.write_bytes(pickle.dumps(batches))
    return list(map(str, paths))


def load(path: str) -> Iterator[DetectedBatch]:
    yield from pickle.loads(Path(path).read_bytes())


def run(paths: list[str], measure: Measure, folder: Path, *, workers: int = 1) -> dict[SliceKey, SliceResult]:
    with local_pipeline(workers) as pipeline:
        batches = pipeline | beam.Create(paths) | beam.Reshuffle() | beam.FlatMap(load)
        batches | evaluate_batches([measure], folder)
        batches | detections_to_files(str(folder / "detections"))
    return dict(read_slices(measure, folder))


def local_pipeline(workers: int) -> beam.Pipeline:
    """Each worker a thread.

    Not Beam's multi_threading mode: there data go over ports of this machine, and once those of two test processes
    were mixed up; one took all memory, the other waited for ever.
    """
    return beam.Pipeline(argv=[f"--direct_num_workers={workers}", "--direct_running_mode=in_memory"])


def assert_same(result: CocoMetrics, expected: CocoMetrics) -> None:
    """To the last bit."""
    assert result.by_name == expected.by_name
    assert result.per_category == expected.per_category
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(result, name), getattr(expected, name))


@pytest.mark.slow
@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
def test_equals_pycocotools(tmp_path: Path, iou_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case is a slice of one data set."""
    monkeypatch.setattr(beam_evaluate, "_CHUNK", 500)
    ground_truth, detections = cases_in_one(range(CASES))
    categories = ground_truth["categories"]
    measure = Measure(categories, fit_keypoints(make_params(iou_type), categories))
    paths = write_batches(tmp_path / "batches", ground_truth, detections, seed=1)
    results = run(paths, measure, tmp_path / "out", workers=3)
    assert len(results) == CASES + 1
    for seed in range(CASES):
        case, its_detections = generate(seed)
        result = results[case_of(seed * _APART)]
        reference = pycocotools_eval(case, its_detections, iou_type)
        assert (result.images, result.detections) == (len(case["images"]), len(its_detections))
        np.testing.assert_allclose(result.metrics.stats, reference.stats, rtol=0, atol=1e-12)
        for name in ARRAYS:
            expected = reference.eval[name]
            np.testing.assert_allclose(getattr(result.metrics, name), expected, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(("iou_type", "use_cats"), [*((kind, True) for kind in METRIC_DEFINITIONS), ("bbox", False)])
def test_neither_division_nor_bundling_matters(
    tmp_path: Path, iou_type: str, use_cats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One state or many, in whatever order: the bits are the same."""
    ground_truth, detections = cases_in_one(range(8))
    params = fit_keypoints(make_params(iou_type, use_cats=use_cats), ground_truth["categories"])
    by_image = sorted(detections, key=itemgetter("image_id"))
    first = {OVERALL: evaluate(ground_truth, detections, iou_type, use_cats=use_cats)}
    all_divisions = [(False, 5), (True, 30), (False, 2_000), (True, 2_000)]
    divisions = all_divisions if (iou_type, use_cats) == ALL else [(True, 5)]
    for number, (divided, chunk) in enumerate(divisions):
        monkeypatch.setattr(beam_evaluate, "_CHUNK", chunk)
        monkeypatch.setattr(detection_files, "_CHUNK", chunk)
        measure = Measure(ground_truth["categories"], params, divided=divided)
        paths = write_batches(tmp_path / f"batches-{number}", ground_truth, detections, seed=number)
        folder = tmp_path / f"out-{number}"
        results = run(paths, measure, folder, workers=number + 1)
        assert next(iter(results)) == OVERALL
        assert results[OVERALL][:2] == (80, len(detections))
        first = {key: result.metrics for key, result in results.items()} | first
        assert len(first) == len(results) == 9
        for key, expected in first.items():
            assert_same(results[key].metrics, expected)
        some = [entry for entry in by_image if entry["image_id"] in {3_015, 5_040}]
        assert write_detections(folder / "detections", tmp_path / "detections.json", {3_015, 5_040}) == some
        assert read_detections(folder / "detections", {3_015, 5_040}) == some
        assert json.loads((tmp_path / "detections.json").read_bytes()) == by_image


def test_further_metrics_have_mergeable_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One state per metric, or one per category, give the same bits as all images at once."""
    monkeypatch.setattr(beam_evaluate, "_CHUNK", 20)
    ground_truth, detections = cases_in_one(range(4))
    names = ["pascal_voc_AP50", "weighted_pascal_voc_AP50", "open_images_challenge_AP50"]
    first = case_of(0)
    expected = {
        OVERALL: evaluate(ground_truth, detections, metrics=names),
        first: evaluate(*generate(0), metrics=names),
    }
    for divided in (False, True):
        measure = Measure(ground_truth["categories"], make_params(metrics=names), divided=divided)
        paths = write_batches(tmp_path / f"batches-{divided}", ground_truth, detections, seed=7, rows=divided)
        results = run(paths, measure, tmp_path / f"out-{divided}", workers=2)
        for key, metrics in expected.items():
            assert_same(results[key].metrics, metrics)


def test_detections_as_rows(tmp_path: Path) -> None:
    ground_truth, detections = cases_in_one(range(3))
    measure = Measure(ground_truth["categories"], make_params(), divided=True)
    results = run(
        write_batches(tmp_path / "batches", ground_truth, detections, seed=5, rows=True),
        measure,
        tmp_path / "out",
        workers=2,
    )
    assert_same(results[OVERALL].metrics, evaluate(ground_truth, detections))
    write_detections(tmp_path / "out" / "detections", tmp_path / "detections.json", ())
    assert json.loads((tmp_path / "detections.json").read_bytes()) == [
        {key: detection[key] for key in ("image_id", "category_id", "bbox", "score")}
        for detection in sorted(detections, key=itemgetter("image_id"))
    ]


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("detections", {"category_id": 9}, r"detections of the model: unknown category_id: detection"),
        ("detections", {"score": "high"}, r"detections of the model: invalid score: detection"),
        ("detections", {"bbox": [1, 2, -3, 4]}, r"detections of the model: negative width or height"),
        ("annotations", {"bbox": [1]}, r"ground truth of the examples: invalid bbox: annotation 1"),
    ],
)
def test_invalid_entries(tmp_path: Path, kind: str, change: dict[str, Any], message: str) -> None:
    ground_truth, detections = generate(3)
    entries = detections if kind == "detections" else ground_truth[kind]
    entries[0] |= change
    paths = write_batches(tmp_path / "batches", ground_truth, detections, seed=1)
    measure = Measure(ground_truth["categories"], make_params(), divided=kind == "detections")
    with pytest.raises(Exception, match="while running") as caught:
        run(paths, measure, tmp_path / "out")
    error = find_user_error(caught.value)
    assert isinstance(error, DataError)
    assert re.search(message, str(error))


def test_evaluation_needs_no_tensorflow() -> None:
    """Its import takes each worker process longer than the evaluation of thousands of images."""
    program = "import sys, components.coco_evaluator.beam.evaluate; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 0
