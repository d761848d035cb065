"""The transform against pycocotools, over many awkward cases, however images are bundled."""

import pickle
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest

from components.coco_evaluator import matching
from components.coco_evaluator.batches import DetectedBatch
from components.coco_evaluator.matching import Measure, SliceResult, read_slices
from components.coco_evaluator.slicing import OVERALL, SliceKey
from components.coco_evaluator.transforms import Evaluate, arrays_folder
from detection.coco.figures import FIGURES
from detection.coco.settings import make_settings
from tests.detection.coco.generated_cases import generate, pycocotools_eval

ARRAYS = ("precision", "recall", "scores")
CASES = 300
_APART = 1_000  # between the ids of two cases


def cases_in_one(seeds: Sequence[int]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The images of many generated cases as one data set; `case_of` tells which one an image is of."""
    images, annotations, detections = [], [], []
    for seed in seeds:
        truth, found = generate(seed)
        base = seed * _APART
        images += [image | {"id": base + image["id"]} for image in truth["images"]]
        for annotation in truth["annotations"]:
            ids = {"id": base + annotation["id"], "image_id": base + annotation["image_id"]}
            annotations.append(annotation | ids)
        detections += [detection | {"image_id": base + detection["image_id"]} for detection in found]
    return {"images": images, "annotations": annotations, "categories": truth["categories"]}, detections


def case_of(image_id: int) -> SliceKey:
    return (("case", image_id // _APART),)


def write_batches(
    folder: Path, truth: dict[str, Any], detections: list[dict[str, Any]], *, seed: int, rows: bool = False
) -> list[str]:
    """Images in random order, in batches of random sizes, in files of random numbers of batches."""
    rng = random.Random(seed)
    folder.mkdir()
    images = rng.sample(truth["images"], len(truth["images"]))
    files: list[list[DetectedBatch]] = [[] for _ in range(rng.randint(2, 9))]
    while images:
        some = [images.pop() for _ in range(min(len(images), rng.randint(1, 12)))]
        ids = {image["id"] for image in some}
        found: Any = [detection for detection in detections if detection["image_id"] in ids]
        if rows:
            found = np.array([[d["image_id"], *d["bbox"], d["score"], d["category_id"]] for d in found]).reshape(-1, 7)
        batch = DetectedBatch(
            images=some,
            annotations=[annotation for annotation in truth["annotations"] if annotation["image_id"] in ids],
            detections=found,
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
    options = [f"--direct_num_workers={workers}", "--direct_running_mode=multi_threading"]
    with beam.Pipeline(argv=options) as pipeline:
        (pipeline | beam.Create(paths) | beam.Reshuffle() | beam.FlatMap(load) | Evaluate(measure, folder))
    return dict(read_slices(measure, arrays_folder(folder)))


@pytest.mark.slow
@pytest.mark.parametrize("iou_type", FIGURES)
def test_equals_pycocotools(tmp_path: Path, iou_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case is a slice of one data set."""
    monkeypatch.setattr(matching, "_CHUNK", 500)
    truth, detections = cases_in_one(range(CASES))
    measure = Measure(truth["categories"], make_settings(iou_type))
    paths = write_batches(tmp_path / "batches", truth, detections, seed=1)
    found = run(paths, measure, tmp_path / "out", workers=3)
    assert len(found) == CASES + 1
    for seed in range(CASES):
        case, its_detections = generate(seed)
        result = found[case_of(seed * _APART)]
        reference = pycocotools_eval(case, its_detections, iou_type)
        assert (result.images, result.detections) == (len(case["images"]), len(its_detections))
        np.testing.assert_allclose(result.metrics.stats, reference.stats, rtol=0, atol=1e-12)
        for name in ARRAYS:
            expected = reference.eval[name]
            np.testing.assert_allclose(getattr(result.metrics, name), expected, rtol=0, atol=1e-12, err_msg=name)
