"""Mask R-CNN through the commands and the pipeline: real masks, Cloud Storage, fine-tuning."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline_runner
from detection.datasets.demo_data import make_demo_data
from detection.storage import files
from detection.storage.json_files import read_json
from detection.storage.paths import join
from schemas.artifacts import DETECTIONS_JSON, METRICS_JSON, SAVED_MODEL
from tests.detection.coco.generated_cases import pycocotools_eval
from tests.pipelines.small_run import read_summary
from tests.storage_emulator.fixture import Bucket
from tests.storage_emulator.folders import upload

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.extended]  # half a minute to minutes each

MODEL = ("model.name=mask-rcnn-nano", "train.batch_size=4", "evaluate.batch_size=4")
CONFIG = Path(__file__).parents[2] / "pipelines" / "configs" / "demo_masks.yaml"


def sets(*assignments: str) -> list[str]:
    return [part for assignment in assignments for part in ("--set", assignment)]


def call(command: str, *arguments: str | Path, keys: tuple[str, ...] = ()) -> None:
    assert pipeline_runner.main([command, *map(str, arguments), *sets(*keys)]) == 0


def read(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "data"
    make_demo_data(folder, train_images=40, eval_images=8)
    return folder


def test_on_cloud_storage_the_pipeline_gives_the_same_masks(gcs: Bucket, digits: Path, tmp_path: Path) -> None:
    keys = (*MODEL, "model.postprocess.score_threshold=0", "train.steps=3", "evaluate.thresholds.absolute={AP: 0.0}")
    call("run", "--data", digits, keys=(*keys, f"run.root={tmp_path / 'run'}"))
    summary = read_summary(tmp_path / "run")
    assert (summary["iou_type"], summary["blessed"]) == ("bbox", True)
    assert set(summary["metrics"]["segm"]) == set(summary["metrics"]) - {"segm"}
    [evaluation] = tmp_path.glob("run/artifacts/CocoEvaluator/evaluation/*")
    expected = read(evaluation / DETECTIONS_JSON)
    assert len(expected) > 100
    data, root = upload(digits, f"{gcs.path}/data"), f"{gcs.path}/runs/masks"
    call("run", "--data", data, keys=(*keys, f"run.root={root}"))
    assert read_summary(root)["metrics"] == summary["metrics"]
    [remote] = files.glob(join(root, "artifacts/CocoEvaluator/evaluation/*"))
    assert read_json(join(remote, DETECTIONS_JSON)) == expected


@pytest.mark.parametrize(
    ("data", "runner"), [("dali_masks", "local"), ("dali_masks", "beam"), ("coco2017_ccby", "beam")]
)
def test_the_pipeline_measures_real_masks_as_pycocotools(
    data: str, runner: str, shared_data: Path, tmp_path: Path
) -> None:
    """Polygons, RLE and crowds; the network is trained long enough to find something."""
    root = tmp_path / "run"
    keys = (*MODEL, "train.steps=60", "train.schedule.learning_rate=0.02", f"run.root={root}")
    call("run", "--data", shared_data / data, "--runner", runner, keys=keys)
    (evaluation,) = root.glob("artifacts/CocoEvaluator/evaluation/*")
    ground_truth = read(shared_data / data / "instances_val.json")
    detections = read(evaluation / DETECTIONS_JSON)
    sizes = {image["id"]: [image["height"], image["width"]] for image in ground_truth["images"]}
    assert detections
    for detection in detections:
        assert set(detection) == {"image_id", "category_id", "bbox", "score", "segmentation"}
        assert detection["segmentation"]["size"] == sizes[detection["image_id"]]
    metrics, summary = read(evaluation / METRICS_JSON), read_summary(root)["metrics"]
    for iou_type, own, reported in (("bbox", metrics, summary), ("segm", metrics["segm"], summary["segm"])):
        assert own["iou_type"] == iou_type
        expected = pycocotools_eval(ground_truth, detections, iou_type).stats
        np.testing.assert_allclose(own["stats"], expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose([reported[name] for name in own["metrics"]], expected, rtol=0, atol=1e-12)


def evaluated(model: Path, data: Path, output: Path) -> tuple[float, float]:
    """AP50 of masks and boxes."""
    keys = ("evaluate.analysis.replicates=0", "evaluate.losses=false")
    call("evaluate", "--model", model, "--examples", data, "--output", output, keys=keys)
    metrics = read(output / METRICS_JSON)
    return metrics["segm"]["metrics"]["AP50"], metrics["metrics"]["AP50"]


def test_fine_tuning_on_real_masks_beats_its_start(shared_data: Path, tmp_path: Path) -> None:
    """Trained on digits first, then on the photographs; the start has their network, but has not seen fruit."""
    data = tmp_path / "digits"
    make_demo_data(data, train_images=300, eval_images=4)
    before, after, start = tmp_path / "before", tmp_path / "after", tmp_path / "start"
    call("train", "--config", CONFIG, "--data", data, "--output", before, keys=("train.steps=300",))
    init = (f"train.init.checkpoint={before}", "train.augment={scale_min: 0.8, scale_max: 1.3, horizontal_flip: true}")
    fruit = shared_data / "dali_masks"
    for output, steps in ((start, 1), (after, 600)):
        call("train", "--config", CONFIG, "--data", fruit, "--output", output, keys=(*init, f"train.steps={steps}"))
    first, tuned = (evaluated(folder / SAVED_MODEL, fruit, tmp_path / f"{folder.name}-ap") for folder in (start, after))
    for iou_type, before_ap, after_ap in zip(("segm", "bbox"), first, tuned, strict=True):
        print(f"{iou_type}: AP50 {before_ap:.4f} at the start, {after_ap:.4f} fine-tuned")
        assert after_ap > before_ap + 0.02
