"""Event files, read back."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from detection.analysis.analysis_file import Box
from detection.coco.metrics import CocoMetrics
from detection.reports.box_styles import STATUSES
from detection.reports.tensorboard import side_by_side, write_evaluation
from schemas.errors import DataError
from schemas.metrics import MAX_DETS, METRIC_DEFINITIONS
from tests.detection.reports.evaluation.builders import HEIGHT, WIDTH, image_result

# As the TF Object Detection API's documentation of CocoDetectionEvaluator.evaluate lists them.
OLD_NAMES = (
    "DetectionBoxes_Precision/mAP",
    "DetectionBoxes_Precision/mAP@.50IOU",
    "DetectionBoxes_Precision/mAP@.75IOU",
    "DetectionBoxes_Precision/mAP (small)",
    "DetectionBoxes_Precision/mAP (medium)",
    "DetectionBoxes_Precision/mAP (large)",
    "DetectionBoxes_Recall/AR@1",
    "DetectionBoxes_Recall/AR@10",
    "DetectionBoxes_Recall/AR@100",
    "DetectionBoxes_Recall/AR@100 (small)",
    "DetectionBoxes_Recall/AR@100 (medium)",
    "DetectionBoxes_Recall/AR@100 (large)",
)


def read(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    events.Reload()
    return events


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = read(folder)
    told = {tag: events.Tensors(tag) for tag in events.Tags()["tensors"] if not tag.startswith("eval_side")}
    return {
        tag: [(value.step, float(tf.make_ndarray(value.tensor_proto))) for value in values]
        for tag, values in told.items()
    }


def metrics(iou_type: str) -> dict[str, float]:
    return {metric.name: index / 64 for index, metric in enumerate(METRIC_DEFINITIONS[iou_type], 1)}


def write(
    folder: Path,
    step: int,
    by_name: dict[str, float],
    *,
    iou_type: str = "bbox",
    max_dets: tuple[int, ...] = MAX_DETS,
    per_category: dict[str, float] | None = None,
    losses: dict[str, float] | None = None,
    pictures: list[np.ndarray] | None = None,
) -> None:
    nothing = np.zeros(0)
    categories = [{"id": 1, "name": name, "AP": ap} for name, ap in (per_category or {}).items()]
    measured = CocoMetrics(iou_type, by_name, (), nothing, nothing, nothing, categories, (), {}, max_dets)
    write_evaluation(folder, step=step, metrics=[measured], losses=losses or {}, pictures=pictures or [])


def test_metrics_have_their_old_names(tmp_path: Path) -> None:
    write(tmp_path, 1200, metrics("bbox"))
    assert scalars(tmp_path) == {name: [(1200, index / 64)] for index, name in enumerate(OLD_NAMES, 1)}


def test_masks_and_keypoints(tmp_path: Path) -> None:
    write(tmp_path / "m", 1, metrics("segm"), iou_type="segm")
    assert set(scalars(tmp_path / "m")) == {name.replace("Boxes", "Masks") for name in OLD_NAMES}
    write(tmp_path / "k", 1, metrics("keypoints"), iou_type="keypoints", max_dets=(20,))
    assert {"Keypoints_Precision/mAP@.75IOU", "Keypoints_Recall/AR@20 (large)"} < set(scalars(tmp_path / "k"))
    assert len(scalars(tmp_path / "k")) == 10


def test_what_is_undefined_is_left_out_and_other_metrics_are_kept(tmp_path: Path) -> None:
    write(
        tmp_path,
        3,
        {"AP": 0.5, "APs": -1.0, "APr": 0.25},
        per_category={"cat": 0.75, "dog": -1.0},
        losses={"class_loss": 0.125},
    )
    assert scalars(tmp_path) == {
        "DetectionBoxes_Precision/mAP": [(3, 0.5)],
        "DetectionBoxes_Precision/APr": [(3, 0.25)],
        "DetectionBoxes_PerformanceByCategory/mAP/cat": [(3, 0.75)],
        "Loss/classification_loss": [(3, 0.125)],
    }


def test_evaluations_of_a_run_share_a_folder(tmp_path: Path) -> None:
    for step in (10, 20):
        write(tmp_path, step, {"AP": step / 64})
    assert len(list(tmp_path.iterdir())) == 2
    assert scalars(tmp_path) == {"DetectionBoxes_Precision/mAP": [(10, 10 / 64), (20, 20 / 64)]}


def test_pictures_are_read_back_as_they_were(tmp_path: Path) -> None:
    pictures = [np.random.default_rng(n).integers(0, 256, (20, 40, 3), np.uint8) for n in range(2)]
    write(tmp_path, 7, {}, pictures=pictures)
    events = read(tmp_path)
    assert events.Tags()["tensors"] == ["eval_side_by_side_0_0", "eval_side_by_side_1_0"]
    for number, picture in enumerate(pictures):
        (event,) = events.Tensors(f"eval_side_by_side_{number}_0")
        width, height, png = tf.make_ndarray(event.tensor_proto)
        assert (event.step, int(width), int(height)) == (7, 40, 20)
        assert (np.asarray(Image.open(io.BytesIO(png))) == picture).all()


def pixels_of(picture: np.ndarray, status: str) -> np.ndarray:
    return (picture == STATUSES[status].style.color).all(axis=-1)


def test_skeletons_are_in_both_panels() -> None:
    """On an image at half of its size in the ground truth; the middle of an edge is in the colour of the status."""
    image = np.full((HEIGHT // 2, WIDTH // 2, 3), 128, np.uint8)
    points = [100.0, 200.0, 2.0, 300.0, 300.0, 1.0, 500.0, 100.0, 0.0]
    box = Box(1, [0.0, 0.0, 2.0, 2.0], None, "Miss", keypoints=points, skeleton=[(1, 2), (2, 3)])
    result = replace(image_result(1), ground_truth=[box], detections=[replace(box, score=0.5, status="Dupe")])
    picture = side_by_side(image, result, {1: "cat"})
    half, gap = picture.shape[1] // 2, 8
    for status, left in (("Dupe", gap), ("Miss", half + gap // 2)):
        drawn = pixels_of(picture, status)
        assert drawn[gap + 125, left + 100]
        assert not drawn[gap + 100, left + 200]


def test_detections_are_left_and_ground_truth_is_right() -> None:
    image = np.full((HEIGHT, WIDTH, 3), 128, np.uint8)
    result = replace(
        image_result(1),
        ground_truth=[Box(1, [100.0, 200.0, 80.0, 60.0], None, "Miss")],
        detections=[Box(1, [400.0, 50.0, 90.0, 70.0], 0.9, "Dupe")],
    )
    picture = side_by_side(image, result, {1: "cat"})
    half = picture.shape[1] // 2
    fn, twice = (np.nonzero(pixels_of(picture, status)) for status in ("Miss", "Dupe"))
    assert twice[1].max() < half < fn[1].min()
    gap = 8  # of the sheet
    assert abs(twice[1].max() - (gap + 489)) <= 1
    assert abs(fn[1].min() - (half + gap / 2 + 100)) <= 1
    assert abs(fn[0].max() - (gap + 259)) <= 1


def test_boxes_follow_an_image_of_another_scale() -> None:
    result = replace(image_result(1), ground_truth=[], detections=[Box(1, [100.0, 200.0, 80.0, 60.0], 0.9, "Miss")])
    small = side_by_side(np.full((HEIGHT // 2, WIDTH // 2, 3), 128, np.uint8), result, {})
    assert abs(np.nonzero(pixels_of(small, "Miss"))[1].min() - (8 + 50)) <= 1
    large = side_by_side(np.full((HEIGHT * 4, WIDTH * 4, 3), 128, np.uint8), result, {})
    assert abs(np.nonzero(pixels_of(large, "Miss"))[1].min() - (8 + 100)) <= 2
    assert large.shape[1] < 2 * 640 + 30


def test_the_most_confident_detections_are_drawn() -> None:
    image = np.full((HEIGHT, WIDTH, 3), 128, np.uint8)
    boxes = [("TP", 0.9, 300.0), ("Bkg", 0.6, 100.0), ("Loc", 0.4, 200.0)]
    result = replace(
        image_result(1),
        ground_truth=[],
        detections=[Box(1, [left, 50.0, 60.0, 70.0], score, status) for status, score, left in boxes],
    )
    for most, expected in ((1, {"TP"}), (2, {"TP", "Bkg"}), (None, {"TP", "Bkg", "Loc"})):
        picture = side_by_side(image, result, {1: "cat"}, max_boxes=most)
        assert {status for status, _, _ in boxes if pixels_of(picture, status).any()} == expected


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    with pytest.raises(DataError, match="cannot write"):
        write(tmp_path / "logs", 1, {"AP": 0.5})
