"""Checkpoints of the Object Detection API, imported: the function of the original, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.inference.restore import load_trained
from detection.models.faster_rcnn.model import FasterRcnn
from detection.models.registry import build_detector
from detection.ops.boxes import decode_yxyx
from detection.weights.imported_model import ImportedModel, import_model, write_model
from detection.weights.od_api import OD_API
from schemas.config.config import Config
from schemas.config.config_io import load_config
from tests.detection.weights.original_od_api import (
    ANCHORS,
    CROP,
    FILTERS,
    OdApi,
    anchors_of_level,
    decoded,
)

SIDE, CLASSES = 64, 2
PIXELS = np.random.default_rng(0).uniform(0, 255, (1, SIDE, SIDE, 3)).astype(np.float32)


def config_of(*assignments: str, name: str = "faster-rcnn-r50") -> Config:
    return load_config(None, [f"model.name={name}", f"model.image_size={SIDE}", *assignments])


def loaded(model: ImportedModel, folder: Path) -> FasterRcnn:
    folder.mkdir()
    write_model(model, folder)
    detector = load_trained(folder).detector
    assert isinstance(detector, FasterRcnn)
    return detector


def inputs_of(detector: FasterRcnn) -> Any:
    return tf.constant((PIXELS - np.array(detector.pixel_mean)) / np.array(detector.pixel_std), tf.float32)


@pytest.fixture(scope="module")
def original() -> OdApi:
    network = OdApi(classes=CLASSES)
    network.construct()
    return network


@pytest.fixture(scope="module")
def imported(original: OdApi, tmp_path_factory: pytest.TempPathFactory) -> ImportedModel:
    folder = tmp_path_factory.mktemp("training")
    original.write(folder / "ckpt-26")
    return import_model(OD_API, folder, config_of())


@pytest.fixture(scope="module")
def detector(imported: ImportedModel, tmp_path_factory: pytest.TempPathFactory) -> FasterRcnn:
    return loaded(imported, tmp_path_factory.mktemp("model") / "model")


def test_backbone_and_pyramid_are_the_original_s(original: OdApi, detector: FasterRcnn) -> None:
    levels = original.backbone(tf.constant(PIXELS))
    features = original.pyramid(levels)
    images = inputs_of(detector)
    for ours, theirs in zip(detector.backbone(images)[1:], levels, strict=True):
        assert (theirs.numpy() == 6.0).any(), "some are limited"
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
    pyramid = detector(images).features
    assert [feature.shape[1:] for feature in pyramid] == [(side, side, FILTERS) for side in (16, 8, 4, 2, 1)]
    for ours, theirs in zip(pyramid, features, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)


def _assert_same_proposals(original: OdApi, detector: FasterRcnn) -> None:
    outputs, start = detector(inputs_of(detector)).rpn, 0
    theirs = original.rpn(original.pyramid(original.backbone(tf.constant(PIXELS))))
    for level, (logits, deltas, (classes, encoded)) in enumerate(
        zip(outputs.logits, outputs.deltas, theirs, strict=True), 2
    ):
        anchors = anchors_of_level(level, *logits.shape[1:3])
        ours = detector.anchors[start : start + len(anchors)]
        start += len(anchors)
        order, wanted = (np.lexsort(np.round(boxes, 2).T) for boxes in (ours, anchors))
        np.testing.assert_allclose(ours[order], anchors[wanted], atol=1e-3)
        boxes = decode_yxyx(tf.reshape(deltas, [1, -1, 4]), ours[np.newaxis], max_log_size=4.0)[0].numpy()
        expected = decoded(encoded.numpy(), anchors)
        np.testing.assert_allclose(boxes[order], expected[wanted], rtol=1e-3, atol=1e-2)
        probabilities = tf.nn.softmax(classes)[:, 1].numpy()
        np.testing.assert_allclose(tf.sigmoid(logits).numpy().ravel()[order], probabilities[wanted], atol=1e-4)
        assert np.ptp(probabilities) > 0.05
    assert start == len(detector.anchors)


def test_proposals_are_the_original_s(original: OdApi, detector: FasterRcnn) -> None:
    _assert_same_proposals(original, detector)


def _assert_same_box_head(original: OdApi, detector: FasterRcnn) -> None:
    rois = np.random.default_rng(1).normal(size=(5, CROP, CROP, FILTERS)).astype(np.float32)
    classes, encoded = original.box_head(tf.constant(rois))
    ours = detector.box_head(rois[np.newaxis])
    np.testing.assert_allclose(ours.class_logits[0], classes, rtol=1e-4, atol=1e-4)
    boxes = tf.constant([[10.0, 20.0, 40.0, 60.0]] * 5)
    for column in range(CLASSES):
        deltas = ours.box_deltas[:, :, column + 1]
        factors = detector.config.box_code_factors
        got = decode_yxyx(deltas, boxes[tf.newaxis], scale_factors=factors, max_log_size=4.0)[0]
        wanted = encoded.numpy()[:, min(column, encoded.shape[1] - 1)]
        np.testing.assert_allclose(got, decoded(wanted, boxes.numpy()), rtol=1e-4, atol=1e-3)


def test_box_head_is_the_original_s(original: OdApi, detector: FasterRcnn) -> None:
    _assert_same_box_head(original, detector)


def test_batch_norms_of_the_heads_are_folded(tmp_path: Path) -> None:
    network = OdApi(classes=CLASSES, feature_norm=True, head_norms=True, one_box=True)
    network.construct()
    model = import_model(OD_API, network.write(tmp_path / "ckpt-1"), config_of())
    assert model.unused == ()
    detector = loaded(model, tmp_path / "model")
    _assert_same_proposals(network, detector)
    _assert_same_box_head(network, detector)


def test_the_settings_of_the_original(imported: ImportedModel, original: OdApi) -> None:
    overrides = imported.config.model.overrides
    assert (overrides["resnet_layout"], overrides["fpn_layout"], overrides["activation"]) == (
        "od-api",
        "od-api",
        "relu6",
    )
    assert (overrides["fpn_filters"], overrides["rpn_filters"], overrides["box_roi_size"]) == (FILTERS, 12, CROP)
    assert (imported.step, imported.unused, imported.missing) == (25000, (), ())
    assert len(imported.differences) == 2
    assert build_detector("faster-rcnn-r50", num_classes=CLASSES, overrides=overrides).rpn.scores[0].filters == ANCHORS
