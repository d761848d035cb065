"""Whole models of the TF Object Detection API, imported from checkpoints as in its zoo: outputs, losses, detections.

The numbers are those of the original code: `oracles/od_api/README.md`.
"""

import json
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from detection.models.dense.detector import DenseDetector
from detection.models.registry import detector_from_config
from detection.ops.boxes import encode_yxyx
from detection.types import ImageInfo, Labels
from detection.weights.imported_model import import_model
from detection.weights.od_api_retinanet import OD_API_RETINANET
from schemas.config.config_io import load_config

pytestmark = pytest.mark.slow

BOX_SCALES = (10.0, 10.0, 5.0, 5.0)


class Case(NamedTuple):
    """An imported model, its outputs on the oracle's images, and the original's numbers."""

    detector: DenseDetector
    outputs: Any
    arrays: Mapping[str, np.ndarray]
    notes: dict[str, Any]

    def by_anchor(self, values: np.ndarray) -> np.ndarray:
        """Reorders [B, A, ...] to the original's anchors of a cell: aspect ratio first."""
        config = self.detector.config
        order = np.arange(config.anchors_per_cell).reshape(config.num_scales, -1).T.ravel()
        return values.reshape(len(values), -1, len(order), *values.shape[2:])[:, :, order].reshape(values.shape)

    def labels(self, *, weighted: bool) -> Labels:
        """The ground truth of image 0; image 1 has none."""
        truth, (height, width) = self.notes["ground_truth"], self.detector.image_size
        boxes = np.zeros((2, len(truth["boxes"]), 4), np.float32)
        boxes[0] = np.array(truth["boxes"]) * [height, width, height, width]
        weights = np.array([truth["weights"], [0.0] * len(truth["weights"])], np.float32)
        return Labels(
            boxes=tf.constant(boxes),
            classes=tf.constant([truth["classes"], [0] * len(truth["classes"])], tf.int32),
            valid=tf.constant([[True], [False]]) & tf.ones(boxes.shape[:2], tf.bool),
            weights=tf.constant(weights) if weighted else None,
        )


@pytest.fixture(scope="module")
def case(oracle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder, target = oracle_dir / "od_api", tmp_path_factory.mktemp("od_api")
    sys.path.insert(0, str(folder))
    try:
        runpy.run_path(str(folder / "make_checkpoint.py"))["main"]("ssd_resnet50_v1_fpn", str(target))
        make_image = runpy.run_path(str(folder / "odrule.py"))["make_image"]
    finally:
        sys.path.remove(str(folder))
    source = folder / "ssd_resnet50_v1_fpn"
    notes = json.loads((source / "notes.json").read_text())
    image = notes["image"]
    size = [image["height"], image["width"]]
    config = load_config(None, ["model.name=retinanet-r50", f"model.image_size={size}"])
    model = import_model(OD_API_RETINANET, target / "checkpoint", config)
    assert (model.unused, model.missing, model.differences) == ((), (), ())
    assert model.categories is not None
    detector = detector_from_config(model.config.model, num_classes=len(model.categories))
    assert isinstance(detector, DenseDetector)
    for variable in detector.variables:
        variable.assign(model.raw[variable.path])
    pixels = np.stack([make_image(image["seed"] + number, *size) for number in range(2)])
    inputs = (pixels - np.array(detector.pixel_mean)) / np.array(detector.pixel_std)
    arrays = dict(np.load(source / "outputs.npz"))
    np.testing.assert_allclose(inputs[:, ::16, ::16], arrays["preprocessed_sample"], atol=1e-4)
    return Case(detector, detector(tf.constant(inputs, tf.float32)), arrays, notes)


def test_raw_predictions(case: Case) -> None:
    step = case.notes["anchor_step"]
    raw = case.detector.anchor_outputs(case.outputs)
    boxes = case.by_anchor(raw.deltas.numpy()) * BOX_SCALES
    np.testing.assert_allclose(boxes[:, ::step], case.arrays["box_encodings_strided"], atol=1e-4)
    logits = case.by_anchor(raw.logits.numpy())
    np.testing.assert_allclose(logits[:, ::step], case.arrays["class_predictions_strided"][..., 1:], atol=1e-4)
    [anchors] = case.by_anchor(case.detector.anchors[np.newaxis])
    np.testing.assert_allclose(anchors / np.tile(case.detector.image_size, 2), case.arrays["anchors"], atol=1e-6)


@pytest.mark.parametrize("weighted", [True, False])
def test_targets(*, case: Case, weighted: bool) -> None:
    suffix = "" if weighted else "_unweighted"
    targets = case.detector._dense_losses.assign(case.labels(weighted=weighted))
    positive = case.by_anchor(targets.positive.numpy())
    places = case.arrays[f"match_index{suffix}"]
    np.testing.assert_array_equal(np.argwhere(positive), places)
    rows = tuple(places.T)
    encoded = encode_yxyx(targets.boxes, tf.constant(case.detector.anchors)).numpy()
    found = case.by_anchor(encoded)[rows] * BOX_SCALES
    np.testing.assert_allclose(found, case.arrays[f"reg_targets{suffix}"], atol=1e-5)
    slots = case.arrays[f"cls_targets{suffix}"]  # slot 0 is the background
    np.testing.assert_array_equal(case.by_anchor(targets.classes.numpy())[rows], slots - 1)
    if weighted:
        assert targets.weights is not None
        weights = case.by_anchor(targets.weights.numpy())[rows]
        np.testing.assert_allclose(weights, case.arrays["reg_weights"])


@pytest.mark.parametrize(("weighted", "name"), [(True, "loss"), (False, "loss_unweighted")])
def test_losses(*, case: Case, weighted: bool, name: str) -> None:
    terms = case.detector.losses(case.outputs, case.labels(weighted=weighted))
    expected = case.notes["losses"][name]
    assert float(terms["box_loss"]) == pytest.approx(expected["Loss/localization_loss"], rel=1e-4)
    assert float(terms["class_loss"]) == pytest.approx(expected["Loss/classification_loss"], rel=1e-4)


def test_detections(case: Case) -> None:
    size = tf.constant([case.detector.image_size] * 2, tf.float32)
    found = case.detector.detect(case.outputs, ImageInfo(size, tf.ones([2, 2])))
    arrays = case.arrays
    np.testing.assert_array_equal(found.num, arrays["post_num_detections"])
    np.testing.assert_allclose(found.scores, arrays["post_detection_scores"], atol=1e-4)
    for image in range(2):
        theirs = {
            (int(label), *np.round(box, 3))
            for label, box in zip(
                arrays["post_detection_classes"][image], arrays["post_detection_boxes"][image], strict=True
            )
        }
        ours = {
            (int(label), *np.round(box, 3))
            for label, box in zip(found.classes[image].numpy(), found.boxes[image].numpy(), strict=True)
        }
        assert len(theirs & ours) >= 97
